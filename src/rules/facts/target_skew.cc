#include "rules/facts/target_skew.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace luff::rules {
namespace {

// Outputs that vary less have not learnt the targets yet: they follow nothing.
constexpr double kLearnt = 0.3;

struct Change {
  double shift, log_spread;  // in deviations of `unit`; logarithm of the ratio of deviations
};

Change ChangeOf(const Features& from, const Features& to, std::size_t i, double unit) {
  return {(to.mean(i) - from.mean(i)) / unit, 0.5 * std::log(to.variance(i) / from.variance(i))};
}

}  // namespace

void TargetSkew::Add(const StepView& view, bool train) {
  std::set<std::string> seen;
  for (const LossCall& call : LossReader::Read(view)) {
    if (!call.target.is_float() || call.target.shape != call.output.shape || call.target.shape.empty())
      continue;
    const bool known = kinds_.contains(call.kind);
    if (!known && (!train || kinds_.size() >= LossReader::kMaxKinds)) continue;
    const Recognition found = reader_.Recognise(call);
    if (!IsRegression(found.formula) || found.broadcast) continue;
    Kind& kind = kinds_[call.kind];
    kind.several = kind.several || !seen.insert(call.kind).second;
    (train ? kind.targets : kind.evaluated_targets).Add(call.target);
    (train ? kind.outputs : kind.evaluated_outputs).Add(call.output);
    (train ? kind.whole : kind.evaluated_whole).Add(call.target.values);
  }
}

std::vector<TargetSkew::Unlike> TargetSkew::Compare(const Limits& limits) const {
  std::vector<Unlike> all;
  for (const auto& [name, kind] : kinds_) {
    std::optional<Unlike> unlike = UnlikeOf(kind, limits);
    if (!unlike) continue;
    unlike->loss = name;
    all.push_back(*std::move(unlike));
  }
  return all;
}

std::optional<TargetSkew::Unlike> TargetSkew::UnlikeOf(const Kind& kind, const Limits& limits) {
  const std::string& type = kind.targets.kind();
  for (const Features* one : {&kind.targets, &kind.outputs, &kind.evaluated_targets, &kind.evaluated_outputs})
    if (kind.several || one->kind() != type || one->rows() < limits.rows) return std::nullopt;
  Unlike worst;
  worst.rows = kind.evaluated_targets.rows();
  double unlike = 0;
  double judged = 0;
  for (std::size_t i = 0; i < kind.targets.size(); ++i) {
    const bool vary = kind.targets.varies(i) && kind.evaluated_targets.varies(i) && kind.outputs.varies(i) &&
                      kind.evaluated_outputs.varies(i);
    if (!vary) continue;
    const double unit = std::sqrt(kind.targets.variance(i));
    if (kind.outputs.variance(i) < kLearnt * kLearnt * unit * unit) continue;
    ++judged;
    const Change targets = ChangeOf(kind.targets, kind.evaluated_targets, i, unit);
    const Change outputs = ChangeOf(kind.outputs, kind.evaluated_outputs, i, unit);
    const bool shifted =
        std::abs(targets.shift) >= limits.shift && std::abs(outputs.shift) <= std::abs(targets.shift) / 4;
    const bool scaled = std::abs(targets.log_spread) >= std::log(limits.spread) &&
                        std::abs(outputs.log_spread) <= std::abs(targets.log_spread) / 4;
    if (!shifted && !scaled) continue;
    ++unlike;
    if (std::abs(targets.shift) > std::abs(worst.shift)) worst.shift = targets.shift;
    if (std::abs(targets.log_spread) > std::abs(std::log(worst.spread)))
      worst.spread = std::exp(targets.log_spread);
  }
  if (judged == 0 || unlike < limits.share * judged) return std::nullopt;
  return worst;
}

std::vector<TargetSkew::CutTargets> TargetSkew::Cut() const {
  std::vector<CutTargets> all;
  for (const auto& [name, kind] : kinds_) {
    if (kind.several) continue;
    const auto in_training = WholeNumbers::Compare(kind.whole, kind.evaluated_whole);
    const auto in_evaluation = WholeNumbers::Compare(kind.evaluated_whole, kind.whole);
    if (in_training || in_evaluation)
      all.push_back({name, in_training ? *in_training : *in_evaluation, in_training.has_value()});
  }
  return all;
}

void TargetSkew::Next() {
  for (auto& [name, kind] : kinds_) {
    kind.evaluated_whole.Clear();
    if (kind.evaluated_targets.rows() == 0) continue;
    kind.outputs.Clear();
    kind.evaluated_targets.Clear();
    kind.evaluated_outputs.Clear();
  }
}

void TargetSkew::VisitFields(Fields& io) {
  io("reader", reader_);
  io("kinds", kinds_, LossReader::kMaxKinds);
}

}  // namespace luff::rules

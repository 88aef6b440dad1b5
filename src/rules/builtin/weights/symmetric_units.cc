#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// SymmetricUnits: docs/rules/symmetric_units.md.
namespace luff::rules::symmetric_units {
namespace {

using format::Form;
using format::Role;
constexpr const char* kName = "SymmetricUnits";
constexpr std::size_t kMaxWeights = 1 << 16;

// The rows of a weight matrix are copies of each other if and only if the sum of squares of all its elements
// equals n * sum over positions of (mean over rows)^2 (Cauchy-Schwarz with equality). Both sides are known
// without the values, from the summary and the sums per position along axis 0.
double SpreadOfRows(const Summary& summary, const UnitCounts& units) {
  const double rows = static_cast<double>(units.values_per_unit);
  double shared = 0;
  for (const double sum : units.sum) shared += sum * sum / rows;
  return 1 - shared / summary.sum_sq;
}

struct Limits {
  double spread;
  std::int64_t captures, interval;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::spread, "spread", "1e-6",
     "share of the weights' squares that differs between rows; sums are kept to 1e-7 (Luff)"},
    {&Limits::captures, "captures", "2",
     "captures at which the weights have moved and the rows are still equal (Luff)", AtLeast(1)},
    {&Limits::interval, "interval", "64", "TRAIN steps between two captures after the first four (Luff)",
     AtLeast(1)},
};

class SymmetricUnits final : public KeptRule {
 public:
  explicit SymmetricUnits(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    Zeros(view, sink);
    query::TensorId lead = format::kNoId;
    std::uint32_t worker = 0;
    double units = 0;
    double spread = 0;
    std::int64_t since = 0;
    std::vector<std::string> others;
    bool looked = false;
    for (const auto& [entry, tensor] : view.index.units(Role::kWeight)) {
      if (entry.counts.axis == UnitAxis::kLast || entry.counts.values_per_unit < 2 ||
          entry.counts.sum.size() < 2)
        continue;
      const Summary* summary = view.memo.SummaryOf(view, entry.tensor, entry.worker);
      if (summary == nullptr || summary->finite_count() != summary->count || !(summary->sum_sq > 0) ||
          summary->count != entry.counts.values_per_unit * entry.counts.sum.size())
        continue;
      looked = true;
      const std::string key = fmt::format("{}\n{}", entry.worker, tensor.name);
      if (weights_.size() >= kMaxWeights && !weights_.contains(key)) continue;
      Weight& weight = weights_[key];
      const double now = SpreadOfRows(*summary, entry.counts);
      const bool equal = std::abs(now) <= limits_.spread;
      const bool moved =
          weight.seen && (summary->sum_sq != weight.last_sum_sq || summary->sum != weight.last_sum);
      weight.moved = equal ? weight.moved + (moved ? 1 : 0) : 0;
      if (!weight.seen) weight.since = info.mode_step;
      weight.seen = true;
      weight.last_sum_sq = summary->sum_sq;
      weight.last_sum = summary->sum;
      if (!equal || weight.moved < limits_.captures) continue;
      if (lead == format::kNoId) {
        lead = entry.tensor;
        worker = entry.worker;
        units = static_cast<double>(entry.counts.values_per_unit);
        spread = now;
        since = weight.since;
      } else {
        others.push_back(tensor.name);
      }
    }
    if (!looked) return;
    if (lead == format::kNoId) {
      if (!open_.empty()) sink.Heal("copies", open_, info.mode_step);
      open_.clear();
      return;
    }
    Finding finding = FindingAt(kName, "copies", view, TensorAt{lead, worker});
    if (open_.empty()) open_ = finding.tensor;
    if (open_ != finding.tensor) others.push_back(finding.tensor);
    finding.tensor = open_;
    std::erase(others, open_);
    finding.severity = Severity::kStop;
    finding.since_step = since;
    finding.other_tensors = std::move(others);
    finding.what = fmt::format("the {:g} units of {} are copies of each other", units, finding.tensor);
    finding.why =
        "units with equal weights get equal gradients and stay equal for ever: the layer can express no more "
        "than one unit";
    finding.remedy =
        "initialise the weights at random (the framework's default does); constants are for biases, gains "
        "and "
        "last layers only";
    finding.causes = {"weights initialised with a constant", "rows copied from one row",
                      "weights of zero in front of a layer that is zero too"};
    finding.evidence = {{"spread_of_rows", std::max(0.0, spread)}, {"units", units}};
    finding.threshold = fmt::format(
        "no difference between the rows (below {:g} of the weights' squares), after updates that "
        "moved them (exact; Luff)",
        limits_.spread);
    sink.Report(std::move(finding));
  }

  void VisitFields(Fields& io) override {
    io("weights", weights_, kMaxWeights);
    io("open", open_);
    io("began", began_);
    io("all_zero", all_zero_);
    io("zeros_open", zeros_open_);
  }

 private:
  // Weights of two layers or more, all of which began at zero and are exactly zero after updates: what one
  // layer gives is zero, so that the next one gets no gradient, and passes none back. Layers that may begin
  // at zero (a last one, the second of a pair) have others before them, and leave it with the first update.
  void Zeros(const StepView& view, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    std::vector<query::TensorId> zeros;
    bool others = false;
    for (const auto& [entry, tensor] : view.index.units(Role::kWeight)) {
      if (entry.worker != view.index.first_worker()) continue;
      const Summary* summary = view.memo.SummaryOf(view, entry.tensor, entry.worker);
      const bool zero = summary != nullptr && summary->count > 0 && summary->zero_count == summary->count;
      if (zero) zeros.push_back(entry.tensor);
      others = others || !zero;
    }
    if (zeros.empty() && !others) return;
    const bool all = zeros.size() >= 2 && !others;
    if (!std::exchange(began_, true)) all_zero_ = all && info.mode_step == 0;
    if (!all_zero_) return;
    if (!all) {
      all_zero_ = false;
      if (!zeros_open_.empty()) sink.Heal("zeros", zeros_open_, info.mode_step);
      zeros_open_.clear();
      return;
    }
    if (info.update < kUpdates || !zeros_open_.empty()) return;
    Finding finding = FindingAt(kName, "zeros", view, TensorAt{zeros.front(), view.index.first_worker()});
    zeros_open_ = finding.tensor;
    for (std::size_t i = 1; i < zeros.size(); ++i)
      finding.other_tensors.push_back(view.trial.tensor(zeros[i]).name);
    finding.severity = Severity::kStop;
    finding.since_step = 0;
    finding.what = fmt::format("the weights of all {} layers are zero, and stay so", zeros.size());
    finding.why = fmt::format(
        "each layer gives zeros whatever it gets, so that the next one gets no gradient and passes none "
        "back: after "
        "{} updates every weight is exactly zero, and only biases of the last layer can learn",
        info.update);
    finding.remedy =
        "initialise the weights at random (the framework's default does); zeros are for biases and last "
        "layers only";
    finding.causes = {"nn.init.zeros_ or constant_ of all parameters",
                      "tensors made with torch.zeros as weights"};
    finding.evidence = {{"layers", static_cast<double>(zeros.size())}, {"updates", info.update}};
    finding.threshold = fmt::format("a fact, after {} updates (Luff)", kUpdates);
    sink.Report(std::move(finding));
  }

  struct Weight {
    bool seen = false;
    std::int64_t moved = 0;  // captures at which it had moved, with its rows still equal
    std::int64_t since = 0;
    double last_sum_sq = 0, last_sum = 0;
    void VisitFields(Fields& io) {
      io("seen", seen);
      io("moved", moved);
      io("since", since);
      io("last_sum_sq", last_sum_sq);
      io("last_sum", last_sum);
    }
  };
  const Limits limits_;
  std::map<std::string, Weight> weights_;  // by worker and name
  std::string open_;
  static constexpr std::int64_t kUpdates = 3;
  bool began_ = false, all_zero_ = false;  // a step was seen; all weights have been zero since the first
  std::string zeros_open_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<SymmetricUnits>(kName, kParams);
  spec.version = 2;  // 2: "zeros"
  spec.summary = "all units of a layer are copies of each other, or all weights zero, and stay so";
  spec.needs = [](const Parameters& all) { return std::vector{WeightRowsNeed(IntervalOf(all))}; };
  return spec;
}

}  // namespace luff::rules::symmetric_units

#include "rules/facts/untrained_criteria.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "rules/facts/sample.h"
#include "rules/facts/step_memo.h"

namespace luff::rules {
namespace {

using format::Role;

// "Net" of "sample/Net_input_0"; "" of other names.
std::string CalledBy(const std::string& name) {
  constexpr std::string_view kBefore = "sample/", kBehind = "_input_";
  const std::size_t end = name.rfind(kBehind);
  if (!name.starts_with(kBefore) || end == std::string::npos || end < kBefore.size()) return "";
  return name.substr(kBefore.size(), end - kBefore.size());
}

// Sums of the same values may differ in their last places.
bool SameSum(double one, double other, double size) { return std::abs(one - other) <= 1e-12 * size; }

}  // namespace

void UntrainedCriteria::OnStep(const StepView& view) {
  FollowCalls(view);
  FollowValues(view);
}

void UntrainedCriteria::FollowCalls(const StepView& view) {
  struct Call {
    std::set<std::int64_t> floats, ids;  // first axes of what has one
    int numbers = 0, others = 0;         // tensors of one element
  };
  std::map<std::string, Call> calls;
  for (const auto& [entry, tensor] : view.index.summaries(Role::kSample)) {
    const std::string caller = CalledBy(tensor.name);
    if (caller.empty() || entry.worker != view.index.first_worker()) continue;
    const auto shape =
        view.trial.Shape(entry.tensor, view.rows.info.global_step, query::Mode::kGlobal, entry.worker);
    if (!shape.ok()) continue;
    const std::vector<std::int64_t>& whole = shape->global_shape.empty() ? shape->shape : shape->global_shape;
    Call& call = calls[caller];
    std::int64_t elements = 1;
    for (const std::int64_t length : whole) elements *= length;
    ++(elements == 1 ? call.numbers : call.others);
    if (whole.empty()) continue;
    if (IsIds(entry.dtype)) {
      call.ids.insert(whole.front());
    } else if (whole.size() > 1) {
      call.floats.insert(whole.front());
    }
  }
  for (const auto& [caller, call] : calls) {
    if (takes_.size() >= kMaxModels && !takes_.contains(caller)) continue;
    Takes& takes = takes_[caller];
    ++takes.calls;
    takes.with_labels +=
        std::ranges::any_of(call.ids, [&](std::int64_t rows) { return call.floats.contains(rows); });
    takes.numbers_only += call.others == 0 && call.numbers > 1 ? 1 : 0;
  }
}

void UntrainedCriteria::FollowValues(const StepView& view) {
  if (takes_.empty()) return;
  for (const Role role : {Role::kWeight, Role::kBias}) {
    for (const auto& [entry, tensor] : view.index.summaries(role)) {
      if (entry.worker != view.index.first_worker() || entry.summary.count == 0 ||
          entry.summary.finite_count() != entry.summary.count)
        continue;
      if (values_.size() >= kMaxParameters && !values_.contains(tensor.name)) continue;
      const ParameterFacts* parameter = view.memo.Facts(view).Find(tensor.name);
      if (parameter == nullptr || !parameter->optimizer.empty() || !parameter->requires_grad) {
        values_.erase(tensor.name);
        continue;
      }
      Values& values = values_[tensor.name];
      const double low = entry.summary.min(entry.dtype);
      const double high = entry.summary.max(entry.dtype);
      if (values.seen > 0) {
        const bool same = values.low == low && values.high == high &&
                          SameSum(values.sum, entry.summary.sum, entry.summary.abs_sum) &&
                          SameSum(values.sum_sq, entry.summary.sum_sq, entry.summary.sum_sq);
        values.moved = values.moved || !same;
      }
      values.low = low;
      values.high = high;
      values.sum = entry.summary.sum;
      values.sum_sq = entry.summary.sum_sq;
      ++values.seen;
    }
  }
}

std::set<std::string> UntrainedCriteria::Models(const ModelFacts& facts) const {
  struct Own {
    std::int64_t elements = 0, parameters = 0, matrices = 0, below = 0;
    bool fits = true;
  };
  std::map<std::string, Own> owners;
  for (const auto& [name, parameter] : facts.parameters()) {
    if (!parameter.requires_grad) continue;
    Own& own = owners[parameter.model];
    const auto values = values_.find(name);
    own.fits = own.fits && parameter.optimizer.empty() && !parameter.updated && values != values_.end() &&
               values->second.seen > 1 && !values->second.moved;
    own.elements += std::max<std::int64_t>(parameter.elements, 1);
    ++own.parameters;
    own.matrices += parameter.shape.size() > 1 ? 1 : 0;
    own.below += parameter.path.find('.') != std::string::npos ? 1 : 0;
  }
  std::set<std::string> found;
  for (const auto& [model, own] : owners) {
    if (!own.fits || own.elements < 2) continue;
    const auto& types = facts.ModuleTypes(model);
    const auto type = types.find("");
    const std::string kind = type == types.end() ? "" : type->second;
    // Torch's own loss with layers, which takes features and labels; it returns no tensor, and is not
    // sampled.
    if (kind == "AdaptiveLogSoftmaxWithLoss") found.insert(model);
    for (const std::string& caller : {model, kind}) {
      const auto takes = takes_.find(caller);
      if (takes == takes_.end() || takes->second.calls < 2) continue;
      const Takes& one = takes->second;
      const bool labels = one.with_labels == one.calls && (own.below == 0 || own.matrices == 1);
      const bool losses = one.numbers_only == one.calls && own.below == 0;
      if (labels || losses) found.insert(model);
    }
  }
  return found;
}

}  // namespace luff::rules

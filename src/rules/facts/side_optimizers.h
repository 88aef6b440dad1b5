#pragma once
#include <set>
#include <string>

#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/step_index.h"

namespace luff::rules {

/// Whether all updates of a step are those of optimizers that hold a tenth of the trained parameters at most,
/// of those that the run's optimizers hold: weights of an architecture, or learnt settings. What such a step
/// has seen, the model's other weights have not.
[[nodiscard]] inline bool UpdatesFewWeights(const StepView& view) {
  constexpr double kTimes = 10;
  const auto steps = view.index.events(format::EventKind::kOptimizerStep);
  if (steps.empty()) return false;
  const ModelFacts& facts = view.memo.Facts(view);
  if (facts.optimizers().size() < 2) return false;
  std::set<std::string> stepped;
  for (const query::EventAt& event : steps) {
    for (const OptimizerFacts& one : facts.optimizers())
      if (one.number == event.row.subject) stepped.insert(one.name);
  }
  double few = 0, all = 0;
  for (const auto& [name, parameter] : facts.parameters()) {
    if (parameter.optimizer.empty() || !parameter.requires_grad || parameter.elements < 0) continue;
    const auto elements = static_cast<double>(parameter.elements);
    all += elements;
    few += stepped.contains(parameter.optimizer) ? elements : 0;
  }
  return few > 0 && kTimes * few <= all;
}

}  // namespace luff::rules

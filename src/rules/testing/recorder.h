#pragma once
#include <string>
#include <utility>
#include <vector>

#include "luff/rules/choice.h"
#include "luff/rules/evaluator.h"
#include "rules/testing/fake_trial.h"

namespace luff::rules::testing {

/// Findings of the rules that `text` selects (as for --rules) over a whole trial; none if that fails.
inline std::vector<Finding> FindingsOf(const query::Trial& trial, const std::string& text, ParameterSet set) {
  EvaluatorOptions options;
  Result<std::vector<Choice>> choices = ParseChoices(text, set);
  if (!choices.ok()) return {};
  options.choices = std::move(choices).value();
  Result<std::unique_ptr<Evaluator>> evaluator = Evaluator::Open(options, nullptr);
  if (!evaluator.ok()) return {};
  const Result<std::size_t> done = evaluator.value()->Advance(trial, 1'000'000);
  if (!done.ok() || !evaluator.value()->Finish(trial).ok()) return {};
  return evaluator.value()->findings();
}

}  // namespace luff::rules::testing

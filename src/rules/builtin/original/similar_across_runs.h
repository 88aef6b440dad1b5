#pragma once
#include <memory>
#include <vector>

#include "luff/query/trial.h"
#include "luff/rules/rule.h"
#include "rules/kit/select.h"

namespace luff::rules::similar_across_runs {

struct Tolerance {
  double rtol = 1e-5, atol = 1e-8;
};
using Others = std::vector<std::unique_ptr<query::Trial>>;

/// Makes the rule over runs that are already open. `by_mode`: compares steps by mode and number in that mode,
/// and reports only the first that differs; otherwise by global step, and reports each.
[[nodiscard]] std::unique_ptr<Rule> MakeSimilarAcrossRuns(TensorSelector selector, Others others,
                                                          const Tolerance& tolerance, bool by_mode);

}  // namespace luff::rules::similar_across_runs

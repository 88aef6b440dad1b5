#include "server/finding_steps.h"

#include <algorithm>

namespace luff::server {

FindingSteps GlobalStepsOf(const query::Trial& trial, const rules::Finding& finding) {
  const auto mode = query::ParseMode(finding.mode);
  const auto global = [&](std::int64_t step) {
    if (!mode.ok()) return finding.global_step;
    const auto found = trial.FindStep(step, *mode);
    return found.ok() ? found->global_step : finding.global_step;
  };
  const std::int64_t since = global(finding.since_step);
  return {since, std::max(since, global(finding.last_step))};
}

}  // namespace luff::server

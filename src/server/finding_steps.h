#pragma once
#include <cstdint>

#include "luff/query/trial.h"
#include "luff/rules/finding.h"

namespace luff::server {

/// Where a finding lies on the axis of global steps; its own numbers are steps of its mode.
struct FindingSteps {
  std::int64_t since = 0, last = 0;
};
/// Of a step that the run does not have, the one at which the finding was told.
[[nodiscard]] FindingSteps GlobalStepsOf(const query::Trial& trial, const rules::Finding& finding);

}  // namespace luff::server

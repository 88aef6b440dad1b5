#pragma once
#include <vector>

#include <nlohmann/json.hpp>

#include "luff/profile/time_report.h"
#include "luff/rules/finding.h"

/// Where the time of a run went, as JSON: `luff profile --json`, and the route runs/RUN/profile.
namespace luff::server {

/// `price_per_hour`: of a machine, in any currency; 0: not known.
[[nodiscard]] nlohmann::ordered_json DescribeTime(const query::Trial& trial,
                                                  const profile::TimeReport& report,
                                                  const std::vector<rules::Finding>& findings,
                                                  const profile::Machines& machines, double price_per_hour);

}  // namespace luff::server

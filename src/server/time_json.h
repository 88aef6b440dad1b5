#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "luff/profile/stack_report.h"
#include "luff/profile/time_report.h"
#include "luff/profile/trace_report.h"
#include "luff/rules/finding.h"

/// Where the time of a run went, as JSON: `luff profile --json`, and the route runs/RUN/profile.
namespace luff::server {

/// What is told of the time of a run. What it refers to outlives it.
struct ToldTime {
  const query::Trial& trial;
  const profile::TimeReport& report;
  const std::vector<rules::Finding>& findings;
  const profile::Machines& machines;
  const profile::StackReport& stacks;
  const profile::TraceReport& traces;
};
struct TimeOptions {
  double price_per_hour = 0;           // of a machine, in any currency; 0: not known
  std::size_t most_stalls = SIZE_MAX;  // that are told
  std::string run = {};                // what stands before paths within the run
};
[[nodiscard]] nlohmann::ordered_json DescribeTime(const ToldTime& told, const TimeOptions& options);

}  // namespace luff::server

#pragma once
#include <string>

#include <nlohmann/json.hpp>

#include "luff/profile/trace_report.h"

/// The traces of a worker, as JSON: the member `traces` of `luff profile --json` and of the route
/// runs/RUN/profile.
namespace luff::server {

/// `run`: what stands before the worker's folder in the paths of files: the run's path and a slash, or
/// nothing.
[[nodiscard]] nlohmann::ordered_json DescribeTraces(const profile::TraceReport& report,
                                                    const std::string& run);

}  // namespace luff::server

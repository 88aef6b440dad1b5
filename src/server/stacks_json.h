#pragma once
#include <cstddef>

#include <nlohmann/json.hpp>

#include "luff/profile/stack_report.h"

/// Where processes stand, as JSON: members `stalls`, `stalls_left_out` and `lines` of `luff profile --json`
/// and of the route runs/RUN/profile.
namespace luff::server {

/// Adds the members to `json`; `most`: stalls that are told, with the stacks of all threads.
void AddStacks(const profile::StackReport& report, std::size_t most, nlohmann::ordered_json* json);

}  // namespace luff::server

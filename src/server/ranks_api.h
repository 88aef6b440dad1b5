#pragma once
#include "server/payload.h"
#include "server/run_api.h"

/// What each rank did at each step, beside the others.
namespace luff::server {

struct RanksQuestion {
  std::int64_t from = 0, to = INT64_MAX;  // global steps, both included
  std::size_t points = 256;               // at least 1
};

/// Adds the arrays of docs/spec/http-api.md, section 4.
[[nodiscard]] Status AddRanks(const query::Trial& trial, const RanksQuestion& question, Payload* payload);

/// runs/RUN/ranks
[[nodiscard]] Result<Response> RanksRoute(const ListedRun& listed, OpenRun& run, const Request& request);

}  // namespace luff::server

#pragma once
#include "server/heat_map.h"
#include "server/payload.h"
#include "server/run_api.h"

/// Norms of all gradients together, and how far updates go: docs/spec/http-api.md, section 5.
namespace luff::server {

/// Adds, for at most `points` columns of an overview, bounds of the root of the sum of the squares of all
/// gradients' norms, and of the update ratios of all weights. Of the norm, both bounds are its value where
/// each gradient was recorded once in the column.
void AddNorms(const Overview& overview, const query::Trial& trial, std::size_t points, Payload* payload);
/// runs/RUN/norms
[[nodiscard]] Result<Response> NormsRoute(const ListedRun& listed, OpenRun& run, const Request& request);

}  // namespace luff::server

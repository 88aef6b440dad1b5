#pragma once
#include "server/run_api.h"

/// What is known about one tensor, and its values as they were recorded.
namespace luff::server {

/// runs/RUN/tensors/ID
[[nodiscard]] Result<Response> TensorRoute(const ListedRun& listed, OpenRun& run, const Request& request);
/// runs/RUN/rows: curves without buckets
[[nodiscard]] Result<Response> RowsRoute(const ListedRun& listed, OpenRun& run, const Request& request);
/// runs/RUN/pages: what the rules of the run's findings say about themselves
[[nodiscard]] Result<Response> PagesRoute(const ListedRun& listed, OpenRun& run, const Request& request);

}  // namespace luff::server

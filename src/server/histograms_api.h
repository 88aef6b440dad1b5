#pragma once
#include "server/payload.h"
#include "server/run_api.h"

/// Histograms of one tensor over steps.
namespace luff::server {

struct HistogramsQuestion {
  query::TensorId tensor = 0;
  std::int64_t from = 0, to = INT64_MAX;  // global steps, both included
  std::size_t points = 128, bins = 128;   // at least 1
  bool log = false;
};

/// Adds the arrays of docs/spec/http-api.md, section 4. Histograms of a bucket of 2^k steps are summed up.
/// Where none were recorded they are made from raw values, one for each bucket.
[[nodiscard]] Status AddHistograms(const query::Trial& trial, const HistogramsQuestion& question,
                                   Payload* payload);

/// runs/RUN/histograms
[[nodiscard]] Result<Response> HistogramsRoute(const ListedRun& listed, OpenRun& run, const Request& request);

}  // namespace luff::server

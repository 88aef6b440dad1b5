#pragma once
#include <string>
#include <vector>

#include "server/run_list.h"

namespace luff::server {

/// Prometheus' text format 0.0.4 over the cards of runs: docs/spec/metrics.md. Runs that ended more than 15
/// minutes ago are left out, and those beyond kMaxRuns are counted only.
[[nodiscard]] std::string Metrics(const std::vector<ListedRun>& runs, std::size_t open_runs,
                                  std::int64_t now_unix_ns);
inline constexpr std::size_t kMaxRuns = 1000;

}  // namespace luff::server

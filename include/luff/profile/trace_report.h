#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "luff/profile/kineto_trace.h"

/// What is told of the traces of one worker: by `luff profile`, the page and reports.
namespace luff::profile {

/// All that were asked for, and the last one that was made in short.
struct TraceReport {
  std::uint32_t worker = 0;
  std::vector<TraceFile> files;
  std::optional<TraceFile> last;        // of those that were made
  std::optional<TraceSummary> summary;  // of the last one
  std::string problem;                  // why there is none
};
using Summarise = std::function<Result<TraceSummary>(const TraceFile&)>;
/// `summarise`: by default SummariseTrace.
[[nodiscard]] TraceReport TraceReportOf(const query::Trial& trial, std::uint32_t worker,
                                        const Summarise& summarise = {});

/// As SummariseTrace. Further errors: kOutOfRange for a file of more than `most_bytes`, kUnavailable for one
/// that cannot be read and has fewer bytes than it had when it was written.
[[nodiscard]] Result<TraceSummary> SummariseTraceOfAtMost(std::uint64_t most_bytes, const std::string& run,
                                                          std::uint32_t worker, const TraceFile& trace);

}  // namespace luff::profile

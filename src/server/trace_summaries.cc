#include "server/trace_summaries.h"

#include "base/format.h"
#include "luff/base/work_bound.h"

namespace luff::server {
namespace {

constexpr std::size_t kMostKnown = 64;

Status WithoutPath(const Status& status, const std::string& run) {
  std::string text(status.message());
  if (const std::size_t at = text.find(run + "/"); at != std::string::npos) text.erase(at, run.size() + 1);
  return {status.code(), text};
}

}  // namespace

Result<profile::TraceSummary> TraceSummaries::Of(const std::string& run, std::uint32_t worker,
                                                 const profile::TraceFile& trace) {
  if (const auto known = known_.find(worker); known != known_.end() && known->second.file == trace.file)
    return known->second.summary;
  if (trace.bytes > most_bytes_)
    return OutOfRange(
        fmt::format("a trace of {} MB is read by `luff profile` and reports only", trace.bytes / 1'000'000));
  const WorkBound unbounded(nullptr);  // it is kept for all who ask later
  auto summary = profile::SummariseTraceOfAtMost(most_bytes_, run, worker, trace);
  if (!summary.ok()) summary = WithoutPath(summary.status(), run);
  // A copy of a run may get its file, or the rest of it, later.
  if (!summary.ok() && (summary.status().code() == StatusCode::kNotFound ||
                        summary.status().code() == StatusCode::kUnavailable))
    return summary;
  if (known_.size() >= kMostKnown) known_.clear();
  known_.insert_or_assign(worker, Known{trace.file, summary});
  return summary;
}

}  // namespace luff::server

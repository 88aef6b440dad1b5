#include "luff/profile/trace_report.h"

#include "base/bounded_read.h"
#include "base/format.h"

namespace luff::profile {

TraceReport TraceReportOf(const query::Trial& trial, std::uint32_t worker, const Summarise& summarise) {
  TraceReport report;
  report.worker = worker;
  report.files = TracesOf(trial, worker);
  for (const TraceFile& file : report.files) {
    if (!file.file.empty()) report.last = file;
  }
  if (!report.last) return report;
  auto summary = summarise ? summarise(*report.last) : SummariseTrace(trial.path(), worker, *report.last);
  if (summary.ok())
    report.summary = std::move(*summary);
  else
    report.problem = summary.status().ToString();
  return report;
}

Result<TraceSummary> SummariseTraceOfAtMost(std::uint64_t most_bytes, const std::string& run,
                                            std::uint32_t worker, const TraceFile& trace) {
  // The last three names lie in the run, which others may have made.
  LUFF_ASSIGN_OR_RETURN(const std::string bytes,
                        ReadRegular(fmt::format("{}/w{:04}/{}", run, worker, trace.file), most_bytes, 3));
  auto summary = SummariseTraceUntrusted(bytes);
  if (!summary.ok() && bytes.size() < trace.bytes)
    return Unavailable(fmt::format("{}: {} of its {} bytes are here: it is being copied, or was cut",
                                   trace.file, bytes.size(), trace.bytes));
  return summary;
}

}  // namespace luff::profile

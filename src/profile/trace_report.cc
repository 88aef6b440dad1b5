#include "luff/profile/kineto_trace.h"

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

}  // namespace luff::profile

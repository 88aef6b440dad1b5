#include "luff/profile/stack_report.h"

#include <algorithm>

#include "base/format.h"
#include "luff/profile/input.h"

namespace luff::profile {

std::string StallText(const Stall& stall, bool several) {
  const std::string who = several ? fmt::format("rank {}", stall.worker) : "the training";
  const std::string stand = StandOf(stall), time = TimeText(stall.seconds);
  const bool begin = stall.after_step < 0;
  if (stall.last) {  // a report, an upload: no hang
    return fmt::format("{} ended at least {} after {}{}{}", who, time,
                       begin ? "its begin" : fmt::format("global step {}, its last", stall.after_step),
                       stand.empty() ? "" : "; it was in ", stand);
  }
  return fmt::format("{} {} still for at least {} {}{}{}", who, stall.over ? "once stood" : "stands", time,
                     begin ? "from its begin" : fmt::format("after global step {}", stall.after_step),
                     stand.empty() ? "" : ": in ", stand);
}

StackReport StackReportOf(const query::Trial& trial, std::uint32_t worker) {
  StackReport report;
  report.stalls = StallsOf(trial);
  report.culprits = CulpritsOf(trial, report.stalls);
  std::ranges::stable_partition(report.stalls, [](const Stall& stall) { return !stall.over; });
  report.several = trial.workers().size() > 1;
  report.lines = LinesOf(trial, worker);
  return report;
}

}  // namespace luff::profile

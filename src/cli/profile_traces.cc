#include "cli/profile_traces.h"

#include <algorithm>

#include "base/format.h"
#include "base/text_escape.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "luff/profile/input.h"
#include "luff/profile/machine.h"

namespace luff::cli {
namespace {

using profile::BytesText;
using profile::OperatorTime;
using profile::TimeText;

constexpr std::size_t kMostRows = 8;

void PrintTimes(const char* what, const std::vector<OperatorTime>& times, double whole_s) {
  if (times.empty()) return;
  fmt::print("    {:<44} {:>7} {:>9} {:>9} {:>7}\n", what, "share", "itself", "all", "calls");
  for (std::size_t i = 0; i < std::min(times.size(), kMostRows); ++i) {
    const OperatorTime& one = times[i];
    std::string name = Escaped(one.name);
    constexpr std::size_t kWidth = 42;
    if (name.size() > kWidth) name = "..." + name.substr(name.size() - kWidth + 3);
    fmt::print("      {:<42} {:>5.1f} % {:>9} {:>9} {:>7}\n", name,
               whole_s > 0 ? 100 * one.self_s / whole_s : 0.0, TimeText(one.self_s), TimeText(one.total_s),
               one.calls);
  }
}

std::string StepsText(const profile::TraceFile& file) {
  if (file.steps == 0) return fmt::format("a part of TRAIN step {}", file.first_step);  // it ended early
  return file.steps == 1
             ? fmt::format("TRAIN step {}", file.first_step)
             : fmt::format("TRAIN steps {} to {}", file.first_step, file.first_step + file.steps - 1);
}

}  // namespace

void PrintTraces(const profile::TraceReport& report, const std::string& run) {
  if (report.last) {
    const profile::TraceFile& last = *report.last;
    fmt::print("\n  trace of {} ({}{}{}; writing it took {})\n", StepsText(last),
               report.summary ? Plural(report.summary->events, "event", "events") + ", " : "",
               BytesText(static_cast<double>(last.bytes)), report.problem.empty() ? "" : ", cannot be read",
               TimeText(last.cost_s));
    fmt::print("    {}/w{:04}/{}\n", Escaped(run), report.worker, Escaped(last.file));
    if (!last.rule.empty()) fmt::print("    asked for by an action, because of {}\n", Escaped(last.rule));
  }
  if (!report.problem.empty()) fmt::print("    {}\n", Wrapped(Escaped(report.problem), 4, 100));
  if (report.summary) {
    const profile::TraceSummary& all = *report.summary;
    if (all.span_s > 0)
      fmt::print("    the thread that trains: {} of {} in operators, {:.0f} % in Python and the rest\n",
                 TimeText(all.operators_s), TimeText(all.span_s), 100 * (1 - all.operators_s / all.span_s));
    if (all.device_span_s > 0)
      fmt::print(
          "    devices: busy {} of {}; idle since the host had launched nothing {}, since a task waited {}\n",
          TimeText(all.device_busy_s), TimeText(all.device_span_s), TimeText(all.idle_host_s),
          TimeText(all.idle_kernel_s));
    PrintTimes("operators", all.operators, all.span_s);
    PrintTimes("functions of Python", all.functions, all.span_s);
    PrintTimes("kernels", all.kernels, all.device_span_s);
    PrintTimes("waits for a device", all.syncs, all.span_s);
    for (std::size_t i = 0; i < std::min(all.copies.size(), kMostRows); ++i)
      fmt::print("    copies: {}: {} in {}, {}\n", Escaped(all.copies[i].kind),
                 BytesText(static_cast<double>(all.copies[i].bytes)),
                 Plural(all.copies[i].calls, "call", "calls"), TimeText(all.copies[i].seconds));
  }
  for (const profile::TraceFile& file : report.files) {
    if (!file.refused.empty())
      fmt::print("  no trace at TRAIN step {}: {}\n", file.first_step, Escaped(file.refused));
  }
}

void PrintTraced(const std::vector<std::string>& files, std::size_t indent) {
  constexpr std::size_t kShown = 2;
  for (std::size_t i = 0; i < std::min(files.size(), kShown); ++i)
    fmt::print("{:{}}traced: {}\n", "", indent, Escaped(files[i]));
  if (files.size() > kShown) fmt::print("{:{}}and {} more (--json)\n", "", indent, files.size() - kShown);
}

}  // namespace luff::cli

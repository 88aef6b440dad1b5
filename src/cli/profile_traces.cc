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

constexpr std::size_t kMostRows = 8, kMostJsonRows = 50;

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

Json TimesJson(const std::vector<OperatorTime>& times) {
  Json all = Json::array();
  for (std::size_t i = 0; i < std::min(times.size(), kMostJsonRows); ++i)
    all.push_back({{"name", times[i].name},
                   {"calls", times[i].calls},
                   {"self", times[i].self_s},
                   {"total", times[i].total_s}});
  return all;
}

std::string StepsText(const profile::TraceFile& file) {
  if (file.steps == 0) return fmt::format("a part of TRAIN step {}", file.first_step);  // it ended early
  return file.steps == 1
             ? fmt::format("TRAIN step {}", file.first_step)
             : fmt::format("TRAIN steps {} to {}", file.first_step, file.first_step + file.steps - 1);
}

}  // namespace

TracesView::TracesView(const query::Trial& trial, std::uint32_t worker)
    : folder_(fmt::format("{}/w{:04}/", trial.path(), worker)),
      files_(profile::TracesOf(trial, worker)) {
  for (const profile::TraceFile& file : files_) {
    if (!file.file.empty()) last_ = file;
  }
  if (!last_) return;
  auto summary = profile::SummariseTrace(trial.path(), worker, *last_);
  if (summary.ok())
    summary_ = std::move(*summary);
  else
    problem_ = summary.status().ToString();
}

void TracesView::Print() const {
  if (last_) {
    fmt::print("\n  trace of {} ({}{}{}; writing it took {})\n", StepsText(*last_),
               summary_ ? Plural(summary_->events, "event", "events") + ", " : "",
               BytesText(static_cast<double>(last_->bytes)), problem_.empty() ? "" : ", cannot be read",
               TimeText(last_->cost_s));
    fmt::print("    {}{}\n", Escaped(folder_), Escaped(last_->file));
    if (!last_->rule.empty()) fmt::print("    asked for by an action, because of {}\n", Escaped(last_->rule));
  }
  if (!problem_.empty()) fmt::print("    {}\n", Wrapped(Escaped(problem_), 4, 100));
  if (summary_) {
    const profile::TraceSummary& all = *summary_;
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
  for (const profile::TraceFile& file : files_) {
    if (!file.refused.empty())
      fmt::print("  no trace at TRAIN step {}: {}\n", file.first_step, Escaped(file.refused));
  }
}

Json TracesView::Described() const {
  Json all = Json::array();
  for (const profile::TraceFile& file : files_) {
    Json one{
        {"first_step", file.first_step}, {"steps", file.steps}, {"bytes", file.bytes}, {"cost", file.cost_s}};
    one["file"] = file.file.empty() ? Json(nullptr) : Json(folder_ + file.file);
    one["refused"] = file.refused.empty() ? Json(nullptr) : Json(file.refused);
    one["finding"] = file.finding.empty() ? Json(nullptr) : Json(file.finding);
    one["rule"] = file.rule.empty() ? Json(nullptr) : Json(file.rule);
    if (last_ && file.file == last_->file && summary_) {
      const profile::TraceSummary& summary = *summary_;
      Json copies = Json::array();
      for (const profile::TraceSummary::Copy& copy : summary.copies)
        copies.push_back(
            {{"kind", copy.kind}, {"calls", copy.calls}, {"bytes", copy.bytes}, {"seconds", copy.seconds}});
      one["summary"] = {{"events", summary.events},
                        {"span", summary.span_s},
                        {"in_operators", summary.operators_s},
                        {"operators", TimesJson(summary.operators)},
                        {"functions", TimesJson(summary.functions)},
                        {"kernels", TimesJson(summary.kernels)},
                        {"syncs", TimesJson(summary.syncs)},
                        {"copies", std::move(copies)},
                        {"device",
                         {{"span", summary.device_span_s},
                          {"busy", summary.device_busy_s},
                          {"idle_host", summary.idle_host_s},
                          {"idle_kernel", summary.idle_kernel_s},
                          {"idle_unknown", summary.idle_unknown_s}}}};
    }
    all.push_back(std::move(one));
  }
  return all;
}

void PrintTraced(const std::vector<std::string>& files, std::size_t indent) {
  constexpr std::size_t kShown = 2;
  for (std::size_t i = 0; i < std::min(files.size(), kShown); ++i)
    fmt::print("{:{}}traced: {}\n", "", indent, Escaped(files[i]));
  if (files.size() > kShown) fmt::print("{:{}}and {} more (--json)\n", "", indent, files.size() - kShown);
}

}  // namespace luff::cli

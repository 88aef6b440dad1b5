#include "cli/profile_stacks.h"

#include <algorithm>
#include <map>

#include "base/format.h"
#include "base/text_escape.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "luff/profile/input.h"

namespace luff::cli {
namespace {

using profile::TimeText;

constexpr std::size_t kMostFramesShown = 12, kMostLinesShown = 3;
constexpr std::uint64_t kLeastSamples = 5;  // of a phase that is shown
constexpr double kLeastLineShare = 0.05;

std::string PhaseText(format::Phase phase) {
  return std::string(format::PhaseName(static_cast<std::uint8_t>(phase)));
}

Json FramesJson(const profile::StackThread& thread) {
  Json frames = Json::array();
  for (const profile::StackFrame& frame : thread.frames)
    frames.push_back(
        {{"function", frame.function}, {"file", frame.file}, {"line", frame.line}, {"own", frame.own}});
  return frames;
}

Json ThreadJson(const profile::StackThread& thread) {
  Json json{{"thread", thread.thread}, {"name", thread.name},   {"state", thread.state},
            {"call", thread.call},     {"place", thread.place}, {"on", thread.on},
            {"trains", thread.trains}, {"gil", thread.has_gil}, {"frames", FramesJson(thread)}};
  if (thread.process != 0) json["process"] = thread.process;
  return json;
}

void PrintFrames(const profile::StackThread& thread) {
  const std::size_t shown = std::min(thread.frames.size(), kMostFramesShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const profile::StackFrame& frame = thread.frames[i];
    fmt::print("    {} {}:{} {}\n", frame.own ? '>' : ' ', Escaped(frame.file),
               frame.line < 0 ? "?" : std::to_string(frame.line), Escaped(frame.function));
  }
  if (thread.frames.size() > shown)
    fmt::print("      and {} further out; --json has all\n", thread.frames.size() - shown);
}

}  // namespace

StacksView::StacksView(const query::Trial& trial, std::uint32_t worker)
    : stalls_(profile::StallsOf(trial)),
      culprits_(profile::CulpritsOf(trial, stalls_)),
      lines_(profile::LinesOf(trial, worker)),
      several_(trial.workers().size() > 1) {}

void StacksView::PrintStalls() const {
  for (const profile::Stall& stall : stalls_) {
    const std::string who = several_ ? fmt::format("rank {}", stall.worker) : "the training";
    const std::string since =
        stall.after_step < 0 ? "from its begin" : fmt::format("after global step {}", stall.after_step);
    const std::string stand = profile::StandOf(stall);
    if (stall.last) {  // a report, an upload: no hang
      const std::string after =
          stall.after_step < 0 ? "its begin" : fmt::format("global step {}, its last", stall.after_step);
      fmt::print("{}\n",
                 Wrapped(fmt::format("{} ended at least {} after {}{}{}", who, TimeText(stall.seconds), after,
                                     stand.empty() ? "" : "; it was in ", Escaped(stand)),
                         0, 100));
      continue;
    }
    fmt::print("{}\n", Wrapped(fmt::format("{} {} still for at least {} {}{}{}", who,
                                           stall.over ? "once stood" : "stands", TimeText(stall.seconds),
                                           since, stand.empty() ? "" : ": in ", Escaped(stand)),
                               0, 100));
    if (stall.over) continue;
    for (const profile::StackThread& thread : stall.threads) {
      if (thread.trains) PrintFrames(thread);
    }
    if (!stall.no_stack.empty()) fmt::print("      no stack: {}\n", Escaped(stall.no_stack));
  }
  if (!culprits_.empty()) fmt::print("{}\n", Wrapped(Escaped(culprits_), 0, 100));
  if (!stalls_.empty()) fmt::print("\n");
}

void StacksView::PrintLines() const {
  std::map<format::Phase, std::uint64_t> samples;
  for (const profile::LineTime& line : lines_) samples[line.phase] += line.count;
  for (const auto& [phase, count] : samples) {
    if (count < kLeastSamples) continue;
    std::size_t shown = 0;
    for (const profile::LineTime& line : lines_) {
      if (line.phase != phase || line.share < kLeastLineShare || shown == kMostLinesShown) continue;
      const std::string label = shown++ == 0 ? "long " + PhaseText(phase) : "";
      const std::size_t slash = line.at.file.rfind('/');
      fmt::print("  {:<15} {:>3.0f} %  {}:{} {}{}\n", label, 100 * line.share,
                 Escaped(slash == std::string::npos ? line.at.file : line.at.file.substr(slash + 1)),
                 line.at.line < 0 ? "?" : std::to_string(line.at.line), Escaped(line.at.function),
                 line.inside.empty() ? "" : Escaped(" (in " + line.inside + ")"));
    }
  }
}

Json StacksView::Stalls() const {
  Json all = Json::array();
  for (const profile::Stall& stall : stalls_) {
    Json one{{"worker", stall.worker},
             {"after_step", stall.after_step},
             {"seconds", stall.seconds},
             {"looks", stall.looks},
             {"same", stall.same},
             {"phase", stall.phase},
             {"over", stall.over},
             {"stands", profile::StandOf(stall)},
             {"waits", profile::WaitOf(stall)}};
    one["no_stack"] = stall.no_stack.empty() ? Json(nullptr) : Json(stall.no_stack);
    one["threads"] = Json::array();
    for (const profile::StackThread& thread : stall.threads) one["threads"].push_back(ThreadJson(thread));
    one["processes"] = Json::array();
    for (const profile::StackThread& process : stall.processes)
      one["processes"].push_back(ThreadJson(process));
    one["others"] = culprits_.empty() ? Json(nullptr) : Json(culprits_);
    all.push_back(std::move(one));
  }
  return all;
}

Json StacksView::Lines() const {
  Json all = Json::array();
  for (const profile::LineTime& line : lines_)
    all.push_back({{"phase", PhaseText(line.phase)},
                   {"file", line.at.file},
                   {"line", line.at.line},
                   {"function", line.at.function},
                   {"inside", line.inside},
                   {"samples", line.count},
                   {"share", line.share}});
  return all;
}

}  // namespace luff::cli

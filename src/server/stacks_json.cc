#include "server/stacks_json.h"

#include <algorithm>
#include <string>

namespace luff::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostLines = 100;

Json TextOrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json Frames(const profile::StackThread& thread) {
  Json frames = Json::array();
  for (const profile::StackFrame& frame : thread.frames)
    frames.push_back(
        {{"function", frame.function}, {"file", frame.file}, {"line", frame.line}, {"own", frame.own}});
  return frames;
}

Json Threads(const std::vector<profile::StackThread>& threads) {
  Json all = Json::array();
  for (const profile::StackThread& thread : threads) {
    all.push_back({{"thread", thread.thread},
                   {"name", thread.name},
                   {"state", thread.state},
                   {"call", thread.call},
                   {"place", thread.place},
                   {"on", thread.on},
                   {"trains", thread.trains},
                   {"gil", thread.has_gil},
                   {"frames", Frames(thread)}});
    if (thread.process != 0) all.back()["process"] = thread.process;
  }
  return all;
}

}  // namespace

void AddStacks(const profile::StackReport& report, std::size_t most, Json* json) {
  Json& stalls = (*json)["stalls"] = Json::array();
  const std::size_t told = std::min(most, report.stalls.size());
  for (std::size_t i = 0; i < told; ++i) {
    const profile::Stall& stall = report.stalls[i];
    stalls.push_back({{"worker", stall.worker},
                      {"after_step", stall.after_step},
                      {"seconds", stall.seconds},
                      {"looks", stall.looks},
                      {"same", stall.same},
                      {"phase", stall.phase},
                      {"over", stall.over},
                      {"text", profile::StallText(stall, report.several)},
                      {"stands", profile::StandOf(stall)},
                      {"waits", profile::WaitOf(stall)},
                      {"no_stack", TextOrNull(stall.no_stack)},
                      {"threads", Threads(stall.threads)},
                      {"processes", Threads(stall.processes)},
                      {"others", TextOrNull(report.culprits)}});
  }
  (*json)["stalls_left_out"] = report.stalls.size() - told;
  Json& lines = (*json)["lines"] = Json::array();
  for (std::size_t i = 0; i < std::min(kMostLines, report.lines.size()); ++i) {
    const profile::LineTime& line = report.lines[i];
    lines.push_back({{"phase", format::PhaseName(static_cast<std::uint8_t>(line.phase))},
                     {"file", line.at.file},
                     {"line", line.at.line},
                     {"function", line.at.function},
                     {"inside", line.inside},
                     {"samples", line.count},
                     {"share", line.share}});
  }
}

}  // namespace luff::server

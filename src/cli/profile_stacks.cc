#include "cli/profile_stacks.h"

#include <algorithm>
#include <map>

#include "base/format.h"
#include "base/text_escape.h"
#include "cli/report.h"
#include "cli/terminal.h"

namespace luff::cli {
namespace {

constexpr std::size_t kMostFramesShown = 12, kMostLinesShown = 3;
constexpr std::uint64_t kLeastSamples = 5;  // of a phase that is shown
constexpr double kLeastLineShare = 0.05;

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

void PrintStalls(const profile::StackReport& report) {
  for (const profile::Stall& stall : report.stalls) {
    fmt::print("{}\n", Wrapped(Escaped(profile::StallText(stall, report.several)), 0, 100));
    if (stall.over) continue;
    for (const profile::StackThread& thread : stall.threads) {
      if (thread.trains) PrintFrames(thread);
    }
    if (!stall.no_stack.empty()) fmt::print("      no stack: {}\n", Escaped(stall.no_stack));
  }
  if (!report.culprits.empty()) fmt::print("{}\n", Wrapped(Escaped(report.culprits), 0, 100));
  if (!report.stalls.empty()) fmt::print("\n");
}

void PrintLines(const profile::StackReport& report) {
  std::map<format::Phase, std::uint64_t> samples;
  for (const profile::LineTime& line : report.lines) samples[line.phase] += line.count;
  for (const auto& [phase, count] : samples) {
    if (count < kLeastSamples) continue;
    std::size_t shown = 0;
    for (const profile::LineTime& line : report.lines) {
      if (line.phase != phase || line.share < kLeastLineShare || shown == kMostLinesShown) continue;
      const std::string label =
          shown++ == 0 ? fmt::format("long {}", format::PhaseName(static_cast<std::uint8_t>(phase))) : "";
      const std::size_t slash = line.at.file.rfind('/');
      fmt::print("  {:<15} {:>3.0f} %  {}:{} {}{}\n", label, 100 * line.share,
                 Escaped(slash == std::string::npos ? line.at.file : line.at.file.substr(slash + 1)),
                 line.at.line < 0 ? "?" : std::to_string(line.at.line), Escaped(line.at.function),
                 line.inside.empty() ? "" : Escaped(" (in " + line.inside + ")"));
    }
  }
}

}  // namespace luff::cli

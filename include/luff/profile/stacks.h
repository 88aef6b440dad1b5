#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "luff/format/layout.h"
#include "luff/query/trial.h"

/// Where processes stand, from the documents `stall` and `lines` of a run's workers (docs/spec/evidence.md).
namespace luff::profile {

struct StackFrame {
  std::string function, file;
  std::int64_t line = -1;  // -1: not known
  bool own = false;        // the training's own code
};

/// One thread as the kernel and as Python see it. "" is what is not known.
struct StackThread {
  std::int64_t thread = 0, process = 0;  // `process`: of one that the training has started, else 0
  std::string name, state, call, place, on;
  bool trains = false, has_gil = false;
  std::vector<StackFrame> frames;  // the innermost first
};

/// A worker without progress, as it was seen last.
struct Stall {
  std::uint32_t worker = 0;
  std::int64_t after_step = -1;      // global step; -1: before the first
  double seconds = 0;                // without progress by then
  std::int64_t looks = 0, same = 0;  // how often it was looked at, and how often in a row it stood the same
  std::string phase, no_stack;       // why there is no stack of Python; "" if there is one
  std::vector<StackThread> threads, processes;
  bool over = false;  // a step came later, or the training ended as it should
  bool last = false;  // no step came later: it stood between its last step and its end
};

/// Nothing if it is none.
[[nodiscard]] std::optional<Stall> ParseStallUntrusted(std::string_view json);
/// The last stall of each worker that had one, ascending.
[[nodiscard]] std::vector<Stall> StallsOf(const query::Trial& trial);

/// "train.py:88 log_images": the training's own innermost line, or the innermost one. "" without frames.
[[nodiscard]] std::string PlaceOf(const StackThread& thread);
/// What the thread that trains waits for, by what its frames and the kernel say, e.g. "waits in all_reduce of
/// torch.distributed", "waits in read() of /tmp/pipe". "" if neither says anything.
[[nodiscard]] std::string WaitOf(const Stall& stall);
/// Where one worker stands, and what it waits for: "train.py:88 log_images, which sleeps (clock_nanosleep)".
[[nodiscard]] std::string StandOf(const Stall& stall);
/// True if it waits for other ranks.
[[nodiscard]] bool WaitsForRanks(const Stall& stall);
/// Whom the workers in collective operations wait for, and what those do; "" if none is known.
[[nodiscard]] std::string CulpritsOf(const query::Trial& trial, const std::vector<Stall>& stalls);

/// A line of the training in which long waits were spent.
struct LineTime {
  format::Phase phase = format::Phase::kOther;
  StackFrame at;
  std::string inside;  // the innermost function there; "" if it is the line's own
  std::uint64_t count = 0;
  double share = 0;  // of the samples in this phase
};
/// The dearest first. `worker`'s; empty if there are none.
[[nodiscard]] std::vector<LineTime> LinesOf(const query::Trial& trial, std::uint32_t worker);
[[nodiscard]] std::vector<LineTime> ParseLinesUntrusted(std::string_view json);

}  // namespace luff::profile

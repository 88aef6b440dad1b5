#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "luff/capture/phases.h"
#include "luff/store/writer.h"

/// The time of each thread, divided among phases. What wraps a call of the training says when a phase begins
/// and ends; a session reads, at the end of each of its steps, how far the sums have grown.
namespace luff::capture {

/// How a thread has spent its time since its clock began.
struct PhaseSums {
  std::array<std::int64_t, format::kPhaseCount> ns{};
  std::array<std::uint32_t, format::kPhaseCount> begins{};
  std::uint64_t waits = 0;  // that began
  std::int64_t at_ns = 0;   // CLOCK_MONOTONIC
};

/// When a step with phases ended, and where.
struct PhasesEnd {
  std::int64_t at_ns = 0;   // CLOCK_MONOTONIC
  std::int32_t thread = 0;  // the system's number of the thread
};

/// What a thread does now, as another thread may ask.
struct ThreadNow {
  std::uint64_t pthread_id = 0;  // of pthread_self()
  format::Phase phase = format::Phase::kOther;
  std::int64_t since_ns = 0;  // CLOCK_MONOTONIC, in steps of 256 ns
  friend bool operator==(const ThreadNow&, const ThreadNow&) = default;
};
/// Nothing for a thread that never entered a phase, or has ended, or came after 64 others. **Thread-safe.**
[[nodiscard]] std::optional<ThreadNow> NowOf(std::int32_t thread) noexcept;

/// The same as EnterPhase(kLuff) and LeavePhase(kLuff), for callers that know the time. Begins no clock.
void EnterLuff(std::int64_t now_ns) noexcept;
void LeaveLuff(std::int64_t now_ns) noexcept;

/// A step's first call of `phase` began with a wait for data, which only its end told: takes the time off the
/// phase. At most what the phase has.
void BeganWithWait(format::Phase phase, std::int64_t ns, store::StepPhases* step) noexcept;

/// The steps of one session, on the thread that trains. Its calls come from one thread at a time.
class PhaseSteps {
 public:
  /// Call as the session's first step begins. That step lasts from here on, or, in a thread whose phases no
  /// session has read before, from the first phase that it entered (a collection of garbage aside).
  void BeginOnce() noexcept;
  /// The step ends now: fills in the phases of the calling thread since the last call. Leaves `out` empty, in
  /// a thread that never entered a phase.
  PhasesEnd EndStep(store::StepPhases* out) noexcept;

 private:
  PhaseSums last_;
  bool begun_ = false;
  std::uint64_t clock_ = 0;  // serial of the thread's clock that `last_` comes from
};

}  // namespace luff::capture

#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "luff/base/result.h"
#include "luff/query/trial.h"
#include "luff/store/control.h"

/// Stopping a job so that all workers leave after the same step. Contract: docs/spec/control.md.
namespace luff::actions {

/// Deadlines in seconds.
struct StopSettings {
  double lead_s =
      0.25;  // how far ahead of the fastest worker the first proposal names its step; doubled each time
  double answer_s = 5.0;     // how long to wait for all answers before the proposal is aborted
  double decision_s = 10.0;  // how long a worker waits at the step for commit or abort
  int proposals = 5;         // then the processes are ended by signal
  double leave_s = 60.0;     // after commit, before SIGTERM
  double swallow_s =
      3.0;  // after a worker went on beyond the step (it swallowed the exception), before SIGTERM
  double kill_s = 10.0;  // after SIGTERM, before SIGKILL
};

/// Decides; never waits, never touches a process or a clock itself. **Thread-compatible.**
class StopCoordinator {
 public:
  enum class State : std::uint8_t { kIdle, kWanted, kProposed, kCommitted, kTerminating, kKilling };
  enum class Signal : std::uint8_t { kNone, kTerminate, kKill };
  /// Writes one control record, gives its number.
  using Writer = std::function<Result<std::uint64_t>(const store::ControlRecord&)>;

  StopCoordinator(const StopSettings& settings, Writer writer)
      : settings_(settings),
        write_(std::move(writer)) {}

  /// Asks for a stop. The first request counts, later ones change nothing (exactly once).
  void Request(const std::string& reason, const std::string& finding_id);
  /// To be called often (every 20 ms while a stop is wanted). `now_ns` is monotonic. Signal: what the caller
  /// must send to all processes of the job now; each is asked for once.
  Signal Poll(std::int64_t now_ns, std::span<const query::WorkerInfo> workers,
              std::span<const std::pair<std::uint32_t, format::AckRow>> acks);

  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] bool wanted() const noexcept { return state_ != State::kIdle; }
  /// The step that was committed, -1 if none.
  [[nodiscard]] std::int64_t committed_step() const noexcept { return committed_step_; }
  /// What the coordinator has to tell people, e.g. why a signal was needed; "" if nothing.
  [[nodiscard]] const std::string& remark() const noexcept { return remark_; }

 private:
  void Propose(std::int64_t now_ns, std::int64_t furthest);
  bool Decide(const char* phase);  // false when it could not be written
  Signal Terminate(std::int64_t now_ns, std::string why);
  void Note(const std::string& text);

  const StopSettings settings_;
  const Writer write_;
  State state_ = State::kIdle;
  std::string reason_, finding_, remark_;
  std::deque<std::pair<std::int64_t, std::int64_t>> progress_;  // (ns, furthest TRAIN step), the last seconds
  int proposals_ = 0;
  std::uint64_t proposal_ = 0;
  std::int64_t proposed_step_ = -1, proposed_ns_ = 0;
  std::int64_t committed_step_ = -1, committed_ns_ = 0, swallowed_ns_ = 0, terminated_ns_ = 0;
};

}  // namespace luff::actions

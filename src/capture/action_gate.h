#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "luff/base/mutex.h"
#include "luff/capture/session.h"
#include "luff/store/control.h"

namespace luff::capture {

/// The worker's side of a two-phase action (docs/spec/control.md). The writer thread delivers records; the
/// training thread asks at step boundaries. **Thread-safe.**
///
/// A worker accepts a proposal only while its step lies ahead, and then waits at that step, for a bounded
/// time, for commit or abort. Nothing is carried out without a commit, and no worker aborts alone: a worker
/// whose time is up asks for an abort, and the log decides.
class ActionGate {
 public:
  enum class Verdict : std::uint32_t {
    kAccepted = 1,
    kTooLate = 2,
    kCarriedOut = 3,
    kRefused = 4,
    kFailed = 5,  // the call-back raised
    kAlone = 6,   // the log could be neither written nor read; continued as after an abort
  };
  /// `settle_s`: how long a worker whose time is up waits for the log's decision.
  explicit ActionGate(double settle_s = 5) : settle_s_(settle_s) {}

  [[nodiscard]] StopState state() const noexcept { return state_.load(std::memory_order_seq_cst); }
  /// Call when a TRAIN step has ended; `count` of them so far.
  void StepFinished(std::int64_t count) noexcept;
  /// `pump` is called repeatedly while this waits, if there is no writer thread.
  [[nodiscard]] StopState AtBoundary(std::int64_t train_step, const std::function<void()>& pump = {});
  [[nodiscard]] std::string reason();
  [[nodiscard]] std::int64_t finished_steps() const noexcept {
    return finished_.load(std::memory_order_relaxed);
  }

  /// What the kind "capture" does, which needs no consent of the training. `prepare` gets a proposal, on the
  /// thread that calls Take; false refuses it. `use` is called after a commit, at the step, by AtBoundary.
  /// Set it before anything else.
  struct Change {
    std::function<bool(const store::ControlRecord& proposal)> prepare;
    std::function<void()> use;
  };
  void OnCapture(Change change) { change_ = std::move(change); }
  /// Kinds that the training has opted into, besides "stop" and "capture".
  void Accept(std::span<const std::string> kinds);
  /// Returns the action for which AtBoundary returned kAct, once.
  [[nodiscard]] std::optional<PendingAction> TakeAction();
  void ActionDone(std::uint64_t control, bool done);

  /// Processes one control record; appends an answer to be written to `acks`.
  void Take(const store::ControlRecord& record, std::int64_t unix_ns, std::vector<format::AckRow>* acks);
  /// Returns the abort to decide because this worker's time is up; nothing otherwise.
  [[nodiscard]] std::optional<store::ControlRecord> AbortWanted();
  /// Moves the training thread's answers since the last call to `acks`.
  void TakeAnswers(std::vector<format::AckRow>* acks);
  /// Call when no more decisions will come.
  void Close() noexcept;

 private:
  enum class Decision : std::uint8_t { kOpen, kCommit, kAbort };
  using Clock = std::chrono::steady_clock;
  /// Returns false if time runs out before a decision.
  bool WaitForDecision(Clock::time_point until, const std::function<void()>& pump) LUFF_REQUIRES(mutex_);
  void Answer(Verdict verdict, std::int64_t train_step) LUFF_REQUIRES(mutex_);
  void Reset() LUFF_REQUIRES(mutex_);

  const double settle_s_;
  Change change_;
  std::atomic<StopState> state_{StopState::kNone};
  std::atomic<std::int64_t> finished_{0};
  Mutex mutex_;
  std::condition_variable decided_;
  std::set<std::string> kinds_ LUFF_GUARDED_BY(mutex_);
  store::ControlRecord open_ LUFF_GUARDED_BY(mutex_);  // the proposal; number 0: none
  Decision decision_ LUFF_GUARDED_BY(mutex_) = Decision::kOpen;
  bool abort_wanted_ LUFF_GUARDED_BY(mutex_) = false;
  std::optional<PendingAction> pending_ LUFF_GUARDED_BY(mutex_);
  std::string reason_ LUFF_GUARDED_BY(mutex_);
  std::vector<format::AckRow> answers_ LUFF_GUARDED_BY(mutex_);
  bool closed_ LUFF_GUARDED_BY(mutex_) = false;
};

}  // namespace luff::capture

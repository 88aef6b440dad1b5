#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/mutex.h"
#include "luff/capture/session.h"
#include "luff/store/control.h"

namespace luff::capture {

/// The worker's side of a stop in two phases. The writer thread brings records, the training thread asks at
/// step boundaries. **Thread-safe.**
///
/// A proposal is accepted only while its step lies ahead; whoever accepted waits there, bounded, for commit
/// or abort. Nothing is stopped without a commit.
class StopGate {
 public:
  enum class Verdict : std::uint32_t { kAccepted = 1, kTooLate = 2, kCarriedOut = 3, kRefused = 4 };

  [[nodiscard]] StopState state() const noexcept { return state_.load(std::memory_order_seq_cst); }
  /// A TRAIN step has ended; `count` of them so far.
  void StepFinished(std::int64_t count) noexcept;
  [[nodiscard]] StopState AtBoundary(std::int64_t train_step) noexcept;
  [[nodiscard]] std::string reason();
  [[nodiscard]] std::int64_t finished_steps() const noexcept {
    return finished_.load(std::memory_order_relaxed);
  }

  /// Takes one control record in; an answer to be written is appended to `acks`.
  void Take(const store::ControlRecord& record, std::int64_t unix_ns, std::vector<format::AckRow>* acks);
  /// Answers that the training thread gave meanwhile.
  void TakeAnswers(std::vector<format::AckRow>* acks);
  /// No decision will come any more.
  void Close() noexcept;

 private:
  enum class Decision : std::uint8_t { kOpen, kCommit, kAbort };
  std::atomic<StopState> state_{StopState::kNone};
  std::atomic<std::int64_t> finished_{0};
  Mutex mutex_;
  std::condition_variable decided_;
  std::uint64_t proposal_ LUFF_GUARDED_BY(mutex_) = 0;
  std::int64_t train_step_ LUFF_GUARDED_BY(mutex_) = -1;
  double deadline_s_ LUFF_GUARDED_BY(mutex_) = 10;
  Decision decision_ LUFF_GUARDED_BY(mutex_) = Decision::kOpen;
  std::string reason_ LUFF_GUARDED_BY(mutex_);
  std::vector<format::AckRow> answers_ LUFF_GUARDED_BY(mutex_);
  bool closed_ LUFF_GUARDED_BY(mutex_) = false;
};

}  // namespace luff::capture

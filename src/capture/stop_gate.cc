#include "capture/stop_gate.h"

#include <algorithm>
#include <utility>

namespace luff::capture {
namespace {

constexpr double kLongestWaitS = 60;

format::AckRow Answer(std::uint64_t control, StopGate::Verdict verdict, std::int64_t train_step,
                      std::int64_t unix_ns) {
  format::AckRow row{};
  row.control = control;
  row.verdict = static_cast<std::uint32_t>(verdict);
  row.train_step = train_step;
  row.unix_ns = unix_ns;
  return row;
}

std::int64_t UnixNs() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

// A step's end and the acceptance of a proposal are ordered by sequential consistency: either the writer
// thread sees the step as finished and refuses, or the training thread sees the state at its boundary.
void StopGate::StepFinished(std::int64_t count) noexcept {
  if (count > finished_.load(std::memory_order_relaxed)) finished_.store(count, std::memory_order_seq_cst);
}

void StopGate::Take(const store::ControlRecord& record, std::int64_t unix_ns,
                    std::vector<format::AckRow>* acks) {
  if (record.kind != "stop") return;
  MutexLock lock(mutex_);
  const std::int64_t finished = finished_.load(std::memory_order_seq_cst);
  if (record.phase.empty()) {  // one phase: at the next boundary
    proposal_ = record.number;
    decision_ = Decision::kCommit;
    train_step_ = -1;
    reason_ = record.reason;
    state_.store(StopState::kStop, std::memory_order_seq_cst);
    acks->push_back(Answer(record.number, Verdict::kAccepted, finished, unix_ns));
    return;
  }
  if (record.phase == "propose") {
    if (state_.load(std::memory_order_relaxed) != StopState::kNone || !(record.deadline_s > 0)) {
      acks->push_back(Answer(record.number, Verdict::kRefused, finished, unix_ns));
      return;
    }
    proposal_ = record.number;
    train_step_ = record.train_step;
    deadline_s_ = std::min(record.deadline_s, kLongestWaitS);
    decision_ = Decision::kOpen;
    reason_ = record.reason;
    state_.store(StopState::kWait, std::memory_order_seq_cst);
    const std::int64_t now = finished_.load(std::memory_order_seq_cst);
    if (now >= record.train_step) {
      state_.store(StopState::kNone, std::memory_order_seq_cst);
      train_step_ = -1;
      acks->push_back(Answer(record.number, Verdict::kTooLate, now, unix_ns));
      return;
    }
    acks->push_back(Answer(record.number, Verdict::kAccepted, now, unix_ns));
    return;
  }
  if (record.proposal != proposal_ || decision_ != Decision::kOpen || proposal_ == 0) return;
  if (record.phase == "commit") {
    decision_ = Decision::kCommit;
    if (!record.reason.empty()) reason_ = record.reason;
  } else if (record.phase == "abort") {
    decision_ = Decision::kAbort;
    state_.store(StopState::kNone, std::memory_order_seq_cst);
  }
  decided_.notify_all();
}

StopState StopGate::AtBoundary(std::int64_t train_step) noexcept {
  StepFinished(train_step);
  const StopState state = state_.load(std::memory_order_seq_cst);
  if (state == StopState::kNone) return StopState::kNone;
  MutexLock lock(mutex_);
  if (state_.load(std::memory_order_relaxed) == StopState::kNone) return StopState::kNone;
  if (train_step_ >= 0) {
    if (train_step < train_step_) return StopState::kNone;
    if (train_step > train_step_) {  // never reached: acceptance and StepFinished are ordered
      state_.store(StopState::kNone, std::memory_order_seq_cst);
      return StopState::kNone;
    }
    const auto until =
        std::chrono::steady_clock::now() +
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(deadline_s_));
    std::unique_lock<std::mutex> native(mutex_.native(), std::adopt_lock);
    while (decision_ == Decision::kOpen && !closed_) {
      if (decided_.wait_until(native, until) == std::cv_status::timeout) break;
    }
    native.release();
    if (decision_ == Decision::kOpen) decision_ = Decision::kAbort;
  }
  if (decision_ != Decision::kCommit) {
    proposal_ = 0;
    train_step_ = -1;
    state_.store(StopState::kNone, std::memory_order_seq_cst);
    return StopState::kNone;
  }
  state_.store(StopState::kStop, std::memory_order_seq_cst);
  if (answers_.size() < 16) answers_.push_back(Answer(proposal_, Verdict::kCarriedOut, train_step, UnixNs()));
  return StopState::kStop;
}

std::string StopGate::reason() {
  MutexLock lock(mutex_);
  return reason_;
}

void StopGate::TakeAnswers(std::vector<format::AckRow>* acks) {
  MutexLock lock(mutex_);
  acks->insert(acks->end(), answers_.begin(), answers_.end());
  answers_.clear();
}

void StopGate::Close() noexcept {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  decided_.notify_all();
}

}  // namespace luff::capture

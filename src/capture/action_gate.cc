#include "capture/action_gate.h"

#include <algorithm>
#include <utility>

#include "luff/base/env.h"

namespace luff::capture {
namespace {

constexpr double kLongestWaitS = 60;
constexpr std::size_t kMaxAnswers = 64;
constexpr std::chrono::milliseconds kPumpEvery{2};

format::AckRow MakeAnswer(std::uint64_t control, ActionGate::Verdict verdict, std::int64_t train_step,
                          std::int64_t unix_ns) {
  format::AckRow row{};
  row.control = control;
  row.verdict = static_cast<std::uint32_t>(verdict);
  row.train_step = train_step;
  row.unix_ns = unix_ns;
  return row;
}

std::chrono::nanoseconds Duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace

// A step's end and the acceptance of a proposal are ordered by sequential consistency: either the writer
// thread sees the step as finished and refuses, or the training thread sees the state at its boundary.
void ActionGate::StepFinished(std::int64_t count) noexcept {
  if (count > finished_.load(std::memory_order_relaxed)) finished_.store(count, std::memory_order_seq_cst);
}

void ActionGate::Accept(std::span<const std::string> kinds) {
  MutexLock lock(mutex_);
  kinds_ = {kinds.begin(), kinds.end()};
}

void ActionGate::Take(const store::ControlRecord& record, std::int64_t unix_ns,
                      std::vector<format::AckRow>* acks) {
  MutexLock lock(mutex_);
  const std::int64_t finished = finished_.load(std::memory_order_seq_cst);
  const auto answer = [&](Verdict verdict, std::int64_t step) {
    acks->push_back(MakeAnswer(record.number, verdict, step, unix_ns));
  };
  if (record.phase.empty()) {
    if (record.kind != "stop") return;
    open_ = record;  // one phase: takes effect at the next boundary
    open_.train_step = -1;
    decision_ = Decision::kCommit;
    reason_ = record.reason;
    state_.store(StopState::kStop, std::memory_order_seq_cst);
    answer(Verdict::kAccepted, finished);
    return;
  }
  if (record.phase == "propose") {
    const bool known = record.kind == "stop" || kinds_.contains(record.kind) ||
                       (record.kind == "capture" && change_.prepare);
    if (!known || state_.load(std::memory_order_relaxed) != StopState::kNone || !(record.deadline_s > 0) ||
        closed_) {
      // One that was aborted is no longer open, though the training has yet to leave its step: the next
      // attempt comes again.
      const bool leaving =
          state_.load(std::memory_order_relaxed) == StopState::kWait && decision_ == Decision::kAbort;
      answer(known && leaving && !closed_ ? Verdict::kTooLate : Verdict::kRefused, finished);
      return;
    }
    if (record.kind == "capture" && !change_.prepare(record)) {
      answer(Verdict::kRefused, finished);
      return;
    }
    open_ = record;
    decision_ = Decision::kOpen;
    abort_wanted_ = false;
    reason_ = record.reason;
    state_.store(StopState::kWait, std::memory_order_seq_cst);
    const std::int64_t now = finished_.load(std::memory_order_seq_cst);
    if (now >= record.train_step) {
      Reset();
      answer(Verdict::kTooLate, now);
    } else {
      answer(Verdict::kAccepted, now);
    }
    return;
  }
  if (open_.number == 0 || record.proposal != open_.number || decision_ != Decision::kOpen) return;
  if (record.phase == "commit") {
    decision_ = Decision::kCommit;
    if (!record.reason.empty()) reason_ = record.reason;
  } else if (record.phase == "abort") {
    decision_ = Decision::kAbort;
  }
  abort_wanted_ = false;
  decided_.notify_all();
  // At its step, the training thread handles the decision itself. Before that step, an abort is handled here.
  if (decision_ == Decision::kAbort && finished < open_.train_step) Reset();
}

StopState ActionGate::AtBoundary(std::int64_t train_step, const std::function<void()>& pump) {
  StepFinished(train_step);
  if (state_.load(std::memory_order_seq_cst) == StopState::kNone) return StopState::kNone;
  MutexLock lock(mutex_);
  if (state_.load(std::memory_order_relaxed) == StopState::kNone) return StopState::kNone;
  if (open_.train_step >= 0) {
    if (train_step < open_.train_step) return StopState::kNone;
    const auto due = Clock::now() + Duration(std::min(open_.deadline_s, kLongestWaitS));
    if (train_step > open_.train_step) {  // not called at its step (an error in the hook)
      if (decision_ != Decision::kAbort) Answer(Verdict::kAlone, train_step);
      Reset();
      return StopState::kNone;
    }
    if (!WaitForDecision(due, pump)) {
      abort_wanted_ = true;  // the writer thread asks the log; its decision comes through Take
      if (!WaitForDecision(due + Duration(settle_s_), pump)) {
        if (!closed_) Answer(Verdict::kAlone, train_step);
        decision_ = Decision::kAbort;
      }
    }
  }
  if (decision_ != Decision::kCommit) {
    Reset();
    return StopState::kNone;
  }
  if (open_.kind == "stop") {
    state_.store(StopState::kStop, std::memory_order_seq_cst);
    Answer(Verdict::kCarriedOut, train_step);
    return StopState::kStop;
  }
  if (open_.kind == "capture") {
    change_.use();
    Answer(Verdict::kCarriedOut, train_step);
    Reset();
    return StopState::kNone;
  }
  pending_ = PendingAction{open_.number, open_.kind, open_.body, open_.reason};
  Reset();
  return StopState::kAct;
}

bool ActionGate::WaitForDecision(Clock::time_point until, const std::function<void()>& pump) {
  std::unique_lock<std::mutex> native(mutex_.native(), std::adopt_lock);
  while (decision_ == Decision::kOpen && !closed_ && Clock::now() < until) {
    if (pump) {
      native.unlock();
      pump();
      native.lock();
      if (decision_ == Decision::kOpen) decided_.wait_for(native, kPumpEvery);
    } else {
      decided_.wait_until(native, until);
    }
  }
  native.release();
  return decision_ != Decision::kOpen;
}

void ActionGate::Answer(Verdict verdict, std::int64_t train_step) {
  if (answers_.size() < kMaxAnswers)
    answers_.push_back(MakeAnswer(open_.number, verdict, train_step, Env::Real().NowUnixNs()));
}

void ActionGate::Reset() {
  open_ = {};
  abort_wanted_ = false;
  state_.store(StopState::kNone, std::memory_order_seq_cst);
}

std::optional<PendingAction> ActionGate::TakeAction() {
  MutexLock lock(mutex_);
  return std::exchange(pending_, std::nullopt);
}

void ActionGate::ActionDone(std::uint64_t control, bool done) {
  const std::int64_t finished = finished_.load(std::memory_order_relaxed);
  MutexLock lock(mutex_);
  if (answers_.size() >= kMaxAnswers) return;
  answers_.push_back(
      MakeAnswer(control, done ? Verdict::kCarriedOut : Verdict::kFailed, finished, Env::Real().NowUnixNs()));
}

std::optional<store::ControlRecord> ActionGate::AbortWanted() {
  MutexLock lock(mutex_);
  if (!abort_wanted_ || decision_ != Decision::kOpen) return std::nullopt;
  store::ControlRecord record;
  record.kind = open_.kind;
  record.phase = "abort";
  record.proposal = open_.number;
  record.train_step = open_.train_step;
  record.reason = "no decision came in time";
  record.finding = open_.finding;
  return record;
}

std::string ActionGate::reason() {
  MutexLock lock(mutex_);
  return reason_;
}

void ActionGate::TakeAnswers(std::vector<format::AckRow>* acks) {
  MutexLock lock(mutex_);
  acks->insert(acks->end(), answers_.begin(), answers_.end());
  answers_.clear();
}

void ActionGate::Close() noexcept {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  decided_.notify_all();
}

}  // namespace luff::capture

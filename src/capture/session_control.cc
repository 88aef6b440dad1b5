#include <algorithm>
#include <utility>

#include "capture/session_impl.h"
#include "luff/store/loss.h"

namespace luff::capture {

StopState SessionImpl::AtStepBoundary(std::int64_t train_step) noexcept {
  if (!Accepts()) return StopState::kNone;
  try {
    if (has_thread_) return core_->gate.AtBoundary(train_step);
    return core_->gate.AtBoundary(train_step, [this] { core_->Pump(); });
  } catch (...) {
    Fail("AtStepBoundary");
    return StopState::kNone;
  }
}

std::string SessionImpl::stop_reason() const {
  return ForkCount() == fork_count_ ? core_->gate.reason() : std::string();
}

void SessionImpl::AcceptActions(std::span<const std::string> kinds) noexcept {
  if (!Accepts()) return;
  try {
    core_->gate.Accept(kinds);
  } catch (...) {
    Fail("AcceptActions");
  }
}

std::optional<PendingAction> SessionImpl::TakeAction() noexcept {
  if (!Accepts()) return std::nullopt;
  try {
    return core_->gate.TakeAction();
  } catch (...) {
    Fail("TakeAction");
    return std::nullopt;
  }
}

void SessionImpl::ActionDone(std::uint64_t control, bool done) noexcept {
  if (!Accepts()) return;
  try {
    core_->gate.ActionDone(control, done);
  } catch (...) {
    Fail("ActionDone");
  }
}

void SessionImpl::Traced(bool begins) noexcept {
  if (begins)
    trace_.store(Trace::kRuns, std::memory_order_relaxed);
  else if (trace_.load(std::memory_order_relaxed) == Trace::kRuns)
    trace_.store(Trace::kEnds, std::memory_order_relaxed);
}

void SessionImpl::AddMarks(store::StepBatch* batch) noexcept {
  std::uint32_t& flags = batch->phases.head.flags;
  if (const Trace trace = trace_.load(std::memory_order_relaxed); trace != Trace::kNone) {
    flags |= format::kStepTraced;
    if (trace == Trace::kEnds) trace_.store(Trace::kNone, std::memory_order_relaxed);
  }
  if (modules_.rows.empty()) return;
  flags |= format::kStepTimed;
  std::swap(batch->modules, modules_);
  modules_.rows.clear();
}

void SessionImpl::AbandonStep() noexcept {
  if (!Accepts()) return;
  try {
    {
      MutexLock lock(mutex_);
      for (const auto& producer : producers_) producer->Abandon();
    }
    // Slices that were already handed over then belong to no step.
    core_->step.number.fetch_add(1, std::memory_order_relaxed);
    core_->step.due.store(0, std::memory_order_relaxed);
    NoRoleIsDue();
    planned_due_ = 0;
    modules_.rows.clear();
    in_step_ = false;
    core_->counters.abandoned_steps.fetch_add(1, std::memory_order_relaxed);
    if (!has_thread_) core_->Pump();
  } catch (...) {
    Fail("AbandonStep");
  }
}

bool SessionImpl::Flush(std::chrono::milliseconds deadline) noexcept {
  if (!Accepts()) return false;
  try {
    if (!has_thread_) {
      core_->Pump();
      return core_->processed.load(std::memory_order_relaxed) == core_->queue.pushed();
    }
    const std::uint64_t goal = core_->queue.pushed();
    core_->queue.Wake();
    const auto until = std::chrono::steady_clock::now() + deadline;
    core_->waiters.fetch_add(1, std::memory_order_acq_rel);
    bool reached = false;
    {
      MutexLock lock(core_->done_mutex);
      std::unique_lock<std::mutex> native(core_->done_mutex.native(), std::adopt_lock);
      while (!(reached = core_->processed.load(std::memory_order_acquire) >= goal) && !core_->finished) {
        if (core_->done.wait_until(native, until) == std::cv_status::timeout) {
          reached = core_->processed.load(std::memory_order_acquire) >= goal;
          break;
        }
      }
      native.release();
    }
    core_->waiters.fetch_sub(1, std::memory_order_acq_rel);
    return reached;
  } catch (...) {
    Fail("Flush");
    return false;
  }
}

bool SessionImpl::EndNow(format::EndReason reason, std::chrono::milliseconds deadline) noexcept {
  if (ForkCount() != fork_count_ || !has_thread_) return false;
  try {
    Sleep();
    if (!core_->close_asked.load()) {
      core_->close_reason.store(reason);
      TellWhatIsMissing(deadline / 4);
    }
    core_->gate.Close();
    WaitForLate(deadline);
    core_->close_asked.store(true, std::memory_order_release);
    core_->queue.Wake();
    return WaitForWriter(deadline);
  } catch (...) {
    Fail("EndNow");
    return false;
  }
}

// A signal handler may have interrupted the training for good inside EndStep, or while it holds the lock.
// Then only the number of dropped steps is recorded.
void SessionImpl::TellWhatIsMissing(std::chrono::milliseconds patience) {
  std::unique_ptr<Work> work = core_->queue.Blank();
  work->kind = Work::Kind::kLoose;
  store::StepBatch& batch = work->batch;
  bool any = false;
  const auto until = std::chrono::steady_clock::now() + patience;
  while (true) {
    if (!handing_over_.load() && mutex_.TryLock()) {
      any = !lost_.empty();
      try {
        lost_.Release(0, true, &batch);
      } catch (...) {  // NOLINT(bugprone-empty-catch): no memory, and the process ends
      }
      mutex_.Unlock();
      break;
    }
    if (std::chrono::steady_clock::now() >= until) {
      if (const std::uint64_t count = untold_.load(); count > 0) {
        any = true;
        batch.gaps.push_back(store::GapOfSteps(format::GapReason::kPoolFull, count, 0, first_untold_.load(),
                                               last_untold_.load()));
      }
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (in_step_ && !Failed()) {
    any = true;
    const std::int64_t more = std::max<std::int64_t>(last_open_ - first_open_, 0);
    const std::int64_t step = core_->step.expected_step.load();
    batch.gaps.push_back(store::GapOfSteps(format::GapReason::kClosing, static_cast<std::uint64_t>(more) + 1,
                                           0, step, step + more));
  }
  if (any) static_cast<void>(core_->queue.Push(work, true));
}

}  // namespace luff::capture

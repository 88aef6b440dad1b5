// The end of a session: what is handed over, and who is waited for.
#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include "capture/late.h"
#include "capture/session_impl.h"
#include "luff/base/env.h"
#include "luff/store/loss.h"

namespace luff::capture {
namespace {

using format::GapReason;

constexpr std::chrono::milliseconds kLongestClose{10'000};

}  // namespace

// Half of the time for what the device has yet to deliver, the other half for the disk.
void SessionImpl::WaitForLate(std::chrono::milliseconds deadline) noexcept {
  if (core_->close_asked.load()) return;
  const std::chrono::nanoseconds half = std::clamp(deadline, std::chrono::milliseconds(0), kLongestClose) / 2;
  core_->late_until_ns.store(Env::Real().NowMonotonicNs() + half.count(), std::memory_order_relaxed);
}

// Hands over what a broken step left, and definitions that no step took.
void SessionImpl::HandOverRest() {
  std::unique_ptr<Work> work = core_->queue.Blank();
  work->kind = Work::Kind::kLoose;
  if (in_step_) {
    MutexLock lock(mutex_);
    for (const auto& producer : producers_) producer->Abandon();
  }
  Collect(work.get());
  store::StepBatch& batch = work->batch;
  if (in_step_ && !Failed()) {
    const std::int64_t step = core_->step.expected_step.load();
    batch.gaps.push_back(store::GapOfSteps(GapReason::kClosing, 1, 0, step, step));
  }
  batch.summaries.clear();
  batch.histograms.clear();
  batch.units.clear();
  batch.forms.clear();
  batch.scalars.clear();
  work->late.clear();
  core_->counters.gaps.fetch_add(DropHashTokens(&batch, GapReason::kClosing), std::memory_order_relaxed);
  static_cast<void>(core_->queue.Push(work, true));
}

bool SessionImpl::WaitForWriter(std::chrono::milliseconds deadline) noexcept {
  const auto until = std::chrono::steady_clock::now() + deadline;
  MutexLock lock(core_->done_mutex);
  std::unique_lock<std::mutex> native(core_->done_mutex.native(), std::adopt_lock);
  while (!core_->finished && core_->done.wait_until(native, until) != std::cv_status::timeout) {
  }
  const bool done = core_->finished;
  native.release();
  return done;
}

}  // namespace luff::capture

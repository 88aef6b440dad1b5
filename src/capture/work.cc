#include "capture/work.h"

#include <utility>

#include "luff/store/loss.h"

namespace luff::capture {
namespace {
constexpr std::size_t kMaxBlanks = 64;
constexpr std::size_t kMaxSleptOver = 64;  // items at which Push wakes Pop, so that the queue does not fill
}  // namespace

void Work::clear() {
  kind = Kind::kSlice;
  block = nullptr;
  chunks.clear();
  batch.clear();
  global_step = 0;
  ended = {};
  late.clear();
  passed.reset();
  late_since_ns = 0;
  values.clear();
  tickets.clear();
  step = 0;
}

std::uint64_t Work::memory() const noexcept {
  std::uint64_t bytes = sizeof(Work) + chunks.capacity() * sizeof(ChunkRecord) + store::MemoryOf(batch) +
                        late.capacity() * sizeof(Late);
  for (const Late& one : late) bytes += one.rows.capacity() * sizeof(LateRow);
  return bytes;
}

WorkQueue::WorkQueue(const QueueLimits& limits) : limits_(limits) {
  MutexLock lock(mutex_);
  blanks_.reserve(kMaxBlanks);  // so that Recycle never fails
}

std::unique_ptr<Work> WorkQueue::Blank() {
  {
    MutexLock lock(mutex_);
    if (!blanks_.empty()) {
      std::unique_ptr<Work> work = std::move(blanks_.back().work);
      blank_bytes_ -= blanks_.back().bytes;
      blanks_.pop_back();
      return work;
    }
  }
  return std::make_unique<Work>();
}

void WorkQueue::Recycle(std::unique_ptr<Work> work) {
  work->clear();
  const std::uint64_t bytes = work->memory();
  MutexLock lock(mutex_);
  if (blanks_.size() >= kMaxBlanks || waiting_bytes_ + blank_bytes_ + bytes > limits_.bytes) return;
  blanks_.push_back({std::move(work), bytes});
  blank_bytes_ += bytes;
}

bool WorkQueue::Push(std::unique_ptr<Work>& work, bool always) {
  const std::uint64_t bytes = work->memory();
  bool wake = false;
  {
    MutexLock lock(mutex_);
    const bool full = items_.size() >= limits_.items || waiting_bytes_ + blank_bytes_ + bytes > limits_.bytes;
    if (full && !items_.empty() && !always) return false;
    const bool patient = work->kind == Work::Kind::kStep;
    items_.emplace_back();
    items_.back() = {std::move(work), bytes};
    waiting_bytes_ += bytes;
    pushed_.fetch_add(1, std::memory_order_release);
    wake = waiting_ && (!patient || items_.size() >= kMaxSleptOver);
    if (wake) waiting_ = false;
  }
  if (wake) filled_.notify_one();
  return true;
}

std::unique_ptr<Work> WorkQueue::Pop(std::chrono::nanoseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  MutexLock lock(mutex_);
  if (items_.empty()) {
    std::unique_lock<std::mutex> native(mutex_.native(), std::adopt_lock);
    waiting_ = true;
    while (items_.empty() && !woken_) {
      if (filled_.wait_until(native, until) == std::cv_status::timeout) break;
    }
    waiting_ = false;
    woken_ = false;
    native.release();
  }
  if (items_.empty()) return nullptr;
  std::unique_ptr<Work> work = std::move(items_.front().work);
  waiting_bytes_ -= items_.front().bytes;
  items_.pop_front();
  return work;
}

std::uint64_t WorkQueue::memory() {
  MutexLock lock(mutex_);
  return waiting_bytes_ + blank_bytes_;
}

void WorkQueue::Wake() {
  {
    MutexLock lock(mutex_);
    woken_ = true;
  }
  filled_.notify_one();
}

}  // namespace luff::capture

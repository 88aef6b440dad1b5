#include "capture/work.h"

#include <utility>

namespace luff::capture {
namespace {
constexpr std::size_t kMaxBlanks = 64;
constexpr std::size_t kMaxSleptOver =
    64;  // steps: what a short loop makes while Pop waits must not fill the queue
}  // namespace

void Work::clear() {
  kind = Kind::kSlice;
  block = nullptr;
  chunks.clear();
  batch.clear();
  global_step = 0;
}

std::unique_ptr<Work> WorkQueue::Blank() {
  {
    MutexLock lock(mutex_);
    if (!blanks_.empty()) {
      std::unique_ptr<Work> work = std::move(blanks_.back());
      blanks_.pop_back();
      return work;
    }
  }
  return std::make_unique<Work>();
}

void WorkQueue::Recycle(std::unique_ptr<Work> work) {
  work->clear();
  MutexLock lock(mutex_);
  if (blanks_.size() < kMaxBlanks) blanks_.push_back(std::move(work));
}

bool WorkQueue::Push(std::unique_ptr<Work>& work) {
  bool wake = false;
  {
    MutexLock lock(mutex_);
    if (items_.size() >= max_items_) return false;
    const bool patient = work->kind == Work::Kind::kStep || work->kind == Work::Kind::kAbandon;
    items_.push_back(std::move(work));
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
  std::unique_ptr<Work> work = std::move(items_.front());
  items_.pop_front();
  return work;
}

void WorkQueue::Wake() {
  {
    MutexLock lock(mutex_);
    woken_ = true;
  }
  filled_.notify_one();
}

}  // namespace luff::capture

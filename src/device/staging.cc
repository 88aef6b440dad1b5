#include "device/staging.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "device/slots.h"

namespace luff::device {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kGrain = 64U << 10;
constexpr std::uint64_t kShare = 50;  // one part in so many of what is free
constexpr int kHungryFor = 64;

}  // namespace

Staging::Staging(std::shared_ptr<const Driver> driver, MemoryPool pool, Stream freeing, std::uint64_t most,
                 Use* use)
    : driver_(std::move(driver)),
      pool_(pool),
      freeing_(freeing),
      most_(most),
      use_(use) {}

std::uint64_t Staging::RoomLocked() const {
  return budget_ > busy_ ? (budget_ - busy_) / kGrain * kGrain : 0;
}

std::uint64_t Staging::Room() {
  MutexLock lock(mutex_);
  if (hungry_ > 0) {
    --hungry_;
    return 0;
  }
  if (held_ == 0) {
    std::size_t free = 0, total = 0;
    budget_ =
        driver_->MemGetInfo(&free, &total) == kSuccess ? std::min<std::uint64_t>(most_, free / kShare) : 0;
  }
  return RoomLocked();
}

bool Staging::WaitForRoom(std::uint64_t bytes, Clock::time_point until) {
  MutexLock lock(mutex_);
  const std::uint64_t most = budget_ > lasting_ ? (budget_ - lasting_) / kGrain * kGrain : 0;
  const std::uint64_t enough = std::min({bytes, budget_ / 2, most});
  if (RoomLocked() >= enough || hungry_ != 0) return false;
  std::unique_lock<std::mutex> native(mutex_.native(), std::adopt_lock);
  while (RoomLocked() < enough && hungry_ == 0) {
    if (returned_.wait_until(native, until) == std::cv_status::timeout) break;
  }
  native.release();
  return true;
}

Code Staging::Take(std::uint64_t bytes, Stream stream, std::shared_ptr<Block>* block, bool lasts) {
  bytes = (bytes + kGrain - 1) / kGrain * kGrain;
  std::uint64_t over = 0;
  {
    MutexLock lock(mutex_);
    if (bytes > RoomLocked()) return kSuccess;
    for (const std::shared_ptr<Block>& b : blocks_) {
      if (b->busy || b->bytes < bytes || b->bytes > (lasts ? bytes : 4 * bytes)) continue;
      if (busy_ + b->bytes <= budget_ && (*block == nullptr || b->bytes < (*block)->bytes)) *block = b;
    }
    if (*block != nullptr) {
      (*block)->busy = true;
      (*block)->lasts = lasts;
      if (lasts) lasting_ += bytes;
      busy_ += (*block)->bytes;
      return kSuccess;
    }
    over = held_ + bytes > budget_ ? held_ + bytes - budget_ : 0;
  }
  if (over != 0) Free(Clock::time_point::max(), over);
  auto made = std::make_shared<Block>();
  made->bytes = bytes;
  made->lasts = lasts;
  {
    MutexLock lock(mutex_);
    if (held_ + bytes > budget_) return kSuccess;  // another thread was faster
    blocks_.reserve(blocks_.size() + 1);
    held_ += bytes;
    busy_ += bytes;
    if (lasts) lasting_ += bytes;
  }
  const Code error = driver_->MemAllocFromPoolAsync(&made->at, bytes, pool_, stream);
  if (error == kOutOfMemory) Free(Clock::time_point::max(), std::numeric_limits<std::uint64_t>::max());
  MutexLock lock(mutex_);
  if (error != kSuccess) {
    held_ -= bytes;
    busy_ -= bytes;
    if (lasts) lasting_ -= bytes;
    if (error == kOutOfMemory) hungry_ = kHungryFor;
    return error;
  }
  use_->staging_bytes.fetch_add(bytes, std::memory_order_relaxed);
  blocks_.push_back(made);
  *block = std::move(made);
  return kSuccess;
}

void Staging::Return(const std::shared_ptr<Block>& block) noexcept {
  {
    MutexLock lock(mutex_);
    block->busy = false;
    block->idle_since = Clock::now();
    busy_ -= block->bytes;
    if (std::exchange(block->lasts, false)) lasting_ -= block->bytes;
  }
  returned_.notify_all();
}

void Staging::GiveBack(std::chrono::milliseconds idle) noexcept {
  bool trim = false;
  {
    MutexLock lock(mutex_);
    trim = std::exchange(freed_, false);
  }
  // What was freed a while ago; the pool still has it, since nothing has synchronised with it.
  if (trim) static_cast<void>(driver_->MemPoolTrimTo(pool_, 0));
  Free(Clock::now() - idle, std::numeric_limits<std::uint64_t>::max());
}

void Staging::Free(Clock::time_point since, std::uint64_t bytes) noexcept {
  for (;;) {
    std::shared_ptr<Block> oldest;
    {
      MutexLock lock(mutex_);
      if (bytes == 0) return;
      for (const std::shared_ptr<Block>& b : blocks_) {
        if (b->busy || b->idle_since > since) continue;
        if (oldest == nullptr || b->idle_since < oldest->idle_since) oldest = b;
      }
      if (oldest == nullptr) return;
      std::erase(blocks_, oldest);
      held_ -= oldest->bytes;
      freed_ = true;
    }
    bytes -= std::min(bytes, oldest->bytes);
    use_->staging_bytes.fetch_sub(oldest->bytes, std::memory_order_relaxed);
    static_cast<void>(driver_->MemFreeAsync(oldest->at, freeing_));
  }
}

bool Staging::empty() {
  MutexLock lock(mutex_);
  return held_ == 0;
}

}  // namespace luff::device

#include "capture/block_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace luff::capture {
namespace {

constexpr std::size_t kHugePage = 2U << 20;
constexpr std::size_t kMinBlocks = 4;
constexpr std::uint64_t kDefaultMax = 512ULL << 20;

std::size_t MaxBlocks(std::uint64_t max_bytes) {
  if (max_bytes == 0) {
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page = sysconf(_SC_PAGESIZE);
    const std::uint64_t memory = pages > 0 && page > 0
                                     ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page)
                                     : kDefaultMax;
    max_bytes = std::min(kDefaultMax, memory / 20);
  }
  return std::max<std::size_t>(kMinBlocks, static_cast<std::size_t>(max_bytes / kBlockBytes));
}

void Touch(std::byte* data, std::size_t bytes) noexcept {
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return;
  for (std::size_t i = 0; i < bytes; i += 4096) {
    *reinterpret_cast<volatile std::byte*>(data + i) = std::byte{0};
  }
}

}  // namespace

BlockPool::BlockPool(std::uint64_t max_bytes) : max_blocks_(MaxBlocks(max_bytes)) {
  MutexLock lock(mutex_);
  blocks_.reserve(max_blocks_);
  free_.reserve(max_blocks_);
}

BlockPool::~BlockPool() {
  MutexLock lock(mutex_);
  for (const auto& block : blocks_) munmap(block->data, kBlockBytes);
}

std::byte* BlockPool::Map() noexcept {
  void* raw =
      mmap(nullptr, kBlockBytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(raw);
  const auto misplaced = reinterpret_cast<std::uintptr_t>(begin) % kHugePage;
  const std::size_t before = misplaced == 0 ? 0 : kHugePage - misplaced;
  if (before > 0) munmap(begin, before);
  if (before < kHugePage) munmap(begin + before + kBlockBytes, kHugePage - before);
  madvise(begin + before, kBlockHugeBytes, MADV_HUGEPAGE);
  madvise(begin + before, kBlockBytes, MADV_DONTFORK);
  return begin + before;
}

Block* BlockPool::TakeFree() noexcept {
  for (std::size_t i = free_.size(); i-- > 0;) {
    Block* block = free_[i];
    if (block->pins != 0) continue;
    free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
    ++block->generation;
    block->references.store(1, std::memory_order_relaxed);
    UpdatePressure();
    return block;
  }
  return nullptr;
}

void BlockPool::UpdatePressure() noexcept {
  const bool limited = blocks_.size() + mapping_ >= max_blocks_ || out_of_memory_;
  pressure_.store(limited && free_.size() * 4 < blocks_.size(), std::memory_order_relaxed);
}

Block* BlockPool::Acquire() noexcept {
  {
    MutexLock lock(mutex_);
    if (Block* block = TakeFree(); block != nullptr) return block;
    if (blocks_.size() + mapping_ >= max_blocks_) return nullptr;
    ++mapping_;
  }
  std::byte* data = Map();
  std::unique_ptr<Block> made(data != nullptr ? new (std::nothrow) Block : nullptr);
  MutexLock lock(mutex_);
  --mapping_;
  if (made == nullptr) {
    if (data != nullptr) munmap(data, kBlockBytes);
    out_of_memory_ = true;
    UpdatePressure();
    return nullptr;
  }
  made->data = data;
  made->generation = 1;
  made->references.store(1, std::memory_order_relaxed);
  Block* block = made.get();
  blocks_.push_back(std::move(made));  // its capacity is reserved
  count_.store(blocks_.size(), std::memory_order_relaxed);
  UpdatePressure();
  return block;
}

Block* BlockPool::AcquireWithin(std::chrono::nanoseconds limit) noexcept {
  if (Block* block = Acquire(); block != nullptr) return block;
  const auto until = std::chrono::steady_clock::now() + limit;
  MutexLock lock(mutex_);
  std::unique_lock<std::mutex> native(mutex_.native(), std::adopt_lock);
  Block* block = TakeFree();
  while (block == nullptr && freed_.wait_until(native, until) != std::cv_status::timeout) block = TakeFree();
  native.release();
  return block;
}

void BlockPool::Release(Block* block) noexcept {
  if (block->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  {
    MutexLock lock(mutex_);
    free_.push_back(block);  // its capacity is reserved
    UpdatePressure();
  }
  freed_.notify_one();
}

bool BlockPool::Pin(Block* block, std::uint64_t generation) noexcept {
  MutexLock lock(mutex_);
  if (block->generation != generation) return false;
  ++block->pins;
  return true;
}

void BlockPool::Unpin(Block* block) noexcept {
  {
    MutexLock lock(mutex_);
    --block->pins;
  }
  freed_.notify_one();
}

std::uint64_t BlockPool::Generation(const Block* block) noexcept {
  MutexLock lock(mutex_);
  return block->generation;
}

void BlockPool::Prepare(std::size_t spare, std::size_t touch) noexcept {
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (free_.size() >= spare || blocks_.size() + mapping_ >= max_blocks_ || out_of_memory_) return;
      ++mapping_;
    }
    std::byte* data = Map();
    if (data != nullptr) Touch(data, std::min(touch, kBlockBytes));
    std::unique_ptr<Block> made(data != nullptr ? new (std::nothrow) Block : nullptr);
    MutexLock lock(mutex_);
    --mapping_;
    if (made == nullptr) {
      if (data != nullptr) munmap(data, kBlockBytes);
      out_of_memory_ = true;
      UpdatePressure();
      return;
    }
    made->data = data;
    free_.insert(free_.begin(), made.get());  // taken after the warm ones
    blocks_.push_back(std::move(made));
    count_.store(blocks_.size(), std::memory_order_relaxed);
    UpdatePressure();
    freed_.notify_one();
  }
}

}  // namespace luff::capture

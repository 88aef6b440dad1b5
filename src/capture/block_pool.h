#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "luff/base/mutex.h"

namespace luff::capture {

/// 8 MiB in huge pages and a little more, so that two tensors of 4 MiB fit into one block with their headers.
inline constexpr std::size_t kBlockHugeBytes = 8U << 20;
inline constexpr std::size_t kBlockBytes = kBlockHugeBytes + (64U << 10);

/// Memory laid out as in the file. Holders of a reference may read it; the producer that acquired it may
/// write beyond what it has handed over.
struct Block {
  std::byte* data = nullptr;
  std::atomic<std::uint32_t> references{0};
  std::uint64_t generation = 0;  // number of acquisitions; guarded by the pool's mutex
  std::uint32_t pins = 0;        // readers of its old content; guarded by the pool's mutex
};

/// Reused 8 MiB blocks: 2 MiB-aligned, huge pages advised, absent in forked children (MADV_DONTFORK), most
/// recently used first, never unmapped before the end. **Thread-safe.** Nothing here allocates once the pool
/// has grown.
class BlockPool {
 public:
  /// `max_bytes` 0: min(512 MiB, 5 % of memory); at least 4 blocks.
  explicit BlockPool(std::uint64_t max_bytes);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Returns a block with one reference; null if all are in use and the pool may not grow.
  [[nodiscard]] Block* Acquire() noexcept;
  /// Waits for a free block, at most `limit`.
  [[nodiscard]] Block* AcquireWithin(std::chrono::nanoseconds limit) noexcept;
  static void Reference(Block* block) noexcept { block->references.fetch_add(1, std::memory_order_relaxed); }
  /// Drops one reference; the last one frees the block.
  void Release(Block* block) noexcept;

  /// Protects the content of a block, which may already be free, from being overwritten. Returns false if it
  /// was reused.
  [[nodiscard]] bool Pin(Block* block, std::uint64_t generation) noexcept;
  void Unpin(Block* block) noexcept;
  [[nodiscard]] std::uint64_t Generation(const Block* block) noexcept;

  /// Grows in the background until `spare` blocks are free and touched, within the limit. `touch`: how many
  /// bytes of each block to touch; the first use touches the rest.
  void Prepare(std::size_t spare, std::size_t touch = kBlockBytes) noexcept;
  /// True if the pool may not grow and fewer than a quarter of its blocks are free.
  [[nodiscard]] bool under_pressure() const noexcept { return pressure_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t block_count() const noexcept { return count_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t max_blocks() const noexcept { return max_blocks_; }

 private:
  [[nodiscard]] Block* TakeFree() noexcept LUFF_REQUIRES(mutex_);
  [[nodiscard]] static std::byte* Map() noexcept;
  void UpdatePressure() noexcept LUFF_REQUIRES(mutex_);

  std::size_t max_blocks_;
  Mutex mutex_;
  std::condition_variable freed_;
  std::vector<std::unique_ptr<Block>> blocks_ LUFF_GUARDED_BY(mutex_);
  std::vector<Block*> free_ LUFF_GUARDED_BY(mutex_);
  std::size_t mapping_ LUFF_GUARDED_BY(mutex_) = 0;  // blocks being mapped outside of the lock
  bool out_of_memory_ LUFF_GUARDED_BY(mutex_) = false;
  std::atomic<std::size_t> count_{0};
  std::atomic<bool> pressure_{false};
};

}  // namespace luff::capture

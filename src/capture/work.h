#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "capture/block_pool.h"
#include "luff/base/mutex.h"
#include "luff/capture/session.h"
#include "luff/store/writer.h"

/// What producers hand to the writer thread.
namespace luff::capture {

/// A raw value (or one part of it) in a block, or a reference to one captured earlier in the same step.
struct ChunkRecord {
  TensorId tensor = 0;
  LayoutId layout = 0;
  std::uint32_t part = 0, parts = 1;
  DType dtype = DType::kInvalid;
  bool alias = false;
  bool lossy = false;
  bool try_codecs = false;                   // enough zeros, or constant: known from the summary
  std::uint32_t collection = format::kNoId;  // whose budget pays
  TensorId alias_tensor = 0;                 // alias: who was captured
  std::uint64_t serial = 0;                  // of this capture; alias: of the other one
  std::uint64_t raw_bytes = 0;
  std::byte* chunk = nullptr;  // space for the ChunkHeader, then the raw bytes
  store::Retention keep;
};

struct Work {
  enum class Kind : std::uint8_t { kSlice, kStep, kAbandon, kLoose } kind = Kind::kSlice;
  Block* block = nullptr;  // one reference, given back by the writer thread
  std::vector<ChunkRecord> chunks;
  store::StepBatch batch;        // kStep, kLoose
  std::int64_t global_step = 0;  // kSlice: the expected one
  void clear();
};

/// Bounded hand-over from many threads to one; items are recycled. **Thread-safe.**
class WorkQueue {
 public:
  explicit WorkQueue(std::size_t max_items) : max_items_(max_items) {}
  /// An empty item, used before if possible.
  [[nodiscard]] std::unique_ptr<Work> Blank();
  void Recycle(std::unique_ptr<Work> work);
  /// False when the queue is full; `work` then stays with the caller. A step does not end a wait of Pop:
  /// waking a thread costs the training more than the rest of a small step, and nobody misses it for the
  /// length of a wait.
  [[nodiscard]] bool Push(std::unique_ptr<Work>& work);
  /// Waits at most `limit` for an item.
  [[nodiscard]] std::unique_ptr<Work> Pop(std::chrono::nanoseconds limit);
  /// Ends a wait of Pop.
  void Wake();
  /// Items ever pushed.
  [[nodiscard]] std::uint64_t pushed() const noexcept { return pushed_.load(std::memory_order_acquire); }

 private:
  const std::size_t max_items_;
  Mutex mutex_;
  std::condition_variable filled_;
  std::deque<std::unique_ptr<Work>> items_ LUFF_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Work>> blanks_ LUFF_GUARDED_BY(mutex_);
  bool waiting_ LUFF_GUARDED_BY(mutex_) = false;
  bool woken_ LUFF_GUARDED_BY(mutex_) = false;
  std::atomic<std::uint64_t> pushed_{0};
};

}  // namespace luff::capture

#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "capture/block_pool.h"
#include "capture/phase_clock.h"
#include "device/collector.h"
#include "luff/base/mutex.h"
#include "luff/capture/session.h"
#include "luff/store/writer.h"
#include "luff/tensor/summary.h"

/// Work that producers hand to the writer thread.
namespace luff::capture {

/// A raw value (or one part of it) in a block, or a reference to one captured earlier in the same step.
struct ChunkRecord {
  TensorId tensor = 0;
  LayoutId layout = 0;
  std::uint32_t part = 0, parts = 1;
  DType dtype = DType::kInvalid;
  bool alias = false;
  bool lossy = false;
  bool try_codecs = false;                   // the summary shows that it is constant or has many zeros
  std::uint32_t collection = format::kNoId;  // whose budget pays
  TensorId alias_tensor = 0;                 // alias: the tensor that was captured
  std::uint64_t serial = 0;                  // of this capture; alias: of the other one
  std::uint64_t raw_bytes = 0;
  std::byte* chunk = nullptr;  // space for the ChunkHeader, then the raw bytes
  store::Retention keep;
};

/// What an accelerator has yet to deliver of a tensor.
struct LateRow {
  TensorId tensor = 0;
  DType dtype = DType::kInvalid;    // of what is recorded
  DType read_as = DType::kInvalid;  // of the piece
  std::uint32_t forms = 0;
  std::uint32_t at = 0;    // number of the input, or of the piece
  bool is_piece = false;   // all forms are made of its bytes on the host
  bool is_scalar = false;  // recorded as a number, too
  UnitAxis axis = UnitAxis::kChannel;
  const Layout* layout = nullptr;  // of the tensor, except of scalars
  std::int64_t same_as = -1;       // row whose raw value is this one's, too
  double factor = 1;               // that the values are to be multiplied by
  ChunkRecord chunk;               // kRaw
};

/// Values of one read, and what they wait for.
struct Late {
  std::shared_ptr<device::Ticket> ticket;
  std::vector<LateRow> rows;
  bool has_divisor = false;  // the last piece is a float32 that all summaries are to be divided by
  std::uint32_t divisor = 0;
  // Where pieces are to be hashed instead: events with the token get the hash.
  std::uint64_t token = 0, seed = 0;
  std::uint32_t hashed_pieces = 0;
};

struct Work {
  enum class Kind : std::uint8_t { kSlice, kStep, kLoose } kind = Kind::kSlice;
  Block* block = nullptr;  // one reference, released by the writer thread
  std::vector<ChunkRecord> chunks;
  store::StepBatch batch;                      // kStep, kLoose
  std::int64_t global_step = 0;                // kSlice: the expected one
  PhasesEnd ended;                             // kStep with phases
  std::vector<Late> late;                      // kStep: what it waits for,
  std::shared_ptr<device::StepPassed> passed;  // and its times on a device; null: none
  std::int64_t late_since_ns = 0;
  std::vector<std::unique_ptr<std::byte[]>> values;  // that came late; chunks point to them, or to memory of
  std::vector<std::shared_ptr<device::Ticket>> tickets;
  std::uint64_t step = 0;  // counts begun steps; keeps slices of an abandoned step apart
  void clear();
  /// Bytes of memory that it holds, without its block.
  [[nodiscard]] std::uint64_t memory() const noexcept;
};

/// Limits on the work that waits for a writer thread that hangs or is slower than the training. The pool
/// limits the blocks.
struct QueueLimits {
  std::size_t items = 1024;
  /// Bytes of rows, definitions and documents, including spare items. One item is accepted whatever its size,
  /// and the writer thread holds one more.
  std::uint64_t bytes = 64ULL << 20;
};

/// A bounded queue from many threads to one; recycles items. **Thread-safe.**
class WorkQueue {
 public:
  explicit WorkQueue(const QueueLimits& limits);
  /// Returns an empty item, recycled if possible.
  [[nodiscard]] std::unique_ptr<Work> Blank();
  void Recycle(std::unique_ptr<Work> work);
  /// Returns false if the queue is full, unless `always`; `work` then stays with the caller. A step does not
  /// wake Pop until 64 items wait: waking a thread costs the training more than the rest of a small step, and
  /// a step can wait until Pop's time is up.
  [[nodiscard]] bool Push(std::unique_ptr<Work>& work, bool always = false);
  /// Waits at most `limit` for an item.
  [[nodiscard]] std::unique_ptr<Work> Pop(std::chrono::nanoseconds limit);
  /// Wakes Pop.
  void Wake();
  /// Bytes that waiting and spare items hold.
  [[nodiscard]] std::uint64_t memory();
  /// Items ever pushed.
  [[nodiscard]] std::uint64_t pushed() const noexcept { return pushed_.load(std::memory_order_acquire); }

 private:
  struct Item {
    std::unique_ptr<Work> work;
    std::uint64_t bytes;
  };
  const QueueLimits limits_;
  Mutex mutex_;
  std::condition_variable filled_;
  std::deque<Item> items_ LUFF_GUARDED_BY(mutex_);
  std::vector<Item> blanks_ LUFF_GUARDED_BY(mutex_);
  std::uint64_t waiting_bytes_ LUFF_GUARDED_BY(mutex_) = 0;
  std::uint64_t blank_bytes_ LUFF_GUARDED_BY(mutex_) = 0;
  bool waiting_ LUFF_GUARDED_BY(mutex_) = false;
  bool woken_ LUFF_GUARDED_BY(mutex_) = false;
  std::atomic<std::uint64_t> pushed_{0};
};

}  // namespace luff::capture

#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "capture/block_pool.h"
#include "capture/late.h"
#include "capture/plans.h"
#include "capture/registry.h"
#include "capture/work.h"
#include "luff/base/mutex.h"

namespace luff::capture {

/// Counters of a session, for Health; all accesses are relaxed.
struct Counters {
  std::atomic<std::uint64_t> captured{0}, raw_values{0}, raw_bytes{0}, aliases{0}, replicas{0}, unchanged{0},
      nonfinite{0}, degraded{0}, waits{0};
  std::atomic<std::uint64_t> steps{0}, abandoned_steps{0}, dropped_steps{0}, written_chunks{0},
      store_errors{0};
  std::atomic<std::uint64_t> late_values{0}, late_steps{0}, late_hashes{0}, late_times{0};
  std::atomic<std::uint64_t> gaps{0};
};

/// Bytes of rows that one thread may collect in one step.
inline constexpr std::uint64_t kMaxStepBytes = 256ULL << 20;

/// What producers share during one step. BeginStep writes it, captures read it.
struct StepPlan {
  std::atomic<std::uint64_t> due{0};         // collections
  std::atomic<std::uint64_t> raw_denied{0};  // collections whose raw values are left out in this step
  std::atomic<std::uint16_t> deny_reason{0};
  std::atomic<format::Mode> mode{format::Mode::kGlobal};
  std::atomic<std::int64_t> expected_step{0};  // global step
  std::atomic<std::uint64_t> number{1};        // of the step in progress, counting ended and abandoned ones
};

struct ProducerContext {
  const Plans* plans = nullptr;
  Registry* registry = nullptr;
  BlockPool* pool = nullptr;
  WorkQueue* queue = nullptr;
  Counters* counters = nullptr;
  StepPlan* step = nullptr;
  std::atomic<std::uint64_t>* next_serial = nullptr;
  device::Collector* device = nullptr;
  std::uint64_t difference_max_bytes = 256ULL << 20;
};

/// One producing thread's part of a step: its current block and its rows. Captures of one thread never wait
/// for those of another.
class Producer {
 public:
  explicit Producer(const ProducerContext& context) : context_(context) {}
  ~Producer();
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;

  /// If `factor` is not 1, multiplies the values by it first.
  void Capture(std::span<const TensorRef> refs, double factor) LUFF_EXCLUDES(mutex_);
  void CaptureSummary(TensorId id, LayoutId layout, const GivenSummary& summary) LUFF_EXCLUDES(mutex_);
  /// The same as Capture for memory of an accelerator: enqueues what is due, and the step waits for it.
  void CaptureOnDevice(std::span<const TensorRef> refs, const DevicePlace& place, double factor)
      LUFF_EXCLUDES(mutex_);
  void ScalarOnDevice(const DeviceScalar& scalar, const DevicePlace& place) LUFF_EXCLUDES(mutex_);
  /// Session::HashOnDevice.
  [[nodiscard]] std::uint64_t HashOnDevice(std::uint64_t seed, std::span<const DeviceRange> ranges,
                                           const DevicePlace& place) LUFF_EXCLUDES(mutex_);
  /// Moves rows to `batch` and what they wait for to `late`, and hands the open part of the block to the
  /// writer thread as part of step number `step`.
  void EndStep(std::uint64_t step, store::StepBatch* batch, std::vector<Late>* late) LUFF_EXCLUDES(mutex_);
  void Abandon() LUFF_EXCLUDES(mutex_);
  /// Calls `add` to add rows that need no tensor's memory (scalars, events, gaps), `bytes` in all. Returns
  /// false if that exceeds the limit of a step.
  template <typename F>
  bool AddRows(std::uint64_t bytes, F&& add) LUFF_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!HasRoom(bytes, 0)) return false;
    add(&rows_);
    return true;
  }

  std::atomic<bool> abandoned{false};  // its thread has ended; another may take it over

 private:
  struct Seen {  // a raw value of this step; later ones may be its aliases
    std::uint64_t key = 0;
    const std::byte* address = nullptr;
    LayoutId layout = 0;
    std::uint32_t step_tag = 0;
    TensorId tensor = 0;
    std::uint64_t serial = 0;
    Block* block = nullptr;
    std::uint64_t generation = 0;
    const std::byte* copy = nullptr;
    bool has_summary = false;
    bool try_codecs = false;
    Summary summary;
  };

  void CaptureOne(const TensorRef& ref, double factor) LUFF_REQUIRES(mutex_);
  /// The collections among these that a value of this size alone would exceed.
  [[nodiscard]] std::uint64_t TooSmallFor(std::uint64_t bytes, std::uint64_t collections) const;
  /// Chooses the collection that keeps a raw value of `record->raw_bytes`. False, with a gap, if none does.
  [[nodiscard]] bool ChooseCollection(std::uint64_t due, ChunkRecord* record, Policy* policy)
      LUFF_REQUIRES(mutex_);
  void CaptureView(TensorId id, LayoutId layout_id, TensorState* tensor, const TensorView& view,
                   std::uint64_t bytes, std::uint64_t key, std::uint64_t due, std::uint32_t forms)
      LUFF_REQUIRES(mutex_);
  /// Returns false if the value is not an alias of one in memory with the same bytes.
  bool CaptureAlias(TensorId id, const TensorView& view, std::uint64_t bytes, std::uint32_t forms,
                    const Seen& seen, const ChunkRecord& own) LUFF_REQUIRES(mutex_);
  /// Under memory pressure: stores the value in bfloat16, marked lossy. Returns false if its type or the
  /// memory does not allow that.
  bool CaptureDegraded(const ChunkRecord& base, const TensorView& view, Policy policy) LUFF_REQUIRES(mutex_);
  void CaptureLarge(const ChunkRecord& base, const TensorView& view, bool summarize, Summary* summary)
      LUFF_REQUIRES(mutex_);
  void OtherForms(TensorId id, LayoutId layout_id, TensorState* tensor, const TensorView& view,
                  std::uint64_t bytes, std::uint64_t due, std::uint32_t forms) LUFF_REQUIRES(mutex_);
  /// The axis of the first collection among these that wants units.
  [[nodiscard]] UnitAxis UnitAxisOf(std::uint64_t due) const;
  void TakeDifference(TensorId id, LayoutId layout_id, TensorState* tensor, const TensorView& view,
                      std::uint64_t bytes) LUFF_REQUIRES(mutex_);
  /// Returns space for a header and `bytes` in the current block or a new one; null if the policy yields no
  /// memory.
  std::byte* Reserve(std::uint64_t bytes, Policy policy) LUFF_REQUIRES(mutex_);
  void HandOver(std::uint64_t step) LUFF_REQUIRES(mutex_);  // the open part of the block
  /// Counts bytes of rows. Returns false beyond a step's limit (a step that never ends), and counts the rows
  /// in a gap.
  bool HasRoom(std::uint64_t bytes, std::uint32_t forms) LUFF_REQUIRES(mutex_);
  void DropBlock() LUFF_REQUIRES(mutex_);
  /// Decides what is read of a tensor: adds an input or a piece, and fills in the row. False: nothing.
  [[nodiscard]] bool RowOnDevice(const TensorRef& ref, bool scaled, LateRow* row) LUFF_REQUIRES(mutex_);
  void FindAliases(std::vector<LateRow>* rows) LUFF_REQUIRES(mutex_);
  /// Enqueues `inputs_` and `pieces_`; a refusal is a gap of each row.
  void Enqueue(const DevicePlace& place, Late late) LUFF_REQUIRES(mutex_);
  void AddSummary(TensorId id, DType dtype, const Summary& summary) LUFF_REQUIRES(mutex_);
  void AddGap(TensorId id, std::uint32_t collection, format::GapReason reason, std::uint32_t forms,
              std::uint64_t bytes) LUFF_REQUIRES(mutex_);
  [[nodiscard]] Seen* SlotFor(std::uint64_t key, const std::byte* address, LayoutId layout)
      LUFF_REQUIRES(mutex_);

  const ProducerContext context_;
  Mutex mutex_;
  store::StepBatch rows_ LUFF_GUARDED_BY(mutex_);
  std::uint64_t row_bytes_ LUFF_GUARDED_BY(mutex_) = 0;
  format::GapRow too_many_ LUFF_GUARDED_BY(mutex_){};  // rows beyond kMaxStepBytes
  std::vector<ChunkRecord> chunks_ LUFF_GUARDED_BY(mutex_);
  std::vector<Late> late_ LUFF_GUARDED_BY(mutex_);
  std::vector<device::Input> inputs_ LUFF_GUARDED_BY(mutex_);  // of one read
  std::vector<device::Piece> pieces_ LUFF_GUARDED_BY(mutex_);
  std::uint64_t device_pieces_bytes_ LUFF_GUARDED_BY(mutex_) = 0;
  bool device_patient_ LUFF_GUARDED_BY(mutex_) = false;  // it may wait for room
  Block* block_ LUFF_GUARDED_BY(mutex_) = nullptr;
  std::size_t begin_ LUFF_GUARDED_BY(mutex_) = 0;  // of the open part
  std::size_t used_ LUFF_GUARDED_BY(mutex_) = 0;
  std::uint64_t generation_ LUFF_GUARDED_BY(mutex_) = 0;
  std::int64_t waited_ns_ LUFF_GUARDED_BY(mutex_) = 0;  // in this step, policy `block`
  std::uint32_t step_tag_ LUFF_GUARDED_BY(mutex_) = 1;
  std::vector<Seen> seen_ LUFF_GUARDED_BY(mutex_);
  std::size_t seen_count_ LUFF_GUARDED_BY(mutex_) = 0;
  std::vector<std::uint64_t> dense_ LUFF_GUARDED_BY(mutex_);  // histogram counters
  std::vector<std::byte> scratch_ LUFF_GUARDED_BY(mutex_);    // scaled or degraded values
};

}  // namespace luff::capture

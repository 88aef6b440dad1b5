#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "luff/store/gap_book.h"
#include "luff/store/writer.h"

/// Turns steps that cannot be written into gaps.
namespace luff::store {

/// Makes a gap of whole steps: no tensor, no collection, no forms; `steps` steps have neither rows nor a step
/// mark.
[[nodiscard]] format::GapRow GapOfSteps(format::GapReason reason, std::uint64_t steps, std::uint64_t bytes,
                                        std::int64_t first_step, std::int64_t last_step) noexcept;

/// Bytes of a batch's rows, including texts of events, without definitions and documents.
[[nodiscard]] std::uint64_t RowBytes(const StepBatch& batch) noexcept;
/// Memory that a batch holds, including unused capacity, definitions and documents.
[[nodiscard]] std::uint64_t MemoryOf(const StepBatch& batch) noexcept;

/// Takes batches that will not be written. Their rows become a gap; names, layouts, documents, answers to
/// control records, gaps and events without a step are kept, because later rows refer to them.
/// **Thread-compatible.**
class LossLedger {
 public:
  /// Takes `batch`, which is empty and holds no memory afterwards. Returns false if there is no memory for
  /// its definitions; then nothing that refers to them may be written.
  [[nodiscard]] bool Fold(StepBatch* batch, bool step, format::GapReason reason) noexcept;
  /// Rows with first_step < 0 get `step`.
  void AddGap(const format::GapRow& row, std::int64_t step) noexcept { gaps_.Add(row, step); }
  /// Moves everything kept into `batch`, in front of its own contents, and appends the gaps that are due
  /// (with `all`, every gap).
  void Release(std::int64_t now_ns, bool all, StepBatch* batch);
  /// True if nothing is kept.
  [[nodiscard]] bool empty() const noexcept;

 private:
  void KeepDocuments(std::vector<std::pair<std::string, std::string>>* documents);
  void KeepEvents(std::vector<std::string>* events, std::int64_t step);

  StepBatch kept_;  // definitions, documents, answers, events of no step
  std::uint64_t event_bytes_ = 0;
  GapBook gaps_;
};

}  // namespace luff::store

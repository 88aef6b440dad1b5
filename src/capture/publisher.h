#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capture/producer.h"
#include "capture/work.h"
#include "luff/store/loss.h"
#include "luff/store/writer.h"

namespace luff::capture {

/// The writer thread's part: finishes chunks (hashes them, finds unchanged ones, encodes), appends them,
/// publishes steps. What fails becomes a gap. **Owned by the writer thread**, except the atomics.
class Publisher {
 public:
  Publisher(std::unique_ptr<store::WorkerWriter> writer, const Plans* plans, BlockPool* pool,
            Counters* counters);

  /// Processes the work and releases its block. Returns false after an unexpected error, such as no memory;
  /// the contents of the work then become a gap.
  [[nodiscard]] bool Process(Work* work) noexcept;
  /// Drops work that will not be written: releases its block and records a gap.
  void Discard(Work* work, format::GapReason reason) noexcept;
  /// Writes gaps, documents and acknowledgements that belong to no step, and earlier gaps that are due (with
  /// `final`, all). Empties the batch. Returns false as Process does.
  [[nodiscard]] bool PublishLoose(store::StepBatch* batch, bool final) noexcept;
  /// Adds a gap for steps that were requested after the recording ended.
  void AddGap(const format::GapRow& row) noexcept { ledger_.AddGap(row, last_step_); }
  /// Writes the remaining gaps and closes the store.
  void Close(format::EndReason reason) noexcept;
  /// Counts an error, or the exception being handled, and keeps the first for Health and for the run.
  /// **Thread-safe.**
  void KeepError(const Status& status) noexcept;
  void KeepException(const char* where) noexcept;
  /// True if names of tensors were lost because there was no memory: nothing more may be written.
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  [[nodiscard]] store::WorkerWriter& writer() noexcept { return *writer_; }
  /// The first error, for Health; empty if there is none. **Thread-safe.**
  [[nodiscard]] std::string first_error();
  /// Makes `status` the error that Health reports from now on, in place of the first one.
  void Lose(const Status& status);

  /// Collections whose raw values are over their byte budget; read by BeginStep.
  std::atomic<std::uint64_t> over_budget{0};

 private:
  struct Last {  // the newest value of a tensor
    std::uint64_t serial = 0;
    std::vector<format::IndexRow> parts;
  };
  struct Pending {  // a row whose chunk is not yet written
    std::size_t row;
    TensorId tensor;
    std::uint32_t part;
    std::size_t record;
  };

  struct StepRows {  // index rows of a step that has not ended
    std::uint64_t step = 0;
    std::vector<format::IndexRow> index;
    std::vector<store::Retention> keeps;  // one for each row
  };

  void ProcessSlice(Work* work);
  void PublishStep(Work* work);
  StepRows& RowsOf(std::uint64_t step);
  /// Returns the rows of the step that ends, and drops those of earlier steps that never ended.
  void TakeRows(std::uint64_t step, store::StepBatch* batch);
  void Lose(Work* work, format::GapReason reason) noexcept;
  bool ReuseUnchanged(const ChunkRecord& record, std::uint64_t hash, format::IndexRow* row);
  void FinishRecord(const ChunkRecord& record, std::uint64_t hash, std::size_t record_index);
  void ResolveAlias(const ChunkRecord& record);
  void Append(const Work& work);
  void AddRow(const format::IndexRow& row, store::Retention keep);
  void DropIncomplete();
  template <typename F>
  void EraseRows(F&& condition);
  Last& LastOf(TensorId id);
  void AddGap(TensorId tensor, std::uint32_t collection, format::GapReason reason, std::uint64_t bytes);
  void Charge(std::uint32_t collection, std::uint64_t bytes);

  std::unique_ptr<store::WorkerWriter> writer_;
  const Plans* plans_;
  BlockPool* pool_;
  Counters* counters_;
  store::LossLedger ledger_;
  bool broken_ = false;
  std::vector<Last> last_;
  std::vector<StepRows> open_steps_;  // almost always one
  StepRows* rows_ = nullptr;          // of the slice being processed
  std::vector<Pending> pending_;
  std::vector<store::ChunkRef> refs_;
  std::vector<store::Place> places_;
  std::vector<std::vector<std::byte>> encoded_;  // chunks that a codec made smaller
  std::size_t encoded_used_ = 0;
  std::vector<std::uint64_t> spent_;  // raw bytes by collection
  std::int64_t last_step_ = 0;
  Mutex error_mutex_;
  std::string first_error_ LUFF_GUARDED_BY(error_mutex_);
};

}  // namespace luff::capture

#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capture/gap_book.h"
#include "capture/producer.h"
#include "capture/work.h"
#include "luff/store/writer.h"

namespace luff::capture {

/// The writer thread's side: finishes chunks (hash, unchanged?, codec), appends them, publishes steps.
/// **Owned by the writer thread** but for the atomics.
class Publisher {
 public:
  Publisher(std::unique_ptr<store::WorkerWriter> writer, const Plan* plan, BlockPool* pool,
            Counters* counters);

  /// Gives the work's block back.
  void Process(Work* work);
  /// Gaps, documents and acknowledgements that belong to no step; also the gaps that were held back.
  void PublishLoose(store::StepBatch* batch, bool final);
  /// Writes what waits and closes the store.
  void Close(format::EndReason reason);
  [[nodiscard]] store::WorkerWriter& writer() noexcept { return *writer_; }
  /// The first error of the store, kept for Health; empty while there is none. Any thread.
  [[nodiscard]] std::string first_error();

  /// Collections whose raw values are over their byte budget; read by BeginStep.
  std::atomic<std::uint64_t> over_budget{0};

 private:
  struct Last {  // the newest value of a tensor
    std::uint64_t serial = 0;
    std::vector<format::IndexRow> parts;
  };
  struct Pending {  // a row whose chunk is not yet placed
    std::size_t row;
    TensorId tensor;
    std::uint32_t part;
    std::size_t record;
  };

  void ProcessSlice(Work* work);
  void PublishStep(Work* work);
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
  void Keep(const Status& status);

  std::unique_ptr<store::WorkerWriter> writer_;
  const Plan* plan_;
  BlockPool* pool_;
  Counters* counters_;
  GapBook gaps_;
  std::vector<Last> last_;
  std::vector<format::IndexRow> index_;  // of the step in progress
  std::vector<store::Retention> keeps_;  // one for each row of index_
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

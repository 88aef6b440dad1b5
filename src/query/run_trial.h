#pragma once
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "luff/query/row_visit.h"
#include "luff/query/run_pieces.h"
#include "luff/query/trial.h"
#include "luff/store/control.h"
#include "luff/store/reader.h"
#include "query/step_trial.h"

namespace luff::query {

inline constexpr std::uint64_t kNoOrdinal = ~std::uint64_t{0};
inline constexpr std::uint32_t kNoStep = 0xFFFFFFFFU;
inline constexpr std::uint64_t kMaxHoles = 1U << 24;

/// The first and last step of each tensor's rows in a sealed segment, as far as they have been read. Programs
/// that keep making new models have many tensors of a few steps each; reading a step skips those without rows
/// there.
struct SlotSpans {
  struct Span {
    // Step indices; all steps until the rows are read.
    std::uint32_t first = 0, last = std::numeric_limits<std::uint32_t>::max();
  };
  std::string path;  // of the segment that was read last
  std::vector<Span> of_slot;
};

struct WorkerState {
  const store::WorkerReader* reader = nullptr;
  std::uint64_t taken = 0;  // lower ordinals are in the step table
  std::size_t definitions_taken = 0;
  std::unordered_map<std::uint64_t, TensorId> trial_id;       // epoch << 32 | the worker's id
  std::unordered_map<std::uint64_t, std::uint32_t> local_id;  // epoch << 32 | trial id
  std::vector<std::uint64_t> ordinal_of;                      // by position in the step table
  std::uint64_t first_ordinal = kNoOrdinal;
  std::vector<std::uint32_t> step_of;  // by ordinal - first_ordinal
  std::uint64_t holes = 0;             // in step_of: ordinals without a step, at most kMaxHoles
  std::string problem;                 // why its later steps are not shown; "" if they are
  bool lost = false;
  std::int64_t checked_ns = 0;         // monotonic, of the last check of the process
  std::int64_t heartbeat_unix_ns = 0;  // the newest sign of life
  std::int64_t heard_ns = 0;           // monotonic, when that sign was seen here

  [[nodiscard]] bool ended() const noexcept { return reader->end().has_value(); }
  [[nodiscard]] std::uint64_t OrdinalOf(std::size_t n) const noexcept {
    return n < ordinal_of.size() ? ordinal_of[n] : kNoOrdinal;
  }
  /// Position in the step table of one of the worker's steps; kNoStep if it isn't complete.
  [[nodiscard]] std::uint32_t StepOf(std::uint64_t ordinal) const noexcept {
    if (ordinal < first_ordinal || ordinal - first_ordinal >= step_of.size()) return kNoStep;
    return step_of[static_cast<std::size_t>(ordinal - first_ordinal)];
  }
  /// True if retention deleted the row's value: it retired the file and did not move the chunk.
  [[nodiscard]] bool IsDeleted(const format::IndexRow& row) const {
    return reader->IsRetired(row.data_file) && !reader->Locate(row).ok();
  }
  void Place(std::uint32_t n, std::uint64_t ordinal);
  /// False if the step's ordinal is so far ahead that step_of would have more than kMaxHoles holes. Ordinals
  /// are counts, so only lost segments leave holes.
  [[nodiscard]] bool HasRoomFor(std::uint64_t ordinal) const noexcept;
  mutable SlotSpans spans;
  /// The tensors of a segment's slots, until the next call; kNoTensor where none is defined. Those of a
  /// segment that grows are looked up once.
  [[nodiscard]] std::span<const TensorId> IdsOf(const store::SegmentReader& segment) const;
  /// The tensor with the worker's number `local` in an epoch; kNoTensor if none is defined.
  [[nodiscard]] TensorId IdOf(std::uint32_t epoch, std::uint32_t local) const;

 private:
  mutable std::string ids_path_;
  mutable std::vector<TensorId> ids_;
};

/// A trial over a run directory.
class RunTrial final : public StepTrial {
 public:
  RunTrial(std::unique_ptr<store::RunReader> run, const OpenOptions& options);

  Result<bool> Refresh() override;
  Result<bool> RefreshAll() override;
  std::chrono::nanoseconds PauseAfter(std::chrono::nanoseconds last) const override;
  void ShowAtMost(std::size_t steps) override;
  const std::string& path() const noexcept override { return run_->path(); }
  bool awaits_values() const override;
  std::uint64_t values_missed() const noexcept override;
  std::string MirrorNote() const override;
  std::vector<WorkerInfo> workers() const override;
  std::uint32_t world_size() const noexcept override { return run_->info().world_size; }
  std::int64_t created_unix_ns() const noexcept override { return run_->info().created_unix_ns; }

  Result<TensorId> FindTensor(std::string_view name) const override;
  std::optional<TensorId> TensorNamed(std::string_view name) const override;
  std::vector<std::string> CollectionNames() const override;
  std::string Document(std::string_view name) const override;
  std::string DocumentAt(std::string_view name, std::size_t n) const override;

  Result<std::vector<std::int64_t>> TensorSteps(TensorId id, Mode mode) const override;
  Result<std::vector<std::int64_t>> ValueSteps(TensorId id, Mode mode,
                                               std::optional<std::uint32_t> worker) const override;
  Result<std::vector<std::uint32_t>> TensorWorkers(TensorId id, std::int64_t step, Mode mode) const override;

  Result<Value> ReadValue(TensorId id, std::int64_t step, Mode mode,
                          std::optional<std::uint32_t> worker) const override;
  Result<Stack> ReadStack(TensorId id, Mode mode, std::optional<std::uint32_t> worker,
                          std::uint64_t max_bytes) const override;
  Result<ValueShape> Shape(TensorId id, std::int64_t step, Mode mode,
                           std::optional<std::uint32_t> worker) const override;
  Result<SummaryAt> ReadSummaryAt(TensorId id, std::int64_t step, Mode mode,
                                  std::optional<std::uint32_t> worker) const override;
  Result<std::shared_ptr<const SummaryColumns>> SharedSummaries(
      TensorId id, Mode mode, std::optional<std::uint32_t> worker) const override;
  Result<std::vector<ScalarAt>> Scalars(TensorId id, Mode mode,
                                        std::optional<std::uint32_t> worker) const override;
  Result<SparseHistogram> Histogram(TensorId id, std::int64_t step, Mode mode,
                                    std::optional<std::uint32_t> worker) const override;
  Result<UnitCounts> Units(TensorId id, std::int64_t step, Mode mode,
                           std::optional<std::uint32_t> worker) const override;
  Result<format::FormRow> ReadForm(TensorId id, format::Form form, std::int64_t step, Mode mode,
                                   std::optional<std::uint32_t> worker) const override;

  Status ReadStepRows(std::size_t n, StepRows* out) const override;
  Status ReadStepContents(std::size_t n, StepContents* out) const override;
  /// As VisitRows, segment by segment.
  [[nodiscard]] Status VisitSegments(std::size_t from, std::size_t to, const UseStretch& use,
                                     const UseDifference& difference, const UsePublished& whole) const;
  std::vector<GapInfo> Gaps() const override;
  std::vector<EventAt> Events(Mode mode) const override;
  std::vector<JsonEvent> JsonEvents() const override;
  std::vector<std::pair<std::uint32_t, format::AckRow>> Acks() const override;
  Outcome outcome() const override;
  std::vector<std::string> Problems() const override;

  // trial_names.cc
  [[nodiscard]] std::string DocumentOfWorker(std::uint32_t worker, std::string_view name) const;
  // run_pieces.cc
  [[nodiscard]] Result<std::vector<WorkerStep>> StepsOf(std::uint32_t worker) const;
  [[nodiscard]] Status HistogramsOf(TensorId id, std::int64_t from, std::int64_t to, std::uint64_t max_bytes,
                                    const HistogramVisitor& use) const;
  template <typename Use>
  [[nodiscard]] Status EachFrame(format::FrameKind kind, const Use& use) const;  // trial_rows.cc
  [[nodiscard]] Status EachPhases(const PhasesVisitor& use) const;               // trial_rows.cc
  [[nodiscard]] Status EachModules(const ModulesVisitor& use) const;             // trial_rows.cc

 private:
  // run_trial.cc
  [[nodiscard]] Result<bool> TakeInNews(bool thorough);
  [[nodiscard]] bool TakeInWorkers();
  void TakeDefinitions(WorkerState& worker);
  void ResolveCollections();
  [[nodiscard]] bool CheckWorkers();
  [[nodiscard]] bool MergeSteps();
  [[nodiscard]] bool Awaited() const noexcept;
  /// The newest control record of how the run ended; none if there is none.
  [[nodiscard]] const std::optional<store::ControlRecord>& NewestOutcome() const;

  // trial_steps.cc
  /// A worker's rows of one tensor at one step.
  struct Rows {
    const WorkerState* worker = nullptr;
    const store::SegmentReader* segment = nullptr;
    std::uint32_t index = 0;  // of the step in the segment
    std::optional<std::size_t> slot;
    std::uint32_t local_id = 0;
    std::uint32_t epoch = 0;
    std::uint32_t n = 0;  // position in the step table
  };
  [[nodiscard]] std::optional<Rows> RowsOf(const WorkerState& worker, TensorId id, std::uint32_t n) const;
  [[nodiscard]] bool HasRows(const WorkerState& worker, TensorId id, std::uint32_t n) const;
  [[nodiscard]] bool HasRows(TensorId id, std::uint32_t n) const override;
  /// Workers to read from: the one wanted, or all. kNotFound for a worker that is not in the run.
  [[nodiscard]] Result<std::vector<const WorkerState*>> Candidates(std::optional<std::uint32_t> worker) const;
  /// Calls `use(rows)` for each candidate until it returns true. `use`: Result<bool>.
  template <typename Use>
  [[nodiscard]] Result<bool> FirstWith(TensorId id, std::uint32_t n, std::optional<std::uint32_t> worker,
                                       Use use) const;
  enum class What { kValue, kSummary, kHistogram, kUnits, kForm, kShape };
  [[nodiscard]] Status NotSaved(TensorId id, What what, std::int64_t step, Mode mode) const;
  /// Marks the positions at which a worker has rows of the tensor, or, with `values_only`, raw values of it
  /// that still exist. Ignores histograms and unit counts.
  [[nodiscard]] Status MarkSteps(const WorkerState& worker, TensorId id, bool values_only,
                                 std::vector<std::uint8_t>* marks) const;
  [[nodiscard]] std::vector<std::int64_t> MarkedSteps(const std::vector<std::uint8_t>& marks,
                                                      Mode mode) const;

  // trial_rows.cc
  [[nodiscard]] Result<std::optional<format::FormRow>> FormOf(const Rows& rows, format::Form form) const;

  // trial_values.cc
  [[nodiscard]] Status PartsOf(const Rows& rows, std::vector<format::IndexRow>* parts) const;
  template <typename Use>
  [[nodiscard]] Result<bool> FirstValue(TensorId id, std::uint32_t n, std::optional<std::uint32_t> worker,
                                        Use use) const;
  [[nodiscard]] Result<const store::LayoutDef*> LayoutOf(const Rows& rows, const format::IndexRow& row) const;

  // trial_summaries.cc
  [[nodiscard]] Status AppendSummaries(const WorkerState& worker, TensorId id, Mode mode,
                                       SummaryColumns* out) const;
  void AppendNumbers(std::span<const std::pair<std::uint32_t, std::size_t>> positions,
                     SummaryColumns* out) const;

  std::unique_ptr<store::RunReader> run_;
  std::vector<std::unique_ptr<WorkerState>> workers_;       // ascending by worker
  std::vector<std::vector<std::uint32_t>> collection_ids_;  // of each tensor, in its first worker's document
  std::vector<const WorkerState*> definer_;
  std::map<std::string, TensorId, std::less<>> by_name_;
  std::map<std::uint32_t, std::pair<std::string, std::vector<std::string>>>
      collections_;  // worker: text, names
  /// Copies of the step table's columns for sharing; rebuilt when it has grown.
  struct Numbers {
    Column<std::int64_t> global_step, mode_step, update;
    Column<std::uint8_t> mode;
  };
  mutable Numbers numbers_;
  mutable std::uint64_t control_read_ = 0;  // control records up to this number have been read
  mutable std::optional<store::ControlRecord> outcome_said_;
};

[[nodiscard]] inline Summary SummaryOf(const format::SummaryRow& row) noexcept {
  Summary s;
  s.count = row.count;
  s.sum = row.sum;
  s.sum_sq = row.sum_sq;
  s.abs_sum = row.abs_sum;
  s.min_bits = row.min_bits;
  s.max_bits = row.max_bits;
  s.zero_count = row.zero_count;
  s.nan_count = row.nan_count;
  s.inf_count = row.inf_count;
  return s;
}

[[nodiscard]] inline std::uint64_t ScopedId(std::uint32_t epoch, std::uint32_t id) noexcept {
  return std::uint64_t{epoch} << 32 | id;
}

template <typename Use>
Result<bool> RunTrial::FirstWith(TensorId id, std::uint32_t n, std::optional<std::uint32_t> worker,
                                 Use use) const {
  if (worker) {
    LUFF_RETURN_IF_ERROR(Candidates(worker).status());
  }
  for (const auto& candidate : workers_) {
    if (worker && candidate->reader->worker() != *worker) continue;
    const auto rows = RowsOf(*candidate, id, n);
    if (!rows) continue;
    LUFF_ASSIGN_OR_RETURN(const bool found, use(*rows));
    if (found) return true;
  }
  return false;
}

}  // namespace luff::query

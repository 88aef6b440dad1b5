#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "luff/query/trial.h"
#include "query/smdebug_collections.h"
#include "query/smdebug_directory.h"
#include "query/step_trial.h"

namespace luff::query {

/// A trial over a directory that smdebug writes or wrote. Reads its index files when it is opened or
/// refreshed, and values from its event files on demand. Summaries, histograms, unit counts and differences
/// are computed from the values, or, where only reductions were saved, derived from those as far as possible.
class SmdebugTrial final : public StepTrial {
 public:
  SmdebugTrial(const std::string& path, const OpenOptions& options)
      : StepTrial("trial", options),
        directory_(path) {}

  Result<bool> Refresh() override;
  std::chrono::nanoseconds PauseAfter(std::chrono::nanoseconds last) const override;
  void ShowAtMost(std::size_t steps) override;
  const std::string& path() const noexcept override { return directory_.path(); }
  std::vector<WorkerInfo> workers() const override;
  std::uint32_t world_size() const noexcept override;
  std::int64_t created_unix_ns() const noexcept override { return directory_.created_unix_ns(); }

  Result<TensorId> FindTensor(std::string_view name) const override;
  std::optional<TensorId> TensorNamed(std::string_view name) const override;
  std::vector<std::string> CollectionNames() const override { return collections_.Names(); }
  std::string Document(std::string_view name) const override;

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

  Result<std::vector<SavedReduction>> SavedReductions(TensorId id, std::int64_t step, Mode mode,
                                                      std::optional<std::uint32_t> worker) const override;

  Status ReadStepRows(std::size_t n, StepRows* out) const override;
  Status ReadStepContents(std::size_t n, StepContents* out) const override;
  std::vector<GapInfo> Gaps() const override;
  std::vector<EventAt> Events(Mode) const override { return {}; }
  std::vector<JsonEvent> JsonEvents() const override { return {}; }
  std::vector<std::pair<std::uint32_t, format::AckRow>> Acks() const override { return {}; }
  Outcome outcome() const override;
  std::vector<std::string> Problems() const override;

 private:
  using Entry = SmdebugDirectory::Entry;
  using Record = SmdebugDirectory::Record;
  using Kind = SmdebugDirectory::Kind;

  // smdebug_trial.cc
  void TakeInEntries();
  void MergeSteps();
  void TakeNames();
  [[nodiscard]] bool CheckLost();
  [[nodiscard]] bool Awaited() const;

  // smdebug_steps.cc
  [[nodiscard]] Status CheckWorker(std::optional<std::uint32_t> worker) const;
  /// What one worker wrote for a tensor at one step. If something was written twice, the last one counts.
  struct Found {
    const Entry* entry = nullptr;
    const Record* value = nullptr;
    const Record* shape = nullptr;
    // Those of absolute values last.
    std::array<const Record*, 2 * format::kSmdebugReductionCount> reductions{};
    bool reduced = false;
  };
  [[nodiscard]] std::optional<Found> RowsOf(std::uint32_t entry, TensorId id) const;
  [[nodiscard]] bool HasRows(TensorId id, std::uint32_t n) const override;
  /// Entries of the n-th step, of one worker or of all, the lowest number first.
  [[nodiscard]] std::vector<std::uint32_t> EntriesOf(std::uint32_t n,
                                                     std::optional<std::uint32_t> worker) const;
  /// Steps of the mode at which `wanted(record)` is true for one of the tensor's records: position, entry.
  template <typename Wanted>
  [[nodiscard]] std::vector<std::pair<std::uint32_t, std::uint32_t>> StepsWith(
      TensorId id, Mode mode, std::optional<std::uint32_t> worker, Wanted wanted) const;
  [[nodiscard]] std::vector<std::int64_t> Keys(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& at,
                                               Mode mode) const;
  [[nodiscard]] Status NotSaved(TensorId id, const char* what, std::int64_t step, Mode mode) const;
  /// Calls `use(found)` for each worker that has the tensor at the step, until it returns true. `use`:
  /// Result<bool>.
  template <typename Use>
  [[nodiscard]] Status FirstWith(TensorId id, const char* what, std::int64_t step, Mode mode,
                                 std::optional<std::uint32_t> worker, Use use) const;

  // smdebug_values.cc
  [[nodiscard]] Result<Value> ReadRecord(const Record& record) const;
  [[nodiscard]] Result<double> ReadReduction(const Record& record) const;
  [[nodiscard]] Result<Value> ValueOfRecord(const Record& record, std::span<const std::byte> bytes) const;

  // smdebug_summaries.cc
  struct Summarized {
    DType dtype = DType::kInvalid;
    Summary summary;
  };
  [[nodiscard]] static bool HasSummary(DType dtype) noexcept;
  [[nodiscard]] static Result<TensorView> ViewOf(const Value& value);
  [[nodiscard]] static std::optional<double> OneNumber(const Value& value);
  [[nodiscard]] bool IsScalar(TensorId id) const;
  [[nodiscard]] std::vector<SavedReduction> ReductionsOf(const Found& found) const;
  [[nodiscard]] std::optional<Summarized> FromReductions(const Found& found) const;
  /// Returns nullopt for text, and if only the shape was saved.
  [[nodiscard]] Result<std::optional<Summarized>> Summarised(const Found& found) const;

  // smdebug_rows.cc
  [[nodiscard]] const Record* Before(const Record& record) const;
  [[nodiscard]] std::optional<format::FormRow> DifferenceOf(const Record& record, const Value& value) const;
  void KeepValue(const Record& record, const Value& value) const;

  SmdebugDirectory directory_;
  SmdebugCollections collections_;
  std::vector<std::string> collection_problems_;
  std::vector<std::vector<std::uint32_t>> entries_at_;  // by position in the step table
  std::vector<std::uint32_t> step_of_entry_;            // position, or kNoStep
  std::vector<std::uint32_t> pending_;                  // entries whose steps are not complete
  std::int64_t last_update_ = 0;
  std::uint32_t collections_taken_ = 0;
  bool lost_ = false, opened_ = false;
  struct Kept {
    std::uint32_t record;
    Value value;
  };
  mutable std::unordered_map<std::uint64_t, Kept>
      kept_;  // tensor << 32 | worker: its value of the last step read
  mutable std::size_t kept_bytes_ = 0;
};

}  // namespace luff::query

#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"
#include "luff/format/layout.h"
#include "luff/format/names.h"
#include "luff/query/column.h"
#include "luff/tensor/summary.h"

/// The C++ side of the trial API: reads the values, summaries, steps and names of a run, while the job writes
/// it or afterwards.
namespace luff::query {

using format::Mode;
using format::ModeName;
using format::ParseMode;
using format::Role;

using TensorId = std::uint32_t;  // trial-wide (the same name in two workers is one tensor)

struct TensorInfo {
  TensorId id = 0;
  std::string name;
  Role role = Role::kOther;
  std::string module_path;
  std::string module_type;
  std::vector<std::string> collections;
};

struct StepInfo {
  std::int64_t global_step = 0;
  std::int64_t mode_step = 0;
  std::int64_t update = 0;
  Mode mode = Mode::kTrain;
  std::int64_t wall_unix_ns = 0;  // of the first worker that passed it
  std::int64_t duration_ns = 0;
  bool superseded = false;  // a resumed run has recorded this global step again: lookups find the later one
};

/// The summary of one tensor at one step. `dtype` determines how summary.min_bits is read.
struct SummaryAt {
  std::int64_t global_step = 0;
  std::int64_t mode_step = 0;
  std::int64_t update = 0;
  Mode mode = Mode::kTrain;
  std::uint32_t worker = 0;
  DType dtype = DType::kInvalid;
  std::uint16_t merged_steps = 1;
  Summary summary;
};

/// The summaries of one tensor over all its steps, as columns of equal length.
struct SummaryColumns {
  Column<std::int64_t> global_step, mode_step, update;
  Column<std::uint8_t> mode;
  Column<std::uint64_t> count, zero_count, nan_count, inf_count;
  Column<double> min, max, mean, std, sum, abs_mean, l2;

  /// Calls `use(name, member)` for each column, in the order in which Python shows them.
  static void ForEach(const auto& use) {
    use("step", &SummaryColumns::global_step);
    use("mode_step", &SummaryColumns::mode_step);
    use("update", &SummaryColumns::update);
    use("mode", &SummaryColumns::mode);
    use("count", &SummaryColumns::count);
    use("zero_count", &SummaryColumns::zero_count);
    use("nan_count", &SummaryColumns::nan_count);
    use("inf_count", &SummaryColumns::inf_count);
    use("min", &SummaryColumns::min);
    use("max", &SummaryColumns::max);
    use("mean", &SummaryColumns::mean);
    use("std", &SummaryColumns::std);
    use("sum", &SummaryColumns::sum);
    use("abs_mean", &SummaryColumns::abs_mean);
    use("l2", &SummaryColumns::l2);
  }
};

struct ScalarAt {
  std::int64_t global_step = 0, mode_step = 0, update = 0;
  Mode mode = Mode::kTrain;
  double value = 0;
};

struct Value {  // one array, row-major; `bytes` live as long as `owner`
  DType dtype = DType::kInvalid;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

/// A statistic that the job itself saved in addition to or instead of a value (smdebug's reductions).
struct SavedReduction {
  std::string name;  // "min", "max", "mean", "std", "variance", "sum", "prod", "l1" or "l2"
  bool abs = false;  // of the absolute values
  double value = 0;
};

struct EventAt {
  std::int64_t global_step = 0;
  std::uint32_t worker = 0;
  format::EventRow row{};
};

/// Where the time of one step of one worker went, or that of several merged steps.
struct StepPhases {
  /// Waits for batches of one loader, from one of its workers.
  struct Wait {
    format::WaitSubject of;
    std::uint32_t count = 0;
    std::int64_t ns = 0;
  };
  std::uint32_t worker = 0;
  format::PhasesHead head{};
  std::int64_t ended_unix_ns = 0;                           // by the worker's clock
  std::array<std::int64_t, format::kPhaseCount> ns{};       // of the host; adds up to head.wall_ns
  std::array<std::uint32_t, format::kPhaseCount> begins{};  // how often each began
  std::vector<Wait> waits = {};                             // those of kDataWait
  /// When each began last, since the step's begin; -1: before it, or merged. 0 of a phase that is not there.
  std::array<std::int64_t, format::kPhaseCount> starts_ns{};
  /// Of a device, from where each phase began there to where the next one did; adds up to head.device_ns. -1
  /// of a phase without such a time, and of all where head.device_ns is not known.
  std::array<std::int64_t, format::kPhaseCount> device_ns = [] {
    std::array<std::int64_t, format::kPhaseCount> none{};
    none.fill(-1);
    return none;
  }();
  /// Of head.steps: those at whose first phase the device had nothing left to do, so that it waited for the
  /// host.
  std::uint32_t idle_steps = 0;
  [[nodiscard]] bool has_device() const noexcept { return head.device_ns >= 0; }
};

struct GapInfo {
  std::uint32_t worker = 0;
  std::string tensor;      // "" if not of one tensor
  std::string collection;  // "" if none
  std::string reason;      // e.g. "pool full"
  std::string forms;       // e.g. "raw"
  std::uint64_t count = 0, bytes = 0;
  std::int64_t first_step = 0, last_step = 0;
};

struct WorkerInfo {
  std::uint32_t worker = 0;
  bool ended = false;
  std::optional<format::EndReason> reason;
  bool alive = false;                   // heartbeat within the limit, or process seen on this host
  std::int64_t first_global_step = -1;  // -1: none is published
  std::int64_t last_global_step = -1;
  std::int64_t last_train_step = -1;
  std::int64_t heartbeat_unix_ns = 0;
  std::uint64_t pid = 0;  // if its process exists and can be seen from here
  bool goes_on = false;   // it has ended, and its process trains something else: none of the run's any more
};

enum class StepState { kAvailable, kNotYetAvailable, kUnavailable };

struct OpenOptions {
  std::chrono::milliseconds wait_for_first_step{0};  // 0: an empty run opens at once
  bool use_live_page = true;                         // false imitates a network mount without coherence
  double lost_after_s = 60.0;           // a worker without a heartbeat for this long is lost: a gap, no wait
  std::size_t show_at_most = SIZE_MAX;  // see Trial::ShowAtMost
};

/// The tensors, collections and documents of a run.
class TrialNames {
 public:
  virtual ~TrialNames() = default;
  /// Ids are 0 .. tensor_count()-1, stable while the trial is open.
  [[nodiscard]] virtual std::size_t tensor_count() const noexcept = 0;
  [[nodiscard]] virtual const TensorInfo& tensor(TensorId id) const = 0;
  /// Errors: kNotFound, with the nearest names. Finding those is slow: use TensorNamed() if the tensor may
  /// well not exist.
  [[nodiscard]] virtual Result<TensorId> FindTensor(std::string_view name) const = 0;
  [[nodiscard]] virtual std::optional<TensorId> TensorNamed(std::string_view name) const = 0;
  struct NameFilter {
    std::string regex;       // PCRE2, searched anywhere; "" = all
    std::string collection;  // "" = any
    std::optional<std::int64_t> step;
    Mode mode = Mode::kGlobal;
  };
  /// Sorted names. Errors: kInvalidArgument for a regex that does not compile (with the place).
  [[nodiscard]] virtual Result<std::vector<std::string>> TensorNames(const NameFilter& filter) const = 0;
  [[nodiscard]] virtual std::vector<std::string> CollectionNames() const = 0;
  /// JSON of a document: "model", "collections", "environment"; "" if absent.
  [[nodiscard]] virtual std::string Document(std::string_view name) const = 0;
  /// The document as it was at the n-th step (see step_at): a model that is described anew has other
  /// optimizers then. The latest where versions are not kept.
  [[nodiscard]] virtual std::string DocumentAt(std::string_view name, std::size_t n) const {
    (void)n;
    return Document(name);
  }
};

/// The steps of a run.
class TrialSteps {
 public:
  virtual ~TrialSteps() = default;
  /// Complete steps, ascending; a superseded step appears once. kGlobal: global steps; else mode steps of
  /// that mode.
  [[nodiscard]] virtual std::vector<std::int64_t> Steps(Mode mode) const = 0;
  /// Steps of one tensor (any form).
  [[nodiscard]] virtual Result<std::vector<std::int64_t>> TensorSteps(TensorId id, Mode mode) const = 0;
  /// Steps of one tensor at which the raw value was recorded and has not been deleted by retention.
  [[nodiscard]] virtual Result<std::vector<std::int64_t>> ValueSteps(
      TensorId id, Mode mode, std::optional<std::uint32_t> worker = {}) const = 0;
  /// Workers that have rows of the tensor at the step.
  [[nodiscard]] virtual Result<std::vector<std::uint32_t>> TensorWorkers(TensorId id, std::int64_t step,
                                                                         Mode mode) const = 0;
  [[nodiscard]] virtual std::size_t step_count() const noexcept = 0;
  /// The n-th step that became complete (0 .. step_count()-1); superseded ones keep their place. Stable while
  /// the trial is open.
  [[nodiscard]] virtual StepInfo step_at(std::size_t n) const = 0;
  [[nodiscard]] virtual Result<StepInfo> FindStep(std::int64_t step, Mode mode) const = 0;
  [[nodiscard]] virtual StepState StateOfStep(std::int64_t step, Mode mode) const = 0;
};

/// The recorded data of one tensor, at one step or over all steps. If `worker` is nullopt, each step's data
/// is that of the first worker that has any.
class TrialValues {
 public:
  virtual ~TrialValues() = default;
  [[nodiscard]] virtual Result<Value> ReadValue(TensorId id, std::int64_t step, Mode mode,
                                                std::optional<std::uint32_t> worker = {}) const = 0;
  /// dtype and shape of the value, without reading it.
  struct ValueShape {
    DType dtype = DType::kInvalid;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> global_shape, global_offset;  // of shards
    std::uint32_t worker = 0;
  };
  [[nodiscard]] virtual Result<ValueShape> Shape(TensorId id, std::int64_t step, Mode mode,
                                                 std::optional<std::uint32_t> worker = {}) const = 0;
  /// Values of many steps, one after another in memory, all of one dtype and shape. `steps` ascend.
  struct Stack {
    DType dtype = DType::kInvalid;
    std::vector<std::int64_t> shape;  // of one value
    std::vector<std::int64_t> steps;
    std::shared_ptr<std::byte> bytes;
    std::uint64_t byte_count = 0;
  };
  /// Reads the raw values of all steps of the mode that have one. Further errors: kFailedPrecondition when
  /// shapes differ, kResourceExhausted beyond `max_bytes`.
  [[nodiscard]] virtual Result<Stack> ReadStack(TensorId id, Mode mode, std::optional<std::uint32_t> worker,
                                                std::uint64_t max_bytes) const = 0;
  [[nodiscard]] virtual Result<Summary> ReadSummary(TensorId id, std::int64_t step, Mode mode,
                                                    std::optional<std::uint32_t> worker = {}) const;
  /// Same, with the step's numbers, dtype and worker.
  [[nodiscard]] virtual Result<SummaryAt> ReadSummaryAt(TensorId id, std::int64_t step, Mode mode,
                                                        std::optional<std::uint32_t> worker = {}) const = 0;
  [[nodiscard]] virtual Result<SummaryColumns> Summaries(TensorId id, Mode mode,
                                                         std::optional<std::uint32_t> worker = {}) const;
  /// Same, but shared with a small cache: a repeated call copies nothing if there is no new data.
  [[nodiscard]] virtual Result<std::shared_ptr<const SummaryColumns>> SharedSummaries(
      TensorId id, Mode mode, std::optional<std::uint32_t> worker = {}) const = 0;
  /// Reads the difference, the extra reductions or the hash. kOutOfRange if that form was not recorded.
  [[nodiscard]] virtual Result<format::FormRow> ReadForm(TensorId id, format::Form form, std::int64_t step,
                                                         Mode mode,
                                                         std::optional<std::uint32_t> worker = {}) const = 0;
  [[nodiscard]] virtual Result<UnitCounts> Units(TensorId id, std::int64_t step, Mode mode,
                                                 std::optional<std::uint32_t> worker = {}) const = 0;
  [[nodiscard]] virtual Result<std::vector<ScalarAt>> Scalars(
      TensorId id, Mode mode, std::optional<std::uint32_t> worker = {}) const = 0;
  [[nodiscard]] virtual Result<SparseHistogram> Histogram(TensorId id, std::int64_t step, Mode mode,
                                                          std::optional<std::uint32_t> worker = {}) const = 0;
  /// Statistics that the job itself saved; Luff's own runs have summaries instead.
  [[nodiscard]] virtual Result<std::vector<SavedReduction>> SavedReductions(
      TensorId id, std::int64_t step, Mode mode, std::optional<std::uint32_t> worker = {}) const {
    (void)id, (void)step, (void)mode, (void)worker;
    return std::vector<SavedReduction>();
  }
};

/// The recorded data of all tensors and workers: the rows of one step, for rules, and events, gaps and
/// acknowledgements of the whole run.
class TrialRows {
 public:
  virtual ~TrialRows() = default;
  struct SummaryEntry {
    TensorId tensor;
    std::uint32_t worker;
    DType dtype;
    Summary summary;
  };
  struct ScalarEntry {
    TensorId tensor;
    std::uint32_t worker;
    double value;
  };
  struct UnitEntry {
    TensorId tensor;
    std::uint32_t worker;
    UnitCounts counts;
  };
  struct FormEntry {
    TensorId tensor;
    std::uint32_t worker;
    format::FormRow row;
  };
  struct StepRows {
    StepInfo info;
    std::vector<SummaryEntry> summaries;
    std::vector<ScalarEntry> scalars;
    std::vector<UnitEntry> units;
    std::vector<FormEntry> forms;  // hash, difference, extra
    std::vector<EventAt> events;
    std::vector<std::string> event_json;
    std::vector<StepPhases> phases;  // one for each worker that recorded them
  };
  /// Rows of the n-th complete step. Reuses the vectors of `out`.
  [[nodiscard]] virtual Status ReadStepRows(std::size_t n, StepRows* out) const = 0;

  /// The contents of a step that StepRows lacks: which raw values exist, and histograms.
  struct StepContents {
    struct ValueEntry {
      TensorId tensor;
      std::uint32_t worker;
    };
    struct HistogramEntry {
      TensorId tensor;
      std::uint32_t worker;
      SparseHistogram bins;
    };
    std::vector<ValueEntry> values;
    std::vector<HistogramEntry> histograms;  // recorded ones only
  };
  /// Reads the contents of the n-th complete step. Reuses the vectors of `out`.
  [[nodiscard]] virtual Status ReadStepContents(std::size_t n, StepContents* out) const {
    (void)n;
    out->values.clear();
    out->histograms.clear();
    return Status::Ok();
  }

  [[nodiscard]] virtual std::vector<GapInfo> Gaps() const = 0;
  [[nodiscard]] virtual std::vector<EventAt> Events(Mode mode) const = 0;
  /// Events as JSON, of all complete steps: (global step, worker, text).
  struct JsonEvent {
    std::int64_t global_step = 0;
    std::uint32_t worker = 0;
    std::string json;
  };
  [[nodiscard]] virtual std::vector<JsonEvent> JsonEvents() const = 0;
  /// Answers of workers to control records: (worker, row).
  [[nodiscard]] virtual std::vector<std::pair<std::uint32_t, format::AckRow>> Acks() const = 0;
};

/// A run opened for reading. Nothing is parsed before it is needed. If a run with live pages has nothing new,
/// Refresh() reads 64 bytes for each worker, and more every half second. Not even const functions may be
/// called concurrently, because they fill caches; Python's trial is thread-safe because its binding holds a
/// lock.
///
/// Steps are complete when every worker that is alive and not ended has passed them. All functions show
/// complete steps only, unless said otherwise. Errors of all: kNotFound (with the three nearest names) for
/// unknown tensors, kOutOfRange for steps that were not saved (message names the nearest saved steps),
/// kUnavailable for steps that are not complete yet, kCorruption.
class Trial : public TrialNames, public TrialSteps, public TrialValues, public TrialRows {
 public:
  /// Opens a run, or a directory that smdebug writes or wrote (docs/spec/smdebug.md).
  /// Errors: kNotFound (no such directory), kFailedPrecondition (a directory that is no run),
  /// kUnsupportedVersion (names both versions), kCorruption (run.json).
  [[nodiscard]] static Result<std::unique_ptr<Trial>> Open(const std::string& path,
                                                           const OpenOptions& options = {});

  /// Reads what was published since the last call. Returns true if something new became visible.
  virtual Result<bool> Refresh() = 0;
  /// Like Refresh(), but scans every folder, even one that was scanned a moment ago. For the final refresh
  /// after a job has ended.
  virtual Result<bool> RefreshAll() { return Refresh(); }
  /// Refreshes until a new complete step, the end of the run, or the time-out. Returns true if there is
  /// something new.
  virtual Result<bool> WaitForNews(std::chrono::milliseconds timeout) = 0;
  /// Waits for a step. kDeadlineExceeded after the time-out, kOutOfRange when the step can never come.
  virtual Status WaitForStep(std::int64_t step, Mode mode, std::chrono::milliseconds timeout) = 0;
  /// How long a waiting caller should pause before the next Refresh(), given the previous pause `last` (0:
  /// none yet).
  [[nodiscard]] virtual std::chrono::nanoseconds PauseAfter(std::chrono::nanoseconds last) const {
    return last;
  }
  /// Shows only the first `steps` complete steps, so that a rule sees the run as it was then, no matter when
  /// it reads it. The limit can only grow; steps already shown stay visible.
  virtual void ShowAtMost(std::size_t steps) { (void)steps; }
  /// True if all workers have ended (or are lost) and everything has been read.
  [[nodiscard]] virtual bool loaded_all_steps() const noexcept = 0;
  /// True while rows are here whose values are still on their way: of a run in a bucket whose upload cannot
  /// keep up with the values.
  [[nodiscard]] virtual bool awaits_values() const { return false; }
  /// How many reads of values have failed because they are not in the bucket yet, or it does not answer.
  /// Whoever takes a failed read for "no value" sees here that it is none.
  [[nodiscard]] virtual std::uint64_t values_missed() const noexcept { return 0; }
  /// Of a run in a bucket: its URL, how far the copy is, and what keeps it from going on, for people; "" of
  /// all others.
  [[nodiscard]] virtual std::string MirrorNote() const { return {}; }
  [[nodiscard]] virtual const std::string& path() const noexcept = 0;
  [[nodiscard]] virtual std::int64_t created_unix_ns() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t world_size() const noexcept = 0;
  [[nodiscard]] virtual std::vector<WorkerInfo> workers() const = 0;
  /// "running", "completed", "stopped" or "failed" and why (for `luff show`).
  struct Outcome {
    std::string state;
    std::string why;
  };
  [[nodiscard]] virtual Outcome outcome() const = 0;
  /// Damage found so far: file, place, what is lost. Bounded in number.
  [[nodiscard]] virtual std::vector<std::string> Problems() const = 0;
};

}  // namespace luff::query

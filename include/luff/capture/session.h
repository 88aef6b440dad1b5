#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "luff/base/result.h"
#include "luff/format/layout.h"
#include "luff/tensor/view.h"

/// The capture API that the training process calls. One session per worker.
///
/// Promises, in this order: the training's results are bit-identical; it never fails, hangs or runs out of
/// memory because of us; the cost is low; what is missing is recorded as a gap. So nothing here throws,
/// prints, exits or blocks without a bound. After a broken invariant the session accepts nothing more, and
/// health() says why.
namespace luff::store {
struct Training;
}

namespace luff::capture {

class ModuleTimer;

using TensorId = std::uint32_t;
using LayoutId = std::uint32_t;

struct SessionOptions {
  std::string run_path;
  bool resume = false;
  bool join = false;         // another worker may have created the run already
  std::uint32_t worker = 0;  // kNoId: take the lowest free number (process without a rank)
  std::uint32_t world_size = 1;
  std::string config_json;   // collections, budgets: see config.h; "" = defaults
  std::string command_json;  // argument vector, for run.json
  bool writer_thread = true;
  /// Program that measures the machine meanwhile, unless one does already or the configuration's profile is
  /// off: path of `luff`, and its environment as "NAME=VALUE". "": none.
  std::string sampler;
  std::vector<std::string> sampler_environment;
};

/// One tensor to capture now. It has 32 bytes, so that Python passes a uint64[n, 4] array: id | layout << 32,
/// address, storage key, flags.
struct TensorRef {
  TensorId id = 0;
  LayoutId layout = 0;
  const std::byte* data = nullptr;
  /// Identifies live memory within the step: tensors of the same key, address and layout are aliases, stored
  /// once. 0: never an alias.
  std::uint64_t storage_key = 0;
  std::uint64_t flags = 0;  // 0 or kReplicaFlag
};
static_assert(sizeof(TensorRef) == 32);

/// Another worker holds and stores the same value. This worker stores only a content hash, by which readers
/// find the other worker's value. Values larger than one block are stored anyway, in parts.
inline constexpr std::uint64_t kReplicaFlag = 2;

/// Where memory of an accelerator is, and behind which work of it the values are right.
struct DevicePlace {
  std::int32_t device = 0;   // number of the device among those that the process sees
  std::uint64_t stream = 0;  // the framework's handle (CUstream as a number); 0: the default stream
  std::uint64_t divisor =
      0;  // device address of a float32 that the values are divided by (a loss scale); 0: none
};

/// What has become of a read of an accelerator's memory.
enum class LateRead : std::uint8_t { kWaits, kHere, kLost };

/// Memory of an accelerator.
struct DeviceRange {
  std::uint64_t data = 0;  // device address
  std::uint64_t bytes = 0;
};

/// One number in the memory of an accelerator.
struct DeviceScalar {
  TensorId id = 0;
  LayoutId layout = 0;  // one float32 or float64: how a collection that wants the value as a tensor stores it
  DType dtype = DType::kInvalid;  // of the memory: float64, float32, float16, bfloat16, int64 or int32
  std::uint64_t data = 0;         // device address
  double factor = 1;              // multiplies it
};

struct StepEnd {
  format::Mode mode = format::Mode::kTrain;
  std::int64_t global_step = 0, mode_step = 0, update = 0;
  /// For a step that ended earlier and is recorded only now: the Unix time of its end, and its duration. 0:
  /// it ends now.
  std::int64_t wall_unix_ns = 0, duration_ns = 0;
};

struct Counter {
  std::string name;  // "captured", "raw_values", "gaps", ...
  std::uint64_t value;
};
struct Health {
  bool accepting = true;
  std::string first_error;  // "" if none
  std::vector<Counter> counters;
  double overhead_ratio = 0;  // capture time / step time, recent
};

/// What a control record requires of the training (docs/spec/control.md).
enum class StopState : std::uint8_t { kNone = 0, kWait = 1, kStop = 2, kAct = 3 };

/// A corrective action that all ranks have agreed on and must carry out now.
struct PendingAction {
  std::uint64_t control = 0;  // number of the proposal
  std::string kind;           // "lower_lr", "skip_batch", "rollback"
  std::string body;           // JSON object
  std::string reason;
};

/// A summary that the caller computed over the finite values (include/luff/tensor/summary.h). Minimum and
/// maximum of integer types are exact up to 2^53.
struct GivenSummary {
  double sum = 0, sum_sq = 0, abs_sum = 0, min = 0, max = 0;
  std::uint64_t zero_count = 0, nan_count = 0, inf_count = 0;
};

/// Returns the run that this process's training records into, in a job that may start several trainings:
/// store::FindTraining, within a minute. Errors: kUnavailable when the directory does not answer.
[[nodiscard]] Result<std::string> FindRun(const std::string& first_run, const store::Training& wanted,
                                          std::uint32_t rank, bool resume);

/// **Thread-safe** unless noted otherwise. The step calls (BeginStep … EndStep) must come from one thread at
/// a time; captures may come from several. Create it only when the first step begins: before that, no file
/// and no thread exists.
class Session {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Session>> Open(const SessionOptions& options);
  virtual ~Session() = default;  // closes with a deadline of 2 s, reason kFailed, if Close was not called

  // ---- Definitions (cold) ----

  /// Matches the name against the collections once; the same name returns the same id. Never fails: beyond 1
  /// M names it returns kNoId (a gap).
  virtual TensorId DefineTensor(std::string_view name, format::Role role, std::string_view module_path,
                                std::string_view module_type) noexcept = 0;
  virtual LayoutId DefineLayout(const Layout& layout) noexcept = 0;
  virtual LayoutId DefineShardLayout(const Layout& layout, std::span<const std::int64_t> global_shape,
                                     std::span<const std::int64_t> global_offset) noexcept = 0;
  /// Records a JSON document of the run ("model", "environment") of at most 16 MiB.
  virtual void SetDocument(std::string_view name, std::string_view json) noexcept = 0;

  // ---- Plan (hot) ----

  /// Starts a step in the expected mode; decides what is due by each collection's save configuration.
  virtual void BeginStep(format::Mode mode, std::int64_t mode_step) noexcept = 0;
  /// Form bits due in this step for any tensor of the role. 0: nothing is due, and the hook costs one flag
  /// test.
  [[nodiscard]] virtual std::uint32_t DueForms(format::Role role) const noexcept = 0;
  /// The roles (RoleBit) of which DueForms is not 0.
  [[nodiscard]] virtual std::uint32_t DueRoles() const noexcept = 0;
  /// Form bits due in this step for one tensor.
  [[nodiscard]] virtual std::uint32_t DueForms(TensorId id) const noexcept = 0;

  /// True if capturing these reads more than 32 KiB; a caller that holds a global lock should release it
  /// then.
  [[nodiscard]] virtual bool WorthReleasing(std::span<const TensorRef> refs) const noexcept = 0;

  // ---- Capture (hot) ----

  /// Copies and summarises what is due. Memory may be changed or freed as soon as it returns.
  virtual void Capture(std::span<const TensorRef> refs) noexcept = 0;
  /// The same for values to be multiplied by `factor` first, e.g. by 1 / scale for gradients that a fused
  /// optimizer will unscale.
  virtual void CaptureScaled(std::span<const TensorRef> refs, double factor) noexcept = 0;
  /// If a summary is due, records one that was computed elsewhere: on an accelerator, or inside a compiled
  /// function. Counts that are impossible for the layout become a gap, and so does every other form that is
  /// due.
  virtual void CaptureSummary(TensorId id, LayoutId layout, const GivenSummary& summary) noexcept = 0;
  /// Captures tensors in the memory of an accelerator: `data` are device addresses. Enqueues kernels and
  /// copies behind the work of the stream, and waits for nothing; memory may be changed by later work of the
  /// stream, and be freed as the framework's allocator frees it. The values belong to the step in progress,
  /// which is published when they have arrived, at most 64 steps or 10 s later (docs/gpu.md). Every form;
  /// what finds no room on the device becomes a gap, after at most 200 ms a step under the policy `block`.
  virtual void CaptureOnDevice(std::span<const TensorRef> refs, const DevicePlace& place,
                               double factor) noexcept = 0;
  /// The same for a number, which is recorded as Scalar does, and as a tensor where a collection wants it.
  virtual void ScalarOnDevice(const DeviceScalar& scalar, const DevicePlace& place) noexcept = 0;
  /// Hashes memory of an accelerator behind the work of the stream; at most 16 ranges, 32 KiB in all. Returns
  /// what stands for the hash as the argument of events kBatch of this step, which get it when it has
  /// arrived, or are dropped; 0 if nothing can be read now. Of one range: `seed` XOR its Hash; of several:
  /// `seed`, for each range times 31 plus its Hash.
  [[nodiscard]] virtual std::uint64_t HashOnDevice(std::uint64_t seed, std::span<const DeviceRange> ranges,
                                                   const DevicePlace& place) noexcept = 0;
  /// Reads memory of an accelerator behind the work of the stream, at most 256 ranges and 64 KiB in all, for
  /// the caller: nothing of it is recorded. Returns a number for TakeRead; 0 if nothing can be read now, or
  /// 16 reads are on their way.
  [[nodiscard]] virtual std::uint64_t ReadOnDevice(std::span<const DeviceRange> ranges,
                                                   const DevicePlace& place) noexcept = 0;
  /// Whether a read has come; if so, its ranges one behind the other. Never waits. Forgets reads that are not
  /// kWaits. Those that nobody takes go with the session.
  [[nodiscard]] virtual LateRead TakeRead(std::uint64_t read, std::string* bytes) noexcept = 0;
  /// A phase of the training begins behind the work of the stream. The step gets the times of its phases on
  /// the device, from one such border to the next, once the device has passed them. Of one device in a
  /// session; ignored before something was read there, and while a graph is captured.
  virtual void BeginPhaseOnDevice(format::Phase phase, const DevicePlace& place) noexcept = 0;
  /// The step ends there. Right before EndStep, on the same thread.
  virtual void EndStepOnDevice(const DevicePlace& place) noexcept = 0;
  virtual void Scalar(TensorId id, double value) noexcept = 0;
  virtual void Text(TensorId id, std::string_view utf8) noexcept = 0;  // strings as events
  virtual void Event(format::EventKind kind, std::uint32_t subject, std::uint64_t argument) noexcept = 0;
  virtual void EventJson(std::string_view json) noexcept = 0;
  virtual void Gap(TensorId id, format::GapReason reason, std::uint32_t forms,
                   std::uint64_t count) noexcept = 0;
  /// Content hash of memory (batches). 0 for empty.
  [[nodiscard]] virtual std::uint64_t Hash(const std::byte* data, std::size_t bytes) const noexcept = 0;
  /// How many summaries so far contained values that are not finite. One atomic load.
  [[nodiscard]] virtual std::uint64_t nonfinite_summaries() const noexcept = 0;
  /// The step in progress has these times of modules.
  virtual void ModuleTimes(const ModuleTimer& timer) noexcept = 0;
  /// From now on operators are traced for Luff; false: no more from the end of the step in progress on. Such
  /// steps are marked, since they are slower than others.
  virtual void Traced(bool begins) noexcept = 0;
  /// The step in progress began its phase `compute` with a wait for data of so many ns.
  virtual void Waited(std::int64_t ns) noexcept = 0;
  /// The next EndStep with a time is of a step that has ended now, on this thread: keeps where its time went.
  /// Steps that end so are handed over in their order.
  virtual void MarkStepEnd() noexcept = 0;
  /// Hands the step to the writer thread. Never waits for the disk, except under the policy `block`
  /// (bounded). At most 64 MiB of rows and one more step wait for the disk; further steps become a gap
  /// (docs/capture.md).
  virtual void EndStep(const StepEnd& step) noexcept = 0;
  /// Drops everything captured since BeginStep except events (for a forward pass that turned out to be
  /// something else).
  virtual void AbandonStep() noexcept = 0;

  // ---- Control ----

  /// One atomic load. If it is not kNone, call AtStepBoundary when a TRAIN step has ended.
  [[nodiscard]] virtual StopState stop_state() const noexcept = 0;
  /// Call after TRAIN step `train_step` (the count of finished TRAIN steps). Returns kNone at once if no
  /// proposal names this step. Otherwise waits for commit (kStop, or kAct: see TakeAction) or abort (kNone),
  /// at most the proposal's deadline, or 60 s if that is shorter, plus 5 s.
  virtual StopState AtStepBoundary(std::int64_t train_step) noexcept = 0;
  [[nodiscard]] virtual std::string stop_reason() const = 0;
  /// Sets the kinds of corrective actions that the training has opted into; all others are refused.
  virtual void AcceptActions(std::span<const std::string> kinds) noexcept = 0;
  /// After kAct: returns the action to carry out, once. Then call ActionDone, with false if it failed.
  [[nodiscard]] virtual std::optional<PendingAction> TakeAction() noexcept = 0;
  virtual void ActionDone(std::uint64_t control, bool done) noexcept = 0;

  // ---- End ----

  virtual bool Flush(
      std::chrono::milliseconds deadline) noexcept = 0;  // true: everything so far is published
  virtual void Close(format::EndReason reason, std::chrono::milliseconds deadline) noexcept = 0;
  /// Ends the recording from one of our own threads, wherever the training is: in the middle of a step (which
  /// becomes a gap) or in one of our calls. Returns true if everything handed over, and the end mark, is
  /// published.
  virtual bool EndNow(format::EndReason reason, std::chrono::milliseconds deadline) noexcept = 0;
  /// In a forked child: forgets the parent's thread and files without touching them.
  virtual void AfterForkInChild() noexcept = 0;
  [[nodiscard]] virtual Health health() const = 0;
  [[nodiscard]] virtual std::uint32_t worker() const noexcept = 0;
  /// Whether memory of accelerators is read at all (Config::accelerators). If not, callers need not prepare
  /// it.
  [[nodiscard]] virtual bool reads_accelerators() const noexcept = 0;
};

}  // namespace luff::capture

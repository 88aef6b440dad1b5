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

/// Capture: what a training process calls. One session per worker.
///
/// Promises, in this order: results of the training are bit-identical; it never fails, hangs or runs out of
/// memory because of us; cost; what is missing is said (gap). So nothing here throws, prints, exits or blocks
/// without a bound; after a broken invariant the session stops accepting and Health() says why.
namespace luff::capture {

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
};

/// One tensor to look at now. 32 bytes, so that Python hands over an uint64[n, 4] array: id | layout << 32,
/// address, storage key, flags.
struct TensorRef {
  TensorId id = 0;
  LayoutId layout = 0;
  const std::byte* data = nullptr;
  /// Identifies live memory within the step: same key, address and layout = alias, stored once. 0: never an
  /// alias.
  std::uint64_t storage_key = 0;
  std::uint64_t flags = 0;  // of kReplicaFlag
};
static_assert(sizeof(TensorRef) == 32);

/// Another worker holds the same value and stores it: of this one a content hash is kept in its place, by
/// which readers find it. Values beyond one block (parts) are stored nevertheless.
inline constexpr std::uint64_t kReplicaFlag = 2;

struct StepEnd {
  format::Mode mode = format::Mode::kTrain;
  std::int64_t global_step = 0, mode_step = 0, update = 0;
  /// Of a step that ended earlier and is recorded only now: Unix time of its end, and how long it took. 0:
  /// ends now.
  std::int64_t wall_unix_ns = 0, duration_ns = 0;
};

struct Counter {
  std::string name;  // "captured_values", "gaps.pool_full", ...
  std::uint64_t value;
};
struct Health {
  bool accepting = true;
  std::string first_error;  // "" if none
  std::vector<Counter> counters;
  double overhead_ratio = 0;  // capture time / step time, recent
};

/// What a control record asks of the training (docs/spec/control.md).
enum class StopState : std::uint8_t { kNone = 0, kWait = 1, kStop = 2, kAct = 3 };

/// A corrective action that all ranks have agreed on and that has to be carried out now.
struct PendingAction {
  std::uint64_t control = 0;  // number of the proposal
  std::string kind;           // "lower_lr", "skip_batch", "rollback"
  std::string body;           // JSON object
  std::string reason;
};

/// A summary as somebody else has computed it, over the finite values (include/luff/tensor/summary.h). Limits
/// of integer types are exact up to 2^53.
struct GivenSummary {
  double sum = 0, sum_sq = 0, abs_sum = 0, min = 0, max = 0;
  std::uint64_t zero_count = 0, nan_count = 0, inf_count = 0;
};

/// **Thread-safe** unless said otherwise; the step calls (BeginStep … EndStep) are expected from one thread
/// at a time, captures may come from several. Created only when the first step begins: before that no file
/// and no thread exists.
class Session {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Session>> Open(const SessionOptions& options);
  virtual ~Session() = default;  // closes with a deadline of 2 s, reason kFailed, if Close was not called

  // Definitions (cold)
  // ------------------------------------------------------------------------------------------------
  /// Matches the collections once; the same name gives the same id. Never fails: beyond 1 M names returns
  /// kNoId (a gap).
  virtual TensorId DefineTensor(std::string_view name, format::Role role, std::string_view module_path,
                                std::string_view module_type) noexcept = 0;
  virtual LayoutId DefineLayout(const Layout& layout) noexcept = 0;
  virtual LayoutId DefineShardLayout(const Layout& layout, std::span<const std::int64_t> global_shape,
                                     std::span<const std::int64_t> global_offset) noexcept = 0;
  /// A JSON document of the run ("model", "environment"), bounded to 16 MiB.
  virtual void SetDocument(std::string_view name, std::string_view json) noexcept = 0;

  // Plan (hot)
  // --------------------------------------------------------------------------------------------------------
  /// Starts a step in the expected mode; decides what is due by each collection's save configuration.
  virtual void BeginStep(format::Mode mode, std::int64_t mode_step) noexcept = 0;
  /// Form bits due in this step for any tensor of the role (0: nothing; the hook then is one flag test).
  [[nodiscard]] virtual std::uint32_t DueForms(format::Role role) const noexcept = 0;
  /// Form bits due in this step for one tensor.
  [[nodiscard]] virtual std::uint32_t DueForms(TensorId id) const noexcept = 0;

  /// True if capturing these reads more than 32 KiB: then a caller with a global lock lets go of it.
  [[nodiscard]] virtual bool WorthReleasing(std::span<const TensorRef> refs) const noexcept = 0;

  // Capture (hot)
  // -----------------------------------------------------------------------------------------------------
  /// Copies and summarises what is due. Memory may be changed or freed as soon as it returns.
  virtual void Capture(std::span<const TensorRef> refs) noexcept = 0;
  /// The same for values to be multiplied by `factor` (gradients that a fused optimizer will unscale: 1 /
  /// scale).
  virtual void CaptureScaled(std::span<const TensorRef> refs, double factor) noexcept = 0;
  /// Records, where one is due, a summary that was computed where the values are: on an accelerator, inside
  /// of a compiled function. Counts that no tensor of the layout has are a gap, and so is every other form
  /// that is due.
  virtual void CaptureSummary(TensorId id, LayoutId layout, const GivenSummary& summary) noexcept = 0;
  virtual void Scalar(TensorId id, double value) noexcept = 0;
  virtual void Text(TensorId id, std::string_view utf8) noexcept = 0;  // strings as events
  virtual void Event(format::EventKind kind, std::uint32_t subject, std::uint64_t argument) noexcept = 0;
  virtual void EventJson(std::string_view json) noexcept = 0;
  virtual void Gap(TensorId id, format::GapReason reason, std::uint32_t forms,
                   std::uint64_t count) noexcept = 0;
  /// Content hash of memory (batches). 0 for empty.
  [[nodiscard]] virtual std::uint64_t Hash(const std::byte* data, std::size_t bytes) const noexcept = 0;
  /// How many summaries so far were of tensors that were not finite throughout. One atomic load.
  [[nodiscard]] virtual std::uint64_t nonfinite_summaries() const noexcept = 0;
  /// Hands the step to the writer thread. Never waits for the disk, except by the policy `block` (bounded).
  /// What waits for the disk is bounded: 64 MiB of rows, and a step more; beyond that steps are a gap
  /// (docs/capture.md).
  virtual void EndStep(const StepEnd& step) noexcept = 0;
  /// Drops everything captured since BeginStep (a forward pass that turned out to be something else).
  virtual void AbandonStep() noexcept = 0;

  // Control
  // -----------------------------------------------------------------------------------------------------------
  /// One atomic load. Other than kNone: call AtStepBoundary when a TRAIN step has ended.
  [[nodiscard]] virtual StopState stop_state() const noexcept = 0;
  /// Called after TRAIN step `train_step` (count of finished TRAIN steps). Returns kNone at once when no
  /// proposal names this step; else waits, at most the proposal's deadline and 5 s, for commit (kStop, or
  /// kAct: see TakeAction) or abort (kNone).
  virtual StopState AtStepBoundary(std::int64_t train_step) noexcept = 0;
  [[nodiscard]] virtual std::string stop_reason() const = 0;
  /// Kinds of corrective actions that the training has opted into; all others are refused.
  virtual void AcceptActions(std::span<const std::string> kinds) noexcept = 0;
  /// After kAct: what to do, once. Then ActionDone, with false when it could not be done.
  [[nodiscard]] virtual std::optional<PendingAction> TakeAction() noexcept = 0;
  virtual void ActionDone(std::uint64_t control, bool done) noexcept = 0;

  // End
  // ---------------------------------------------------------------------------------------------------------------
  virtual bool Flush(
      std::chrono::milliseconds deadline) noexcept = 0;  // true: everything so far is published
  virtual void Close(format::EndReason reason, std::chrono::milliseconds deadline) noexcept = 0;
  /// Ends the recording from a thread of our own while the training is anywhere, e.g. in the middle of a step
  /// (which becomes a gap) and in our own calls. True: all that was handed over is published, and the end
  /// too.
  virtual bool EndNow(format::EndReason reason, std::chrono::milliseconds deadline) noexcept = 0;
  /// In a forked child: forget the parent's thread and files without touching them.
  virtual void AfterForkInChild() noexcept = 0;
  [[nodiscard]] virtual Health health() const = 0;
  [[nodiscard]] virtual std::uint32_t worker() const noexcept = 0;
};

}  // namespace luff::capture

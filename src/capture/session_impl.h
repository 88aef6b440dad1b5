#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "capture/core.h"
#include "capture/file_thread.h"
#include "capture/phase_clock.h"
#include "luff/base/env.h"
#include "luff/store/loss.h"

namespace luff::capture {

/// The only implementation of Session. Forwards to producers. An exception ends the recording, and its reason
/// is recorded.
class SessionImpl final : public Session {
 public:
  /// `writer` and `read` are the store's, or a test's. `thread`, on which `writer` was opened, becomes the
  /// writer thread; if it is null, there is none.
  [[nodiscard]] static Result<std::unique_ptr<Session>> Start(
      Config config, std::unique_ptr<store::WorkerWriter> writer, std::uint32_t worker,
      std::unique_ptr<FileThread> thread, std::string control_directory, std::uint64_t control_after,
      ControlPoll::Read read, ControlPoll::Decide decide = {}, const QueueLimits& limits = {},
      std::unique_ptr<SamplerKeeper> sampler = nullptr);
  ~SessionImpl() override;

  TensorId DefineTensor(std::string_view name, format::Role role, std::string_view module_path,
                        std::string_view module_type) noexcept override;
  LayoutId DefineLayout(const Layout& layout) noexcept override;
  LayoutId DefineShardLayout(const Layout& layout, std::span<const std::int64_t> global_shape,
                             std::span<const std::int64_t> global_offset) noexcept override;
  void SetDocument(std::string_view name, std::string_view json) noexcept override;
  void BeginStep(format::Mode mode, std::int64_t mode_step) noexcept override;
  [[nodiscard]] std::uint32_t DueForms(format::Role role) const noexcept override;
  [[nodiscard]] std::uint32_t DueRoles() const noexcept override {
    return due_roles_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint32_t DueForms(TensorId id) const noexcept override;
  [[nodiscard]] bool WorthReleasing(std::span<const TensorRef> refs) const noexcept override;
  void Capture(std::span<const TensorRef> refs) noexcept override;
  void CaptureScaled(std::span<const TensorRef> refs, double factor) noexcept override;
  void CaptureSummary(TensorId id, LayoutId layout, const GivenSummary& summary) noexcept override;
  void CaptureOnDevice(std::span<const TensorRef> refs, const DevicePlace& place,
                       double factor) noexcept override;
  void ScalarOnDevice(const DeviceScalar& scalar, const DevicePlace& place) noexcept override;
  std::uint64_t HashOnDevice(std::uint64_t seed, std::span<const DeviceRange> ranges,
                             const DevicePlace& place) noexcept override;
  std::uint64_t ReadOnDevice(std::span<const DeviceRange> ranges, const DevicePlace& place) noexcept override;
  LateRead TakeRead(std::uint64_t read, std::string* bytes) noexcept override;
  void BeginPhaseOnDevice(format::Phase phase, const DevicePlace& place) noexcept override;
  void EndStepOnDevice(const DevicePlace& place) noexcept override;
  void Scalar(TensorId id, double value) noexcept override;
  void Text(TensorId id, std::string_view utf8) noexcept override;
  void Event(format::EventKind kind, std::uint32_t subject, std::uint64_t argument) noexcept override;
  void EventJson(std::string_view json) noexcept override;
  void Gap(TensorId id, format::GapReason reason, std::uint32_t forms, std::uint64_t count) noexcept override;
  [[nodiscard]] std::uint64_t Hash(const std::byte* data, std::size_t bytes) const noexcept override;
  void ModuleTimes(const ModuleTimer& timer) noexcept override;
  void Traced(bool begins) noexcept override;
  void Waited(std::int64_t ns) noexcept override { waited_ns_ = ns; }
  void MarkStepEnd() noexcept override;
  void EndStep(const StepEnd& step) noexcept override;
  [[nodiscard]] std::uint64_t nonfinite_summaries() const noexcept override {
    return core_->counters.nonfinite.load(std::memory_order_relaxed);
  }
  void AbandonStep() noexcept override;
  [[nodiscard]] StopState stop_state() const noexcept override { return core_->gate.state(); }
  StopState AtStepBoundary(std::int64_t train_step) noexcept override;
  [[nodiscard]] std::string stop_reason() const override;
  void AcceptActions(std::span<const std::string> kinds) noexcept override;
  [[nodiscard]] std::optional<PendingAction> TakeAction() noexcept override;
  void ActionDone(std::uint64_t control, bool done) noexcept override;
  bool Flush(std::chrono::milliseconds deadline) noexcept override;
  void Close(format::EndReason reason, std::chrono::milliseconds deadline) noexcept override;
  bool EndNow(format::EndReason reason, std::chrono::milliseconds deadline) noexcept override;
  void AfterForkInChild() noexcept override;
  [[nodiscard]] Health health() const override;
  [[nodiscard]] std::uint32_t worker() const noexcept override { return worker_; }
  [[nodiscard]] bool reads_accelerators() const noexcept override { return reads_accelerators_; }

 private:
  SessionImpl(std::shared_ptr<Core> core, std::uint32_t worker);
  [[nodiscard]] bool accepting() const noexcept;
  /// Returns true if the recording continues and this thread has the thread-local state it needs. Each call
  /// that may throw checks this first. Ends the recording if there is no memory for that state.
  [[nodiscard]] bool Accepts() noexcept;
  [[nodiscard]] Producer* ThisThread();
  [[nodiscard]] ProducerContext MakeContext() const;
  /// True if an error has ended the recording and the session is not closed yet.
  [[nodiscard]] bool Failed() const noexcept {
    return core_->failed.load(std::memory_order_relaxed) &&
           !core_->close_asked.load(std::memory_order_relaxed);
  }
  /// Stops accepting; nothing is due any more.
  void Sleep() noexcept;
  void NoRoleIsDue() noexcept;
  /// Call while handling an exception: ends the recording and records why.
  void Fail(const char* where) noexcept;
  void HandOver(const StepEnd& step) noexcept LUFF_EXCLUDES(mutex_);
  /// Moves to `work` what belongs to the step: rows of producers, new definitions, documents, and gaps for
  /// earlier steps that were lost.
  void Collect(Work* work) LUFF_EXCLUDES(mutex_);
  void Drop(Work* work) LUFF_EXCLUDES(mutex_);
  void HandOverRest() LUFF_EXCLUDES(mutex_);
  /// Records as gaps what an immediate end leaves out: steps that did not fit into the queue, and open steps.
  /// Waits for the lock at most `patience`.
  void TellWhatIsMissing(std::chrono::milliseconds patience) LUFF_EXCLUDES(mutex_);
  /// Bounds what steps may still wait for, before the end.
  void WaitForLate(std::chrono::milliseconds deadline) noexcept;
  /// Waits for the writer thread to end. Returns false if the deadline passes first.
  [[nodiscard]] bool WaitForWriter(std::chrono::milliseconds deadline) noexcept;
  /// Says of a step that was traced or timed that it was, with the times of its modules.
  void AddMarks(store::StepBatch* batch) noexcept;
  /// What Luff takes of the training's time, for the governor and the phases.
  void Timed(const char* where, auto&& capture) noexcept {
    const std::int64_t begin = Env::Real().NowMonotonicNs();
    EnterLuff(begin);
    try {
      capture();
    } catch (...) {
      Fail(where);
    }
    const std::int64_t end = Env::Real().NowMonotonicNs();
    LeaveLuff(end);
    capture_ns_.fetch_add(end - begin, std::memory_order_relaxed);
  }
  void CaptureRefs(std::span<const TensorRef> refs, double factor) noexcept;
  void Add(std::uint64_t bytes_of_text, auto&& add) noexcept;

  std::shared_ptr<Core> core_;
  const std::uint32_t worker_;
  const bool reads_accelerators_;
  const std::uint64_t serial_;  // distinguishes the sessions of one process
  const std::uint64_t fork_count_;
  std::thread thread_;
  bool has_thread_ = false;

  mutable Mutex mutex_;
  std::vector<std::shared_ptr<Producer>> producers_ LUFF_GUARDED_BY(mutex_);
  std::vector<std::pair<std::string, std::string>> documents_ LUFF_GUARDED_BY(mutex_);
  struct Read {
    std::uint64_t number = 0;
    std::size_t ranges = 0;
    std::shared_ptr<device::Ticket> ticket;
  };
  std::vector<Read> reads_ LUFF_GUARDED_BY(mutex_);  // for the caller, that nobody has taken
  std::uint64_t last_read_ LUFF_GUARDED_BY(mutex_) = 0;
  store::LossLedger lost_ LUFF_GUARDED_BY(mutex_);  // steps that found no room in the queue

  // Of the step in progress; the step calls come from one thread at a time.
  std::array<std::atomic<std::uint32_t>, kRoleCount> role_forms_{};
  std::atomic<std::uint32_t> due_roles_{0};
  std::atomic<std::int64_t> step_begin_ns_{0};
  std::atomic<std::int64_t> capture_ns_{0};
  std::int64_t last_end_ns_ = 0;
  std::uint64_t last_device_ns_ = 0;  // of the collector, at the end of the last step
  PhaseSteps phases_;
  std::shared_ptr<device::StepPassed> passed_;  // of the step that ends now
  store::StepModules modules_;
  enum class Trace : std::uint8_t { kNone, kRuns, kEnds };  // kEnds: within the step in progress
  std::atomic<Trace> trace_{Trace::kNone};
  struct Marked {
    store::StepPhases phases;
    PhasesEnd end;
  };
  std::deque<Marked> marked_;   // steps that have ended and are not handed over yet
  std::int64_t waited_ns_ = 0;  // of the step in progress, told by Waited
  std::uint64_t planned_due_ = 0;
  format::Mode planned_mode_ = format::Mode::kGlobal;
  std::int64_t allowed_step_ = -1;  // the last step with raw values, and the governor's decision
  format::Mode allowed_mode_ = format::Mode::kGlobal;
  bool allowed_ = true;
  // Read by EndNow. A hook may begin several steps before the first of them ends (docs/adr/0012).
  std::atomic<bool> in_step_ = false;
  std::atomic<bool> handing_over_ = false;  // in EndStep
  std::atomic<std::uint64_t> untold_{0};    // number of steps in lost_, readable without its lock
  std::atomic<std::int64_t> first_untold_{0}, last_untold_{0};
  std::atomic<std::int64_t> first_open_{0}, last_open_{0};
};

/// The number of forks between the process that loaded this library and this one. A session with a smaller
/// count belongs to a parent.
[[nodiscard]] std::uint64_t ForkCount() noexcept;

}  // namespace luff::capture

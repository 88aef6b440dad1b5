#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "capture/action_gate.h"
#include "capture/block_pool.h"
#include "capture/control_poll.h"
#include "capture/governor.h"
#include "capture/plans.h"
#include "capture/producer.h"
#include "capture/publisher.h"
#include "capture/registry.h"
#include "capture/sampler_keeper.h"
#include "capture/stacks/line_sampler.h"
#include "capture/stacks/stall_watch.h"
#include "capture/thread_times.h"
#include "capture/work.h"
#include "luff/base/mutex.h"
#include "luff/capture/session.h"

namespace luff::capture {

/// Everything that the training threads and the writer thread share. Lives until both have released it, so a
/// writer thread that hangs on a dead file system can safely outlive the session.
struct Core {
  Core(Plan p, std::unique_ptr<store::WorkerWriter> writer, std::string control_directory,
       std::uint64_t control_after, ControlPoll::Read read, ControlPoll::Decide decide,
       const QueueLimits& limits);
  ~Core();

  /// Body of the writer thread. Runs until close was requested and the queue is empty. No error ends it
  /// earlier: what cannot be written becomes a gap.
  void RunWriter() noexcept;
  /// Does the same work in the calling thread, for sessions without a writer thread.
  void Pump() LUFF_EXCLUDES(pump_mutex);
  /// The same, until nothing is left, once close was asked for; waits for values of a device, at most half a
  /// second.
  void PumpRest() LUFF_EXCLUDES(pump_mutex);
  void Finish() noexcept;
  /// Ends the recording early: accepts nothing more, while the training continues.
  void GiveUp() noexcept;
  /// Counts a step that ends after GiveUp and is not recorded.
  void NotRecorded(std::int64_t global_step) noexcept;

  Plans plans;
  Registry registry;
  BlockPool pool;
  WorkQueue queue;
  Counters counters;
  StepPlan step;
  std::atomic<std::uint64_t> next_serial{0};
  /// Time of the training thread inside the session, and the whole time of the steps.
  std::atomic<std::int64_t> spent_ns{0}, time_ns{0};
  ActionGate gate;
  Governor governor;
  Publisher publisher;
  ControlPoll control;
  ThreadTimes times;
  const std::shared_ptr<device::Collector> device;
  std::unique_ptr<SamplerKeeper> sampler;  // null: nobody has to be started
  Mutex pump_mutex;

  std::atomic<bool> accepting{true};        // the session accepts what the training passes
  std::atomic<bool> failed{false};          // an error inside Luff has ended the recording
  std::atomic<std::uint64_t> processed{0};  // items done by the writer thread
  /// Set before close_asked: how long steps may still wait for values of a device.
  std::atomic<std::int64_t> late_until_ns{0};
  std::atomic<bool> close_asked{false};
  std::atomic<format::EndReason> close_reason{format::EndReason::kFailed};
  std::atomic<bool> give_up{false};          // the deadline has passed: do not publish more
  std::atomic<std::size_t> wanted_spare{0};  // free blocks to keep touched
  Mutex done_mutex;
  std::condition_variable done;  // an item was processed, or the writer thread has ended
  bool finished LUFF_GUARDED_BY(done_mutex) = false;
  std::atomic<int> waiters{0};

 private:
  [[nodiscard]] bool Tick(std::int64_t now_ns) noexcept;
  /// The next item whose values have arrived, or are waited for no longer; null if there is none within
  /// `limit`.
  [[nodiscard]] std::unique_ptr<Work> Next(std::chrono::nanoseconds limit);
  [[nodiscard]] bool WaitsOn(const Work& work) noexcept;
  /// Turns values that came late into rows, and tells of errors. False, and the work is discarded, if that
  /// fails.
  [[nodiscard]] bool TakeLate(Work* work) noexcept;
  [[nodiscard]] bool ProcessNext(std::unique_ptr<Work> work);
  /// Prepares what a proposal of a change asks for. False if it cannot be recorded.
  [[nodiscard]] bool PrepareChange(const store::ControlRecord& proposal);
  /// Counts consecutive errors, and gives up after too many.
  void Judge(bool ok) noexcept;
  /// Records why the recording failed, and the number of steps since then as one gap.
  void TellFailure() noexcept;
  /// Records what recording has cost since the session began.
  void TellCost();
  void FillInTimes(Work* work) noexcept;
  /// Prepares free blocks in the background, as many as past writes suggest. `handed`: bytes of blocks used
  /// so far.
  void PrepareBlocks(std::uint64_t handed);
  /// Looks where the training thread stands.
  void LookAtStacks(std::int64_t now_ns);
  LineSampler lines_;
  std::optional<StallWatch> stall_;  // since the first tick; never where no phases are recorded
  std::int32_t training_thread_ = 0;
  std::uint32_t jitter_ = 1;
  bool has_thread_ = false;  // the writer thread runs: where none does, nobody looks
  std::int64_t next_poll_ns_ = 0, next_heartbeat_ns_ = 0, next_cost_ns_ = 0;
  std::uint64_t told_steps_ = 0;
  store::StepBatch loose_;
  std::unique_ptr<Work> held_;  // a step whose values are on their way; what came later stays in the queue
  std::chrono::milliseconds rest_{1};
  int errors_ = 0;  // consecutive
  bool failure_told_ = false;
  std::atomic<std::uint64_t> not_recorded_{0};
  std::atomic<std::int64_t> first_not_recorded_{0}, last_not_recorded_{0};
};

}  // namespace luff::capture

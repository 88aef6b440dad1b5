#include "capture/core.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>

#include "capture/json_text.h"
#include "capture/late.h"
#include "luff/base/bytes.h"
#include "luff/base/env.h"
#include "luff/format/chunk.h"
#include "luff/store/loss.h"

namespace luff::capture {
namespace {

constexpr std::int64_t kPollNs = 50'000'000;
constexpr std::int64_t kUrgentPollNs = 2'000'000;  // while a proposal is open
constexpr std::int64_t kHeartbeatNs = 1'000'000'000;
constexpr std::int64_t kCostNs = 10'000'000'000;
constexpr int kNice = 5;
// How long a step waits for values of an accelerator: docs/gpu.md. The training may enqueue about a thousand
// kernels before the driver holds it back, so results that are 64 steps behind do not come.
constexpr std::uint64_t kMaxStepsLate = 64;
constexpr std::int64_t kMaxLateNs = 10'000'000'000;
constexpr std::int64_t kLeastLateNs = 50'000'000;  // three rests of the thread that asks the driver
constexpr std::chrono::milliseconds kShortestRest{1}, kLongestRest{8};
constexpr std::chrono::milliseconds kDeviceCloseWithin{500};
constexpr int kMaxErrors = 8;  // consecutive unknown errors, after which the recording is given up
// A short run writes less than this. Only this much of the first block is touched; further blocks follow once
// it is used.
constexpr std::size_t kFirstTouch = 2U << 20;

device::CollectorOptions DeviceOptions(const BlockPool& pool) {
  device::CollectorOptions options;
  options.headroom = sizeof(format::ChunkHeader);
  options.host_bytes = std::uint64_t{pool.max_blocks()} * kBlockBytes;
  return options;
}

}  // namespace

Core::Core(Plan p, std::unique_ptr<store::WorkerWriter> writer, std::string control_directory,
           std::uint64_t control_after, ControlPoll::Read read, ControlPoll::Decide decide,
           const QueueLimits& limits)
    : plans(std::move(p)),
      registry(plans.now()),
      pool(plans.now().config().pool_max_bytes),
      queue(limits),
      governor(plans.now().config().max_overhead),
      publisher(std::move(writer), &plans, &pool, &counters),
      control(std::move(control_directory), control_after, std::move(read), std::move(decide), &gate),
      device(device::Collector::Make(DeviceOptions(pool))) {
  gate.OnCapture({[this](const store::ControlRecord& proposal) { return PrepareChange(proposal); },
                  [this] { plans.Use(); }});
}

bool Core::PrepareChange(const store::ControlRecord& proposal) {
  const Result<const Plan*> plan = plans.Prepare(proposal.body, proposal.train_step);
  if (!plan.ok()) return false;
  registry.Adopt(**plan, plans.now().config().collections.size());
  return true;
}

bool Core::Tick(std::int64_t now_ns) noexcept {
  try {
    if (now_ns >= next_poll_ns_) {
      next_poll_ns_ = now_ns + (gate.state() == StopState::kWait ? kUrgentPollNs : kPollNs);
      control.Poll(now_ns, &loose_.acks);
      TellFailure();
      if (auto collections = plans.TakeDescription(); collections && !failed.load(std::memory_order_relaxed))
        loose_.documents.emplace_back("collections", *std::move(collections));
      if (now_ns >= next_cost_ns_) {
        if (next_cost_ns_ != 0) TellCost();
        next_cost_ns_ =
            now_ns + std::clamp(time_ns.load(std::memory_order_relaxed) / 8, kCostNs, 30 * kCostNs);
      }
      LookAtStacks(now_ns);
      if (!publisher.PublishLoose(&loose_, false)) return false;
    }
    if (now_ns >= next_heartbeat_ns_) {
      next_heartbeat_ns_ = now_ns + kHeartbeatNs;
      publisher.writer().Heartbeat();
      if (sampler != nullptr) sampler->Look(now_ns);
    }
    if (failed.load(std::memory_order_relaxed)) return true;
    if (const Status gone = publisher.writer().gone(); !gone.ok()) {
      publisher.Lose(gone);
      GiveUp();
    }
    return true;
  } catch (...) {
    publisher.KeepException("the writer thread");
    return false;
  }
}

void Core::LookAtStacks(std::int64_t now_ns) {
  const Config& config = plans.now().config();
  if (config.profile == Profile::kOff || failed.load(std::memory_order_relaxed)) return;
  if (!has_thread_ || close_asked.load(std::memory_order_relaxed)) return;
  if (!stall_) stall_.emplace(now_ns, config.stalled_after_ns);
  lines_.Look(now_ns, training_thread_);
  lines_.Tell(now_ns, false, &loose_.documents);
  stall_->Look(now_ns, counters.steps.load(std::memory_order_relaxed), training_thread_, &loose_.documents);
}

void Core::Judge(bool ok) noexcept {
  errors_ = ok ? 0 : errors_ + 1;
  if ((errors_ >= kMaxErrors || publisher.broken()) && !failed.load(std::memory_order_relaxed)) GiveUp();
}

void Core::GiveUp() noexcept {
  failed.store(true, std::memory_order_relaxed);
  accepting.store(false, std::memory_order_relaxed);
  step.due.store(0, std::memory_order_relaxed);
  gate.Close();
}

void Core::NotRecorded(std::int64_t global_step) noexcept {
  if (not_recorded_.load(std::memory_order_relaxed) == 0) first_not_recorded_.store(global_step);
  last_not_recorded_.store(global_step, std::memory_order_relaxed);
  not_recorded_.fetch_add(1, std::memory_order_release);
}

void Core::TellFailure() noexcept {
  if (!failed.load(std::memory_order_relaxed)) return;
  if (!failure_told_) {
    failure_told_ = true;
    try {
      loose_.event_json.push_back(R"({"kind":"hook_error","place":"recording","error":)" +
                                  JsonQuoted(publisher.first_error()) + "}");
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the gap remains
    }
  }
  const std::uint64_t count = not_recorded_.exchange(0, std::memory_order_acquire);
  if (count == 0) return;
  publisher.AddGap(store::GapOfSteps(format::GapReason::kRecordingFailed, count, 0,
                                     first_not_recorded_.load(std::memory_order_relaxed),
                                     last_not_recorded_.load(std::memory_order_relaxed)));
}

void Core::TellCost() {
  const std::uint64_t steps = counters.steps.load(std::memory_order_relaxed);
  const std::int64_t time = time_ns.load(std::memory_order_relaxed);
  if (steps == told_steps_ || time == 0 || failed.load(std::memory_order_relaxed)) return;
  told_steps_ = steps;
  loose_.documents.emplace_back("cost", "{\"steps\":" + std::to_string(steps) + ",\"spent_ns\":" +
                                            std::to_string(spent_ns.load(std::memory_order_relaxed)) +
                                            ",\"time_ns\":" + std::to_string(time) + "}");
}

bool Core::WaitsOn(const Work& work) noexcept {
  if ((work.late.empty() && work.passed == nullptr) || HasArrived(work)) return false;
  if (give_up.load(std::memory_order_relaxed) || failed.load(std::memory_order_relaxed)) return false;
  const std::int64_t now = Env::Real().NowMonotonicNs();
  if (close_asked.load(std::memory_order_acquire)) {
    if (now >= late_until_ns.load(std::memory_order_relaxed)) return false;
  }
  const std::uint64_t begun = step.number.load(std::memory_order_relaxed);
  const std::int64_t age = now - work.late_since_ns;
  return age <= kMaxLateNs && (begun - work.step <= kMaxStepsLate || age <= kLeastLateNs);
}

std::unique_ptr<Work> Core::Next(std::chrono::nanoseconds limit) {
  if (held_ == nullptr) {
    held_ = queue.Pop(limit);
    rest_ = kShortestRest;
    if (held_ == nullptr) return nullptr;
  } else if (limit.count() != 0) {
    std::this_thread::sleep_for(rest_);
    rest_ = std::min(rest_ * 2, kLongestRest);
  }
  return WaitsOn(*held_) ? nullptr : std::move(held_);
}

bool Core::TakeLate(Work* work) noexcept {
  if (work->kind != Work::Kind::kStep) return true;
  if (work->passed != nullptr && work->passed->arrival() != device::Arrival::kHere)
    counters.late_times.fetch_add(1, std::memory_order_relaxed);
  AddDeviceTimes(work);
  const bool hashes = counters.late_hashes.load(std::memory_order_relaxed) != 0;
  if (work->late.empty() && !hashes && !device->has_errors()) return true;
  try {
    const Settled settled = Settle(work, &next_serial);
    counters.late_values.fetch_add(settled.here, std::memory_order_relaxed);
    counters.nonfinite.fetch_add(settled.nonfinite, std::memory_order_relaxed);
    counters.gaps.fetch_add(settled.gaps, std::memory_order_relaxed);
    counters.raw_values.fetch_add(settled.raw_values, std::memory_order_relaxed);
    counters.raw_bytes.fetch_add(settled.raw_bytes, std::memory_order_relaxed);
    if (settled.late != 0) counters.late_steps.fetch_add(1, std::memory_order_relaxed);
    // The first step that misses values because of an error is the one that tells of it.
    const auto& gaps = work->batch.gaps;
    const bool missing = std::any_of(gaps.begin(), gaps.end(), [](const format::GapRow& gap) {
      return gap.reason == static_cast<std::uint16_t>(format::GapReason::kDeviceError);
    });
    device::DeviceError error;
    while (missing && device->TakeError(&error)) work->batch.event_json.push_back(EventOf(error));
    return true;
  } catch (...) {
    publisher.KeepException("values of a device");
    publisher.Discard(work, format::GapReason::kRecordingFailed);
    return false;
  }
}

bool Core::ProcessNext(std::unique_ptr<Work> work) {
  bool ok = true;
  if (give_up.load(std::memory_order_relaxed)) {
    publisher.Discard(work.get(), format::GapReason::kClosing);
  } else if (failed.load(std::memory_order_relaxed) && work->kind != Work::Kind::kLoose) {
    publisher.Discard(work.get(), format::GapReason::kRecordingFailed);
  } else {
    ok = TakeLate(work.get()) && publisher.Process(work.get());
  }
  queue.Recycle(std::move(work));
  processed.fetch_add(1, std::memory_order_release);
  return ok;
}

void Core::RunWriter() noexcept {
  // On Linux, each thread has its own priority.
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice));
  std::uint64_t handed = 0;  // bytes of blocks used so far
  has_thread_ = true;
  for (;;) {
    PrepareBlocks(handed);
    std::int64_t poll = gate.state() == StopState::kWait ? kUrgentPollNs : kPollNs;
    // Looks at stacks must not keep time with the steps.
    jitter_ = jitter_ * 1664525U + 1013904223U;
    if (poll == kPollNs) poll -= jitter_ % (kPollNs / 4);
    std::unique_ptr<Work> work = Next(std::chrono::nanoseconds(poll));
    const bool closing = close_asked.load(std::memory_order_acquire);
    const bool worked = work != nullptr;
    bool ok = true;
    if (worked) {
      for (const ChunkRecord& chunk : work->chunks) handed += format::ChunkSpace(chunk.raw_bytes);
      if (!work->chunks.empty()) handed = AlignUp(handed, format::kPageBytes);
      if (work->kind == Work::Kind::kStep) {
        const store::StepPhases& phases = work->batch.phases;
        const bool phased = phases.head.rows != 0;
        if (phased) FillInTimes(work.get());
        if (phased) training_thread_ = work->ended.thread;
        if (stall_)
          stall_->OnStep(work->global_step, phased ? phases.head.wall_ns : work->batch.mark.duration_ns);
      }
      ok = ProcessNext(std::move(work));
      if (waiters.load(std::memory_order_acquire) > 0) {
        {
          MutexLock lock(done_mutex);
        }
        done.notify_all();
      }
    }
    const bool ticked = Tick(Env::Real().NowMonotonicNs());
    if (worked || !ticked) Judge(ok && ticked);
    if (closing && processed.load(std::memory_order_relaxed) == queue.pushed()) break;
  }
  Finish();
}

void Core::FillInTimes(Work* work) noexcept {
  try {
    times.FillIn(work->ended, Env::Real().NowMonotonicNs(), &work->batch.phases);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): these times are then not known
  }
}

void Core::PrepareBlocks(std::uint64_t handed) {
  const std::size_t wanted = wanted_spare.load(std::memory_order_relaxed);
  if (wanted == 0) return;
  if (pool.block_count() == 0) {
    pool.Prepare(1, kFirstTouch);
  } else if (handed >= kFirstTouch) {
    pool.Prepare(std::min<std::size_t>(wanted, handed / kFirstTouch), kBlockBytes);
  }
}

void Core::Finish() noexcept {
  try {
    control.Poll(Env::Real().NowMonotonicNs(), &loose_.acks);
    TellCost();
    lines_.Tell(Env::Real().NowMonotonicNs(), true, &loose_.documents);
    device::DeviceError error;
    while (device->TakeError(&error)) loose_.event_json.push_back(EventOf(error));
  } catch (...) {
    publisher.KeepException("the writer thread");
  }
  TellFailure();
  static_cast<void>(publisher.PublishLoose(&loose_, true));
  publisher.Close(failed.load(std::memory_order_relaxed) ? format::EndReason::kFailed : close_reason.load());
  {
    MutexLock lock(done_mutex);
    finished = true;
  }
  done.notify_all();
  device->Close(kDeviceCloseWithin);
}

Core::~Core() { device->Close(std::chrono::milliseconds(0)); }

void Core::PumpRest() {
  for (Pump(); processed.load(std::memory_order_relaxed) < queue.pushed(); Pump())
    std::this_thread::sleep_for(kShortestRest);
}

void Core::Pump() {
  MutexLock lock(pump_mutex);
  while (processed.load(std::memory_order_relaxed) < queue.pushed()) {
    std::unique_ptr<Work> work = Next(std::chrono::nanoseconds(0));
    if (work == nullptr) break;
    Judge(ProcessNext(std::move(work)));
  }
  static_cast<void>(Tick(Env::Real().NowMonotonicNs()));
}

}  // namespace luff::capture

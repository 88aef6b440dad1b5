#include "capture/core.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "luff/base/bytes.h"
#include "luff/format/chunk.h"

namespace luff::capture {
namespace {

constexpr std::size_t kMaxQueued = 1024;
constexpr std::int64_t kPollNs = 50'000'000;
constexpr std::int64_t kUrgentPollNs = 2'000'000;  // while a proposal is open
constexpr std::int64_t kHeartbeatNs = 1'000'000'000;
constexpr int kNice = 5;
// A short run writes less than this: the first block is touched so far only, further ones once it was used.
constexpr std::size_t kFirstTouch = 2U << 20;

std::int64_t SteadyNs() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Core::Core(Plan p, std::unique_ptr<store::WorkerWriter> writer, std::string control_directory,
           std::uint64_t control_after, ControlPoll::Read read, ControlPoll::Decide decide)
    : plan(std::move(p)),
      registry(&plan),
      pool(plan.config().pool_max_bytes),
      queue(kMaxQueued),
      governor(plan.config().max_overhead),
      publisher(std::move(writer), &plan, &pool, &counters),
      control(std::move(control_directory), control_after, std::move(read), std::move(decide), &gate) {}

void Core::Tick(std::int64_t now_ns) {
  if (now_ns >= next_poll_ns_) {
    next_poll_ns_ = now_ns + (gate.state() == StopState::kWait ? kUrgentPollNs : kPollNs);
    control.Poll(now_ns, &loose_.acks);
    publisher.PublishLoose(&loose_, false);
    loose_.clear();
  }
  if (now_ns >= next_heartbeat_ns_) {
    next_heartbeat_ns_ = now_ns + kHeartbeatNs;
    publisher.writer().Heartbeat();
  }
}

void Core::RunWriter() {
  // Linux: priorities are those of a thread.
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice));
  std::uint64_t handed = 0;  // bytes of blocks that were used so far
  for (;;) {
    PrepareBlocks(handed);
    const std::int64_t poll = gate.state() == StopState::kWait ? kUrgentPollNs : kPollNs;
    std::unique_ptr<Work> work = queue.Pop(std::chrono::nanoseconds(poll));
    const bool closing = close_asked.load(std::memory_order_acquire);
    if (work != nullptr) {
      for (const ChunkRecord& chunk : work->chunks) handed += format::ChunkSpace(chunk.raw_bytes);
      if (!work->chunks.empty()) handed = AlignUp(handed, format::kPageBytes);
      if (give_up.load(std::memory_order_relaxed)) {
        if (work->block != nullptr) pool.Release(work->block);
      } else {
        publisher.Process(work.get());
      }
      queue.Recycle(std::move(work));
      processed.fetch_add(1, std::memory_order_release);
      if (waiters.load(std::memory_order_acquire) > 0) {
        {
          MutexLock lock(done_mutex);
        }
        done.notify_all();
      }
    }
    Tick(SteadyNs());
    if (closing && processed.load(std::memory_order_relaxed) == queue.pushed()) break;
  }
  Finish();
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

void Core::Finish() {
  control.Poll(SteadyNs(), &loose_.acks);
  publisher.PublishLoose(&loose_, true);
  publisher.Close(close_reason.load());
  {
    MutexLock lock(done_mutex);
    finished = true;
  }
  done.notify_all();
}

void Core::Pump() {
  MutexLock lock(pump_mutex);
  while (processed.load(std::memory_order_relaxed) < queue.pushed()) {
    std::unique_ptr<Work> work = queue.Pop(std::chrono::nanoseconds(0));
    if (work == nullptr) break;
    publisher.Process(work.get());
    queue.Recycle(std::move(work));
    processed.fetch_add(1, std::memory_order_release);
  }
  Tick(SteadyNs());
}

}  // namespace luff::capture

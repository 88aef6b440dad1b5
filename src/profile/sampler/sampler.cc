#include "luff/profile/sampler.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "luff/base/env.h"
#include "luff/store/owner.h"
#include "luff/store/reader.h"
#include "luff/store/writer.h"
#include "profile/devices/gpu_source.h"
#include "profile/sampler/board.h"
#include "profile/sampler/cgroup_source.h"
#include "profile/sampler/machine_source.h"
#include "profile/sampler/process_source.h"
#include "profile/system/text.h"

namespace luff::profile {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20U;  // of the folder; then ten samples become one
constexpr std::size_t kFlushMoments = 10;
constexpr std::int64_t kDescribeEveryNs = 600 * kSecond;  // definitions again, in case a segment is lost
constexpr std::int64_t kGraceNs = 2 * kSecond;            // after the last writer has ended
constexpr std::size_t kMostWorkers = 1024;

std::atomic<bool> g_asked_to_end{false};

/// Waits until a moment, or until nobody holds the pipe, or a signal asks to end.
/// Returns false when the sampler must end.
bool WaitUntil(std::int64_t mono_ns, int until_closed_fd) {
  Env& env = Env::Real();
  for (;;) {
    if (g_asked_to_end.load(std::memory_order_relaxed)) return false;
    const std::int64_t left = mono_ns - env.NowMonotonicNs();
    if (left <= 0) return true;
    pollfd pipe{until_closed_fd, POLLIN, 0};
    const timespec time{left / kSecond, left % kSecond};
    const int ready = ppoll(&pipe, until_closed_fd >= 0 ? 1 : 0, &time, nullptr);
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    char byte = 0;
    const ssize_t got = read(until_closed_fd, &byte, 1);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return false;
  }
}

/// Workers of the run, and whether any of those on this machine still writes.
struct Writers {
  std::vector<RankProcess> here;
  bool any = false;    // a worker's folder names a writer here
  bool alive = false;  // one of them has not ended
};
Writers FindWriters(const std::string& run_path) {
  Writers found;
  const auto names = Env::Real().List(run_path);
  if (!names.ok()) return found;
  for (const std::string& name : *names) {
    if (name.size() < 5 || name.size() > 10 || name.front() != 'w' || found.here.size() >= kMostWorkers)
      continue;
    const auto writer = store::WriterOf(run_path + "/" + name);
    // Of a process of another container nobody here can say whether it lives.
    if (!writer || !writer->here || writer->start_ticks == 0) continue;
    found.any = true;
    if (writer->ended) continue;
    found.alive = true;
    found.here.push_back({static_cast<std::uint32_t>(std::strtoul(name.c_str() + 1, nullptr, 10)),
                          static_cast<int>(writer->pid), static_cast<std::int64_t>(writer->start_ticks)});
  }
  return found;
}

/// Cores that any thread of a process may use: OpenMP can bind the first one to a core of its own.
int AllowedCores(const std::string& root, int pid) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const std::string& name : NamesIn(root + "/proc/" + std::to_string(pid) + "/task", 1024)) {
    cpu_set_t one;
    CPU_ZERO(&one);
    const Counted id = NumberOf(name);
    if (id && sched_getaffinity(static_cast<pid_t>(*id), sizeof(one), &one) == 0) CPU_OR(&all, &all, &one);
  }
  return CPU_COUNT(&all);
}

class Sampler {
 public:
  Sampler(const SamplerOptions& options, std::unique_ptr<store::WorkerWriter> writer)
      : options_(options),
        writer_(std::move(writer)),
        cgroup_(std::make_unique<CgroupSource>(options.root, "self")),
        machine_(options.root),
        slow_(options.root),
        processes_(options.root),
        gpus_(options.gpus, options.nvml, options.root) {}

  /// Returns false when it must end.
  bool Tick(std::uint64_t tick) {
    Env& env = Env::Real();
    const std::int64_t now = env.NowMonotonicNs();
    if (tick % LookEvery() == 0 && !LookForWriters(now)) return false;
    machine_.Sample(tick, &board_);
    cgroup_->Sample(tick, &board_);
    processes_.SetStarted(machine_.started());
    processes_.Sample(tick, &board_);
    slow_.Sample(tick, &board_);
    gpus_.Sample(tick, &board_);
    SampleSelf(tick);
    board_.EndMoment(now, env.NowUnixNs());
    if (board_.moments() >= kFlushMoments) Flush();
    return writer_->gone().ok();
  }

  void End() {
    Flush();
    (void)writer_->Close(format::EndReason::kCompleted);
  }

 private:
  [[nodiscard]] std::uint64_t LookEvery() const noexcept {
    return std::max<std::uint64_t>(static_cast<std::uint64_t>(options_.hz), 1);
  }

  bool LookForWriters(std::int64_t now) {
    const Writers writers = FindWriters(options_.run_path);
    processes_.Follow(writers.here);
    if (!writers.here.empty() && rank_pid_ != writers.here.front().pid) {
      rank_pid_ = writers.here.front().pid;
      if (options_.root.empty())
        cgroup_ = std::make_unique<CgroupSource>(options_.root, std::to_string(rank_pid_));
      described_ns_ = 0;
    }
    if (writers.alive) last_alive_ns_ = now;
    if (options_.until_closed_fd >= 0) return true;
    if (first_look_ns_ == 0) first_look_ns_ = now;
    // One that has ended already counts: it may have been killed while this process began.
    if (!seen_ && !writers.any)
      return now - first_look_ns_ < static_cast<std::int64_t>(options_.wait_s * 1e9);
    if (!std::exchange(seen_, true) && last_alive_ns_ == 0) last_alive_ns_ = now;
    return now - last_alive_ns_ < kGraceNs;
  }

  void SampleSelf(std::uint64_t tick) {
    rusage use{};
    if (getrusage(RUSAGE_SELF, &use) != 0) return;
    const auto ns = [](const timeval& time) {
      return std::int64_t{time.tv_sec} * kSecond + std::int64_t{time.tv_usec} * 1000;
    };
    board_.Set("sampler.cpu", SeriesUnit::kNanoseconds, SeriesKind::kCounter,
               ns(use.ru_utime) + ns(use.ru_stime));
    if (tick % Source::kSlow != 0) return;
    // The largest that getrusage() knows may be that of the program which this one replaced.
    std::string_view text = statm_.Read();
    (void)TakeWord(&text);
    board_.Set("sampler.rss", SeriesUnit::kBytes, SeriesKind::kGauge,
               Scaled(TakeNumber(&text), std::max<long>(sysconf(_SC_PAGESIZE), 1)));
  }

  void Flush() {
    store::StepBatch batch;
    const std::int64_t now = Env::Real().NowMonotonicNs();
    const bool all = described_ns_ == 0 || now - described_ns_ >= kDescribeEveryNs;
    board_.TakeInto(&batch, all);
    if (all) {
      described_ns_ = now;
      batch.documents.emplace_back("host", HostText());
    }
    std::vector<SourceReport> sources = Sources();
    if (sources != sources_ || all) {
      sources_ = std::move(sources);
      batch.documents.emplace_back("sources", SourcesText());
    }
    (void)writer_->PublishLoose(batch);  // what the disk refuses waits in memory, or is a gap
    writer_->Heartbeat();
  }

  std::string HostText() const {
    OrderedJson host;
    utsname names{};
    if (uname(&names) == 0) host = {{"name", names.nodename}, {"kernel", names.release}};
    host["cores"] = sysconf(_SC_NPROCESSORS_ONLN);
    host["allowed_cores"] = AllowedCores(options_.root, rank_pid_ > 0 ? rank_pid_ : getpid());
    host["limit_cores"] = nullptr;
    if (const auto cores = cgroup_->cores()) host["limit_cores"] = static_cast<double>(*cores) * 1e-6;
    host["hz"] = options_.hz;
    host["gpus"] = gpus_.Described();
    return JsonText(host);
  }

  std::vector<SourceReport> Sources() const {
    std::vector<SourceReport> reports;
    machine_.Report(&reports);
    cgroup_->Report(&reports);
    processes_.Report(&reports);
    slow_.Report(&reports);
    gpus_.Report(&reports);
    return reports;
  }

  std::string SourcesText() const {
    OrderedJson all = OrderedJson::array();
    for (const SourceReport& report : sources_) {
      if (report.state == SourceState::kUnread) continue;
      OrderedJson one{{"name", report.name}, {"state", SourceStateName(report.state)}, {"path", report.path}};
      if (report.error != 0) one["error"] = std::strerror(report.error);
      if (!report.why.empty()) one["why"] = report.why;
      all.push_back(std::move(one));
    }
    return JsonText(all);
  }

  const SamplerOptions& options_;
  std::unique_ptr<store::WorkerWriter> writer_;
  Board board_;
  KernelFile statm_{"/proc/self/statm"};
  std::unique_ptr<CgroupSource> cgroup_;
  MachineSource machine_;
  SlowSource slow_;
  ProcessSource processes_;
  GpuSource gpus_;
  int rank_pid_ = 0;
  bool seen_ = false;
  std::int64_t first_look_ns_ = 0, last_alive_ns_ = 0, described_ns_ = 0;
  std::vector<SourceReport> sources_;  // as last written
};

}  // namespace

void BecomeSampler() noexcept {
  (void)setpriority(PRIO_PROCESS, 0, 10);
  (void)prctl(PR_SET_TIMERSLACK, 20'000'000UL, 0, 0, 0);
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
    (void)setrlimit(RLIMIT_NOFILE, &files);
  }
  struct sigaction ask{};
  ask.sa_handler = [](int) { g_asked_to_end.store(true, std::memory_order_relaxed); };
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) (void)sigaction(number, &ask, nullptr);
  (void)signal(SIGPIPE, SIG_IGN);
}

Status RunSampler(const SamplerOptions& options) {
  Env& env = Env::Real();
  const auto period = static_cast<std::int64_t>(1e9 / std::clamp(options.hz, 0.1, 10.0));
  const std::int64_t begin = env.NowMonotonicNs();
  // The first worker makes the run; a job that records nothing leaves none.
  while (!env.Exists(options.run_path + "/run.json")) {
    const bool late = static_cast<double>(env.NowMonotonicNs() - begin) > options.wait_s * 1e9;
    if (options.until_closed_fd < 0 && late) return Status::Ok();
    if (!WaitUntil(env.NowMonotonicNs() + kSecond / 4, options.until_closed_fd)) return Status::Ok();
  }
  LUFF_ASSIGN_OR_RETURN(const store::RunInfo info, store::ReadRunInfo(options.run_path));
  store::WriterOptions into;
  into.run_path = options.run_path;
  into.host = true;
  into.worker = store::ThisHostNumber();
  into.summary_max_bytes = kMaxBytes;
  auto writer = store::WorkerWriter::Open(into, info);
  if (writer.status().code() == StatusCode::kAlreadyExists) return Status::Ok();  // another one measures
  LUFF_RETURN_IF_ERROR(writer.status());
  Sampler sampler(options, std::move(writer).value());
  std::int64_t next = env.NowMonotonicNs();
  for (std::uint64_t tick = 0; options.ticks == 0 || tick < options.ticks; ++tick) {
    if (!sampler.Tick(tick)) break;
    next += period;
    const std::int64_t now = env.NowMonotonicNs();
    if (next < now) next += (now - next) / period * period;  // a late tick is one long interval, not two
    if (!WaitUntil(next, options.until_closed_fd)) break;
  }
  sampler.End();
  return Status::Ok();
}

}  // namespace luff::profile

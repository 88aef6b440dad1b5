#include "profile/sampler/process_source.h"

#include <unistd.h>

#include <algorithm>
#include <unordered_map>

#include "profile/system/process_text.h"
#include "profile/system/text.h"

namespace luff::profile {
namespace {

constexpr std::size_t kMostThreads = 1024;
constexpr int kMostDepth = 4;
// Threads beyond so many are read without keeping their files open: descriptors are bounded.
constexpr std::size_t kMostOpenThreads = 64;
constexpr std::uint64_t kLookEvery = 2, kLookAtAllEvery = 20;  // ticks
// A child that has none of its own is looked below at once when it is new, and then once in so many ticks.
constexpr std::uint64_t kLookBelowChildrenEvery = 8;

/// Sum of a counter over things that come and go: what ended ones had counts on.
class SumOfCounters {
 public:
  void Add(std::int64_t now, std::int64_t* last) {
    if (now > *last) sum_ += now - *last;
    *last = now;
  }
  [[nodiscard]] std::int64_t sum() const noexcept { return sum_; }

 private:
  std::int64_t sum_ = 0;
};

}  // namespace

struct ProcessSource::Child {
  int pid = 0;
  std::int64_t start_ticks = 0;
  std::size_t place = 0;
  KernelFile stat, schedstat, children;  // children: of its first thread
  std::int64_t cpu_ns = 0, run_queue_ns = 0;
  bool seen = false, looked_below = false, has_children = false;
};

/// Names that begin alike, put together in the same memory each time.
class Names {
 public:
  void Begin(std::string prefix) {
    name_ = std::move(prefix);
    size_ = name_.size();
  }
  /// Until the next call.
  [[nodiscard]] std::string_view operator()(std::string_view end) {
    name_.resize(size_);
    return name_ += end;
  }

 private:
  std::string name_;
  std::size_t size_ = 0;
};

struct ProcessSource::Rank {
  RankProcess process;
  std::string folder;
  Names name;                      // "rank.0."
  std::vector<Names> child_names;  // by place
  KernelFile stat, statm, io, children_of_first;
  std::map<int, Child> children;
  SumOfCounters children_cpu, children_run_queue, run_queue;
  struct Thread {
    KernelFile schedstat;
    std::int64_t run_queue_ns = 0;  // when last read
    bool seen = false;
  };
  std::unordered_map<int, Thread> threads;
  Counted started;  // at the last look for children
  bool had_children = false;
};

ProcessSource::ProcessSource(const std::string& root)
    : root_(root),
      tick_ns_(ClockTickNs()),
      page_bytes_(std::max<long>(sysconf(_SC_PAGESIZE), 1)) {}

ProcessSource::~ProcessSource() = default;

void ProcessSource::Follow(const std::vector<RankProcess>& ranks) {
  std::erase_if(ranks_, [&](const auto& known) {
    return std::ranges::none_of(ranks, [&](const RankProcess& one) {
      return one.worker == known.first && one.pid == known.second->process.pid &&
             one.start_ticks == known.second->process.start_ticks;
    });
  });
  for (const RankProcess& one : ranks) {
    if (ranks_.contains(one.worker)) continue;
    auto rank = std::make_unique<Rank>();
    rank->process = one;
    rank->folder = root_ + "/proc/" + std::to_string(one.pid);
    rank->name.Begin("rank." + std::to_string(one.worker) + ".");
    rank->stat = KernelFile(rank->folder + "/stat");
    rank->statm = KernelFile(rank->folder + "/statm");
    rank->io = KernelFile(rank->folder + "/io");
    rank->children_of_first = KernelFile(rank->folder + "/task/" + std::to_string(one.pid) + "/children");
    ranks_.emplace(one.worker, std::move(rank));
  }
}

void ProcessSource::Sample(std::uint64_t tick, Board* board) {
  for (auto& [worker, rank] : ranks_) SampleRank(tick, rank.get(), board);
}

void ProcessSource::SampleRank(std::uint64_t tick, Rank* rank, Board* board) {
  const auto stat = ParseProcessStatUntrusted(rank->stat.Read(), tick_ns_);
  if (!stat || (rank->process.start_ticks != 0 && stat->start_ticks != rank->process.start_ticks)) return;
  constexpr auto kCounter = SeriesKind::kCounter;
  constexpr auto kGauge = SeriesKind::kGauge;
  Names& name = rank->name;
  board->Set(name("cpu"), SeriesUnit::kNanoseconds, kCounter, stat->cpu_ns);
  board->Set(name("rss"), SeriesUnit::kBytes, kGauge, Scaled(stat->rss_pages, page_bytes_));
  board->Set(name("threads"), SeriesUnit::kNumber, kGauge, stat->threads);
  board->Set(name("major_faults"), SeriesUnit::kNumber, kCounter, stat->major_faults);
  board->Set(name("disk_wait"), SeriesUnit::kNumber, kGauge, stat->state == 'D' ? 1 : 0);
  if (tick % kCounters == 0) {
    const ProcessIo io = ParseProcessIoUntrusted(rank->io.Read());
    io_ = rank->io.state();
    io_error_ = rank->io.error();
    board->Set(name("read"), SeriesUnit::kBytes, kCounter, io.read);
    board->Set(name("written"), SeriesUnit::kBytes, kCounter, io.written);
  }
  if (tick % kSlow == 0) {
    board->Set(name("anonymous"), SeriesUnit::kBytes, kGauge,
               Scaled(ParseAnonymousPagesUntrusted(rank->statm.Read()), page_bytes_));
    const std::vector<std::string> threads = NamesIn(rank->folder + "/task", kMostThreads);
    AddThreads(threads, rank);
    board->Set(name("run_queue"), SeriesUnit::kNanoseconds, kCounter, rank->run_queue.sum());
    if (tick % kLookAtAllEvery == 0) FindChildren(tick, &threads, rank);
  }
  if (tick % kLookEvery == 0 && tick % kLookAtAllEvery != 0 && (!started_ || started_ != rank->started))
    FindChildren(tick, nullptr, rank);
  SampleChildren(tick, rank, board);
}

void ProcessSource::AddThreads(const std::vector<std::string>& threads, Rank* rank) {
  for (auto& [id, thread] : rank->threads) thread.seen = false;
  std::size_t open = 0;
  for (const std::string& name : threads) {
    const Counted id = NumberOf(name);
    if (!id) continue;
    const auto [at, is_new] = rank->threads.try_emplace(static_cast<int>(*id));
    Rank::Thread& thread = at->second;
    if (is_new) thread.schedstat = KernelFile(rank->folder + "/task/" + name + "/schedstat");
    const Counted waited = ParseRunQueueUntrusted(thread.schedstat.Read());
    // A file of a thread that has ended stays so, also when another one has its number: the next look opens
    // it.
    if (!waited) continue;
    thread.seen = true;
    if (thread.run_queue_ns > *waited) thread.run_queue_ns = 0;
    rank->run_queue.Add(*waited, &thread.run_queue_ns);
    if (++open > kMostOpenThreads) thread.schedstat.Close();
  }
  std::erase_if(rank->threads, [](const auto& thread) { return !thread.second.seen; });
}

void ProcessSource::FindChildren(std::uint64_t tick, const std::vector<std::string>* threads, Rank* rank) {
  bool all = true;
  for (auto& [pid, child] : rank->children) child.seen = false;
  std::vector<std::pair<int, int>> open = {{rank->process.pid, 0}};  // processes to look below, with depth
  std::size_t found = 0;
  while (!open.empty() && found < kMostChildren) {
    const auto [parent, depth] = open.back();
    open.pop_back();
    std::vector<int> below;
    const auto add = [&](KernelFile& file) {
      const std::vector<int> more = ParseChildrenUntrusted(file.Read(), kMostChildren);
      below.insert(below.end(), more.begin(), more.end());
    };
    const auto at = rank->children.find(parent);
    if (depth == 0) {
      add(rank->children_of_first);
      children_ = rank->children_of_first.state();
      children_error_ = rank->children_of_first.error();
    } else if (at != rank->children.end()) {
      Child& child = at->second;
      if (threads == nullptr && child.looked_below && !child.has_children &&
          tick % kLookBelowChildrenEvery != 0) {
        all = false;
        continue;
      }
      add(child.children);
      child.looked_below = true;
      child.has_children = !below.empty();
    }
    if (threads != nullptr && depth == 0) {
      for (const std::string& thread : *threads) {
        if (thread == std::to_string(parent)) continue;
        KernelFile file(rank->folder + "/task/" + thread + "/children");
        add(file);
      }
    }
    for (const int pid : below) {
      if (++found > kMostChildren) break;
      if (!FollowChild(pid, rank)) continue;
      if (depth + 1 < kMostDepth) open.emplace_back(pid, depth + 1);
    }
  }
  rank->started = all ? started_ : std::nullopt;
  // Those of other threads are found only when all threads are looked at.
  if (threads != nullptr) std::erase_if(rank->children, [](const auto& child) { return !child.second.seen; });
}

bool ProcessSource::FollowChild(int pid, Rank* rank) {
  if (const auto known = rank->children.find(pid); known != rank->children.end()) {
    known->second.seen = true;
    return true;
  }
  Child child;
  child.pid = pid;
  const std::string folder = root_ + "/proc/" + std::to_string(pid);
  child.stat = KernelFile(folder + "/stat");
  child.schedstat = KernelFile(folder + "/schedstat");
  child.children = KernelFile(folder + "/task/" + std::to_string(pid) + "/children");
  const auto stat = ParseProcessStatUntrusted(child.stat.Read(), tick_ns_);
  if (!stat) return false;
  child.start_ticks = stat->start_ticks;
  child.seen = true;
  while (std::ranges::any_of(rank->children,
                             [&](const auto& other) { return other.second.place == child.place; }))
    ++child.place;
  rank->children.emplace(pid, std::move(child));
  return true;
}

void ProcessSource::SampleChildren(std::uint64_t tick, Rank* rank, Board* board) {
  constexpr auto kNs = SeriesUnit::kNanoseconds;
  constexpr auto kCounter = SeriesKind::kCounter;
  constexpr auto kGauge = SeriesKind::kGauge;
  std::int64_t rss = 0, waiting = 0, count = 0;
  for (auto at = rank->children.begin(); at != rank->children.end();) {
    Child& child = at->second;
    const auto stat = ParseProcessStatUntrusted(child.stat.Read(), tick_ns_);
    if (!stat || stat->start_ticks != child.start_ticks || stat->state == 'Z' || stat->state == 'X') {
      at = rank->children.erase(at);
      continue;
    }
    ++count;
    rss += std::min(stat->rss_pages, std::int64_t{1} << 44U);
    waiting += stat->state == 'D' ? 1 : 0;
    rank->children_cpu.Add(stat->cpu_ns, &child.cpu_ns);
    if (tick % kCounters == 0) {
      if (const Counted queue = ParseRunQueueUntrusted(child.schedstat.Read()))
        rank->children_run_queue.Add(*queue, &child.run_queue_ns);
    }
    if (child.place < kMostPlaces) {
      for (std::size_t place = rank->child_names.size(); place <= child.place; ++place) {
        rank->child_names.emplace_back().Begin(
            std::string(rank->name("child.")).append(std::to_string(place)));
      }
      Names& name = rank->child_names[child.place];
      board->Set(name(".cpu"), kNs, kCounter, stat->cpu_ns);
      board->Set(name(".disk_wait"), SeriesUnit::kNumber, kGauge, stat->state == 'D' ? 1 : 0);
    }
    ++at;
  }
  rank->had_children = rank->had_children || count > 0;
  Names& name = rank->name;
  board->Set(name("children.count"), SeriesUnit::kNumber, kGauge, count);
  if (!rank->had_children) return;
  board->Set(name("children.rss"), SeriesUnit::kBytes, kGauge, Scaled(rss, page_bytes_));
  board->Set(name("children.disk_wait"), SeriesUnit::kNumber, kGauge, waiting);
  board->Set(name("children.cpu"), kNs, kCounter, rank->children_cpu.sum());
  if (tick % kCounters == 0)
    board->Set(name("children.run_queue"), kNs, kCounter, rank->children_run_queue.sum());
}

void ProcessSource::Report(std::vector<SourceReport>* reports) const {
  if (ranks_.empty()) return;
  reports->push_back(ReportOf("ranks", ranks_.begin()->second->stat));
  reports->push_back({"ranks.io", io_, "/proc/PID/io", io_error_, ""});
  reports->push_back({"children", children_, "/proc/PID/task/TID/children", children_error_, ""});
}

}  // namespace luff::profile

#include "luff/query/run_stream.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "luff/base/env.h"
#include "luff/store/mirror.h"
#include "luff/store/reader.h"
#include "query/frames_of.h"
#include "query/run_state.h"

namespace luff::query {
namespace {

using store::SegmentReader;

/// A segment whose steps are in memory as long as this lives.
class Awake {
 public:
  explicit Awake(SegmentReader* segment) : segment_(segment), status_(segment->Wake()) {}
  ~Awake() { segment_->Rest(); }
  Awake(const Awake&) = delete;
  Awake& operator=(const Awake&) = delete;
  [[nodiscard]] const Status& status() const noexcept { return status_; }

 private:
  SegmentReader* segment_;
  Status status_;
};

/// True if nobody writes the worker's folder any more, although it has no end.
bool IsLost(const store::WorkerReader& worker, store::Mirror* mirror) {
  const store::Liveness life = worker.liveness();
  if (life.process_exists) return !*life.process_exists;
  std::int64_t now_unix_ns = Env::Real().NowUnixNs();
  if (mirror != nullptr) {
    (void)mirror->Look();
    if (mirror->EndedOf(worker.worker())) return true;
    now_unix_ns = mirror->TimeOf(worker.worker());
  }
  return SecondsBetween(life.heartbeat_unix_ns, now_unix_ns) > OpenOptions().lost_after_s;
}

}  // namespace

class RunStream::State {
 public:
  explicit State(std::unique_ptr<store::RunReader> run) : run_(std::move(run)) {}

  /// Looks which steps there are, and how far all workers have come.
  Status Survey() {
    std::set<std::uint32_t> lost;
    for (const auto& worker : run_->workers()) {
      if (IsLost(*worker, run_->mirror().get())) lost.insert(worker->worker());
    }
    // What those that are lost published is now here for sure.
    LUFF_RETURN_IF_ERROR(run_->Refresh(true).status());
    for (const auto& reader : run_->workers()) {
      Worker& worker = workers_.emplace_back();
      worker.reader = reader.get();
      for (const auto& segment : reader->segments()) LUFF_RETURN_IF_ERROR(LookAt(segment.get(), &worker));
      if (reader->end() || lost.contains(reader->worker())) continue;
      if (!worker.last) none_ = true;
      if (worker.last && (!frontier_ || *worker.last < *frontier_)) frontier_ = worker.last;
    }
    none_ = none_ || (run_->info().world_size > 1 && Awaited());
    return Status::Ok();
  }

  Status Visit(const PhasesVisitor& phases, const StepVisitor& step) {
    if (none_) return Status::Ok();
    for (const Worker& worker : workers_) {
      for (const Segment& segment : worker.segments)
        LUFF_RETURN_IF_ERROR(VisitSegment(worker, segment, phases, step));
    }
    return Status::Ok();
  }

  [[nodiscard]] const store::RunReader& run() const noexcept { return *run_; }

 private:
  struct Segment {
    SegmentReader* reader = nullptr;
    std::uint32_t first_epoch = 0, last_epoch = 0;
    std::int64_t least = 0, most = 0;  // of its global steps
  };
  struct Number {
    std::int64_t global_step = 0;
    std::uint32_t epoch = 0;
  };
  // Numbers of steps that are kept (16 bytes each), and what one segment of them counts beside: 8 MiB.
  static constexpr std::size_t kMostNumbers = std::size_t{1} << 19U, kNumbersOfKept = 8;
  struct Worker {
    const store::WorkerReader* reader = nullptr;
    std::vector<Segment> segments;  // that have steps
    std::optional<StepKey> last;
  };

  Status LookAt(SegmentReader* reader, Worker* worker) {
    const Awake awake(reader);
    LUFF_RETURN_IF_ERROR(awake.status());
    const format::StepColumns& steps = reader->steps();
    if (steps.size() == 0) return Status::Ok();
    const auto [least, most] = std::ranges::minmax(steps.global_step);
    const auto [first, last] = std::ranges::minmax(steps.epoch);
    worker->segments.push_back({reader, first, last, least, most});
    worker->last = StepKey{steps.epoch.back(), steps.global_step.back()};
    // Ranks of an epoch take the same steps, so one of them tells which were recorded again.
    teller_.try_emplace(last, worker->reader->worker());
    return Status::Ok();
  }

  /// True while workers are missing that may still come, and hold back all steps.
  [[nodiscard]] bool Awaited() const {
    if (workers_.size() >= run_->info().world_size) return false;
    std::int64_t now_unix_ns = Env::Real().NowUnixNs();
    if (const auto& mirror = run_->mirror(); mirror != nullptr) {
      if (mirror->Look().ended) return false;
      now_unix_ns = mirror->Look().host_unix_ns;
    }
    return SecondsBetween(run_->info().created_unix_ns, now_unix_ns) < OpenOptions().lost_after_s;
  }

  [[nodiscard]] bool IsComplete(const format::StepColumns& steps, std::size_t i) const noexcept {
    return workers_.size() < 2 || !frontier_ || StepKey{steps.epoch[i], steps.global_step[i]} <= *frontier_;
  }

  /// Marks the steps of a segment that were recorded again later: by a resumed run, or by the worker itself.
  Status MarkRecordedAgain(const Worker& worker, const Segment& segment,
                           std::vector<std::uint8_t>* left_out) {
    const format::StepColumns& steps = segment.reader->steps();
    std::vector<std::uint32_t> order(steps.size());  // by global step; of equal ones the later one last
    std::iota(order.begin(), order.end(), 0U);
    const auto number = [&](std::uint32_t i) { return steps.global_step[i]; };
    std::ranges::stable_sort(order, {}, number);
    for (std::size_t at = 1; at < order.size(); ++at) {
      if (number(order[at - 1]) == number(order[at]) && IsComplete(steps, order[at]))
        (*left_out)[order[at - 1]] = 1;
    }
    auto left = std::ranges::count(*left_out, std::uint8_t{0});
    for (const Worker& other : workers_) {
      const bool own = &other == &worker;
      for (const Segment& later : other.segments) {
        if (left == 0) return Status::Ok();
        if (later.reader == segment.reader || later.least > segment.most || later.most < segment.least)
          continue;
        const auto teller = teller_.find(later.last_epoch);
        const bool tells = own ? later.reader->sequence() > segment.reader->sequence()
                               : later.last_epoch > segment.first_epoch && teller != teller_.end() &&
                                     teller->second == other.reader->worker();
        if (!tells) continue;
        LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
        LUFF_ASSIGN_OR_RETURN(const auto numbers, NumbersOf(later));
        auto from = std::ranges::lower_bound(*numbers, segment.least, {}, &Number::global_step);
        for (; from != numbers->end() && from->global_step <= segment.most; ++from) {
          for (const std::uint32_t at : std::ranges::equal_range(order, from->global_step, {}, number)) {
            if ((*left_out)[at] != 0 || (!own && steps.epoch[at] >= from->epoch)) continue;
            (*left_out)[at] = 1;
            --left;
          }
        }
      }
    }
    return Status::Ok();
  }

  /// The complete steps of a segment, each number once, ascending. Those that were asked for are kept, up to
  /// a bound: many short segments of one step must not be read once for each pair of them.
  Result<std::shared_ptr<const std::vector<Number>>> NumbersOf(const Segment& segment) {
    const auto known = numbers_.find(segment.reader);
    if (known != numbers_.end()) return known->second;
    const Awake awake(segment.reader);
    LUFF_RETURN_IF_ERROR(awake.status());
    const format::StepColumns& steps = segment.reader->steps();
    auto numbers = std::make_shared<std::vector<Number>>();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (IsComplete(steps, i)) numbers->push_back({steps.global_step[i], steps.epoch[i]});
    }
    // Of a number the latest epoch comes first, and stays.
    std::ranges::sort(*numbers, [](const Number& a, const Number& b) {
      return std::pair(a.global_step, b.epoch) < std::pair(b.global_step, a.epoch);
    });
    const auto again = std::ranges::unique(*numbers, {}, &Number::global_step);
    numbers->erase(again.begin(), again.end());
    if (numbers->size() + kNumbersOfKept <= kMostNumbers - kept_numbers_) {
      numbers->shrink_to_fit();
      kept_numbers_ += numbers->size() + kNumbersOfKept;
      numbers_.emplace(segment.reader, numbers);
    }
    return std::shared_ptr<const std::vector<Number>>(std::move(numbers));
  }

  Status VisitSegment(const Worker& worker, const Segment& segment, const PhasesVisitor& phases,
                      const StepVisitor& step) {
    SegmentReader* const reader = segment.reader;
    const Awake awake(reader);
    LUFF_RETURN_IF_ERROR(awake.status());
    const format::StepColumns& steps = reader->steps();
    std::vector<std::uint8_t> left_out(steps.size(), 0);
    for (std::size_t i = 0; i < steps.size(); ++i) left_out[i] = IsComplete(steps, i) ? 0 : 1;
    LUFF_RETURN_IF_ERROR(MarkRecordedAgain(worker, segment, &left_out));
    const std::uint32_t number = worker.reader->worker();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (left_out[i] == 0) step(InfoOf(steps.mark(i)), number);
    }
    std::vector<std::byte> scratch;
    std::optional<std::uint32_t> at;
    return EachFrameOf(
        *reader, format::FrameKind::kPhases, &scratch,
        [&](std::uint64_t ordinal) {
          at = reader->FindOrdinal(ordinal);
          return at && left_out[*at] == 0;
        },
        [&](std::uint64_t, std::span<const std::byte> body) -> Status {
          LUFF_ASSIGN_OR_RETURN(const auto view, format::ParsePhasesUntrusted(body));
          phases(InfoOf(steps.mark(*at)), PhasesOf(number, steps.wall_unix_ns[*at], view));
          return Status::Ok();
        });
  }

  std::unique_ptr<store::RunReader> run_;
  std::vector<Worker> workers_;
  std::map<std::uint32_t, std::uint32_t> teller_;  // by epoch: the first worker that has steps of it
  std::map<const SegmentReader*, std::shared_ptr<const std::vector<Number>>> numbers_;  // by NumbersOf()
  std::size_t kept_numbers_ = 0;
  std::optional<StepKey> frontier_;  // the step that every worker that still writes has passed
  bool none_ = false;                // of the steps is complete yet
};

RunStream::RunStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunStream::~RunStream() = default;

Result<std::unique_ptr<RunStream>> RunStream::Open(const std::string& path) {
  store::ReaderOptions options;
  options.rest = true;
  LUFF_ASSIGN_OR_RETURN(auto run, store::RunReader::Open(path, options));
  auto state = std::make_unique<State>(std::move(run));
  LUFF_RETURN_IF_ERROR(state->Survey());
  return std::unique_ptr<RunStream>(new RunStream(std::move(state)));
}

const std::string& RunStream::path() const noexcept { return state_->run().path(); }

std::string RunStream::Document(std::uint32_t worker, std::string_view name) const {
  for (const auto& one : state_->run().workers()) {
    if (one->worker() != worker) continue;
    const auto at = one->documents().find(std::string(name));
    if (at != one->documents().end()) return at->second;
  }
  return {};
}

Status RunStream::Visit(const PhasesVisitor& phases, const StepVisitor& step) const {
  return state_->Visit(phases, step);
}

}  // namespace luff::query

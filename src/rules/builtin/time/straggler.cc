#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <vector>

#include "base/format.h"
#include "luff/format/names.h"
#include "luff/profile/input.h"
#include "rules/facts/pause_rule.h"

/// Straggler: docs/rules/straggler.md.
namespace luff::rules::straggler {
namespace {

using format::Phase;
constexpr const char* kName = "Straggler";
constexpr double kTogether = 0.2;  // workers whose steps differ by more do not wait for each other

struct Limits {
  double share, worth, seconds;
  std::int64_t window, first;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::share, "share", "0.1", "of a step for which the others wait (Luff)", Between(0, 1)},
    {&Limits::worth, "worth", "0.03", "least saving, as a share of the time of all steps so far (Luff)",
     Between(0, 1)},
    {&Limits::seconds, "seconds", "5", "least saving over all steps so far, in seconds (Luff)", AtLeast(0)},
    {&Limits::window, "window", "50", "steps judged together (Luff)", Within(10, 10'000)},
    {&Limits::first, "first", "20", "first steps of a training, which are left out (Luff)", AtLeast(0)},
};

/// The time of one worker in the open window, in seconds.
struct Sums {
  double wall = 0, cpu = 0, queue = 0;
  std::array<double, format::kPhaseCount> phases{};
  std::int64_t steps = 0, timed = 0;
  /// What a worker does by itself: in backward() it may wait for the gradients of the others.
  [[nodiscard]] double own() const { return wall - phases[static_cast<std::size_t>(Phase::kBackward)]; }
  void VisitFields(Fields& io) {
    io("wall", wall);
    io("cpu", cpu);
    io("queue", queue);
    io("phases", phases);
    io("steps", steps);
    io("timed", timed);
  }
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n == 0 ? 0 : n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// Workers that exchange gradients all take the same time, so it is not time that tells who makes the others
/// wait, but what each does meanwhile.
class Straggler final : public KeptRule {
 public:
  explicit Straggler(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (view.rows.phases.size() < 2) return;
    run_s_ += static_cast<double>(view.rows.phases.front().head.wall_ns) * 1e-9;
    if (info.mode != query::Mode::kTrain || ++seen_ <= limits_.first) return;
    for (const query::StepPhases& phases : view.rows.phases) {
      Sums& sums = workers_[phases.worker];
      sums.wall += static_cast<double>(phases.head.wall_ns) * 1e-9;
      ++sums.steps;
      if (phases.head.cpu_ns >= 0 && phases.head.run_queue_ns >= 0) {
        sums.cpu += static_cast<double>(phases.head.cpu_ns) * 1e-9;
        sums.queue += static_cast<double>(phases.head.run_queue_ns) * 1e-9;
        ++sums.timed;
      }
      for (std::size_t i = 0; i < format::kPhaseCount; ++i)
        sums.phases[i] += static_cast<double>(phases.ns[i]) * 1e-9;
    }
    if (++in_window_ < limits_.window) return;
    Judge(view, sink);
    workers_.clear();
    in_window_ = 0;
  }

  void VisitFields(Fields& io) override {
    io("workers", workers_);
    io("run_s", run_s_);
    io("saved_s", saved_s_);
    io("seen", seen_);
    io("in_window", in_window_);
    io("windows", windows_);
    io("free", free_);
    io("since", since_);
    io("slow", slow_);
    io("cause", cause_);
    io("open", open_);
  }

 private:
  struct Lag {
    std::int64_t worker = -1;
    double seconds = 0;          // of the window, for which the others wait
    std::string cause, phase;    // "" if none
    double own = 0, others = 0;  // of what it is about
  };

  /// The worker that is ahead of the median of the others by most, in `of`.
  template <typename Of>
  [[nodiscard]] Lag Most(Of of) const {
    Lag lag;
    for (const auto& [worker, sums] : workers_) {
      std::vector<double> others;
      for (const auto& [other, its] : workers_)
        if (other != worker) others.push_back(of(its));
      const double more = of(sums) - Median(std::move(others));
      if (more > lag.seconds) lag = {worker, more, "", "", 0, 0};
    }
    return lag;
  }

  [[nodiscard]] Lag Find() const {
    double least = 1e300, most = 0;
    bool timed = true;
    for (const auto& [worker, sums] : workers_) {
      if (sums.steps != limits_.window) return {};
      timed = timed && sums.timed == sums.steps;
      least = std::min(least, sums.wall);
      most = std::max(most, sums.wall);
    }
    if (workers_.size() < 2 || most - least > kTogether * most) return {};
    Lag lag = Most([](const Sums& sums) { return sums.own(); });
    if (lag.seconds >= limits_.share * most) {
      const auto queue = [](const Sums& sums) { return sums.queue; };
      lag.own = workers_.at(static_cast<std::uint32_t>(lag.worker)).queue;
      lag.others = Others(lag.worker, queue);
      const Against against = timed ? Compared(lag.worker) : Against{};
      if (against.queue >= lag.seconds / 2) {
        lag.cause = "no_core";
        return lag;
      }
      double largest = 0;
      for (std::size_t i = 0; i < format::kPhaseCount; ++i) {
        if (i == static_cast<std::size_t>(Phase::kBackward)) continue;
        const double own = workers_.at(static_cast<std::uint32_t>(lag.worker)).phases[i];
        const double others = Others(lag.worker, [i](const Sums& sums) { return sums.phases[i]; });
        if (own - others <= largest) continue;
        largest = own - others;
        lag.phase = format::PhaseName(static_cast<std::uint8_t>(i));
        lag.own = own;
        lag.others = others;
      }
      if (largest < 0.6 * lag.seconds) lag.phase.clear();
      const bool input = lag.phase == "data_wait" || lag.phase == "data_start";
      const bool computes = lag.phase == "forward" || lag.phase == "loss" || lag.phase == "compute";
      lag.cause = lag.phase.empty() ? "not_visible" : input ? "input" : computes ? "more_work" : "own_work";
      // Workers may wait for each other in forward(), where FSDP gathers parameters: then the one that takes
      // longest waits, and has no more time on a core. Another may have.
      if (!computes || against.work >= lag.seconds / 2) return lag;
    }
    if (!timed) return {};
    for (const bool queue : {false, true}) {
      const auto of = [queue](const Sums& sums) { return queue ? sums.queue : sums.cpu; };
      lag = Most(of);
      if (lag.seconds < limits_.share * most) continue;
      if (queue && Compared(lag.worker).queue < lag.seconds / 2) continue;
      lag.cause = queue ? "no_core" : "more_work";
      lag.own = of(workers_.at(static_cast<std::uint32_t>(lag.worker)));
      lag.others = Others(lag.worker, of);
      return lag;
    }
    return {};
  }

  /// A worker that computes more waits longer for a core, too, where cores are scarce: at the rate at which
  /// the others wait. Its work, in comparison with them: computing, and the waiting that this brings with it.
  struct Against {
    double work = 0, queue = 0;  // beyond the others, in seconds of the window; queue: beyond that rate
  };
  [[nodiscard]] Against Compared(std::int64_t worker) const {
    const Sums& own = workers_.at(static_cast<std::uint32_t>(worker));
    const double cpu = Others(worker, [](const Sums& sums) { return sums.cpu; });
    const double queue = Others(worker, [](const Sums& sums) { return sums.queue; });
    const double rate = cpu > 0 ? queue / cpu : 0;  // seconds without a core for each second on one
    // On a crowded machine a little work would become much: at most as much again is waiting.
    return {(own.cpu - cpu) * (1 + std::min(rate, 1.0)), own.queue - own.cpu * rate};
  }

  template <typename Of>
  [[nodiscard]] double Others(std::int64_t worker, Of of) const {
    std::vector<double> values;
    for (const auto& [other, sums] : workers_)
      if (other != worker) values.push_back(of(sums));
    return Median(std::move(values));
  }

  void Judge(const StepView& view, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    const Lag lag = Find();
    if (lag.cause.empty() || (open_ && (lag.worker != slow_ || lag.cause != cause_))) {
      windows_ = 0;
      if (open_ && ++free_ >= 3) {
        open_ = false;
        sink.Heal(cause_, "", info.mode_step);
      }
      return;
    }
    if (!open_ && (lag.worker != slow_ || lag.cause != cause_)) {
      windows_ = 0;
      saved_s_ = 0;
    }
    slow_ = lag.worker;
    cause_ = lag.cause;
    free_ = 0;
    if (windows_++ == 0 && !open_) since_ = std::max<std::int64_t>(info.mode_step - limits_.window + 1, 0);
    saved_s_ += lag.seconds;
    if (windows_ < 2 || saved_s_ < limits_.seconds || saved_s_ < limits_.worth * run_s_) return;
    open_ = true;
    sink.Report(Described(view, lag));
  }

  [[nodiscard]] Finding Described(const StepView& view, const Lag& lag) const {
    using profile::TimeText;
    const double window = static_cast<double>(limits_.window);
    const double step = workers_.begin()->second.wall / window, wait = lag.seconds / window;
    const auto each = [&](double seconds) { return TimeText(seconds / window); };
    Finding finding = FindingAt(kName, cause_.c_str(), view.trial, format::kNoId,
                                static_cast<std::uint32_t>(lag.worker), view.rows.info);
    finding.since_step = since_;
    finding.what = fmt::format("worker {} of {} makes the others wait {} of {} a step", lag.worker,
                               workers_.size(), TimeText(wait), TimeText(step));
    if (!lag.phase.empty())
      finding.what +=
          fmt::format(": its {} takes {}, that of the others {}", lag.phase, each(lag.own), each(lag.others));
    if (cause_ == "more_work" && lag.phase.empty())
      finding.what += fmt::format(": it computes for {}, the others for {}", each(lag.own), each(lag.others));
    if (cause_ == "no_core")
      finding.what +=
          fmt::format(": it waits for a core for {}, the others for {}", each(lag.own), each(lag.others));
    finding.why = "workers that exchange gradients go on together, so each step takes as long as the slowest";
    finding.remedy =
        cause_ == "input" ? "look at this worker's data: a larger shard, a slower disk; give it more workers"
        : cause_ == "own_work"
            ? "look at what this worker alone does: logging, checkpoints, metrics of rank 0"
        : cause_ == "more_work" ? "give each worker the same amount: equal batches, sequences of like length"
        : cause_ == "no_core"
            ? "look at what else runs on this worker's cores; bind workers to cores of their own"
            : "compare this worker's machine with the others'";
    finding.causes = {"one worker has more to do, or less to do it with"};
    finding.evidence = {{"wait_s", wait},
                        {"step_s", step},
                        {"workers", workers_.size()},
                        {"saved_s", saved_s_},
                        {"run_s", run_s_},
                        {"detail", std::bit_width(static_cast<std::uint64_t>(windows_))}};
    finding.saving = {
        wait, wait / step, wait / 2, wait,
        fmt::format("what the worker takes more than the median of the others: {}", TimeText(wait))};
    finding.threshold = fmt::format("{:g} % of a step in two windows of {} steps, and {:g} s (Luff)",
                                    100 * limits_.share, limits_.window, limits_.seconds);
    return finding;
  }

  const Limits limits_;
  std::map<std::uint32_t, Sums> workers_;
  double run_s_ = 0, saved_s_ = 0;
  std::int64_t seen_ = 0, in_window_ = 0, windows_ = 0, free_ = 0, since_ = 0, slow_ = -1;
  std::string cause_;
  bool open_ = false;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<Straggler>(kName, kParams);
  spec.version = 3;  // 3: who computes more may wait longer for a core
  spec.summary = "one of several workers makes the others wait; says which, and with what";
  return spec;
}

}  // namespace luff::rules::straggler

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/facts/pause_rule.h"
#include "rules/facts/run_machines.h"
#include "rules/facts/step_memo.h"

/// InputBound: docs/rules/input_bound.md.
namespace luff::rules::input_bound {
namespace {

constexpr const char* kName = "InputBound";
constexpr std::size_t kMostWindow = 10'000, kMostWaiting = 256;

struct Limits {
  double share, worth, wait_ms, seconds;
  std::int64_t window, first;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::share, "share", "0.1", "of a step that it waits for data (Luff)", Between(0, 1)},
    {&Limits::worth, "worth", "0.03", "least saving, as a share of the time of all steps so far (Luff)",
     Between(0, 1)},
    {&Limits::seconds, "seconds", "5", "least saving over all steps so far, in seconds (Luff)", AtLeast(0)},
    {&Limits::wait_ms, "wait_ms", "2",
     "shortest wait of a step that workers can shorten, in milliseconds (Luff)", AtLeast(0)},
    {&Limits::window, "window", "50", "steps judged together (Luff)", Within(10, kMostWindow)},
    {&Limits::first, "first", "20", "first steps of a training, which are left out (Luff)", AtLeast(0)},
};

struct KeptTime {
  profile::StepTime time;
  void VisitFields(Fields& io) {
    io("wall", time.wall_s);
    io("wait", time.wait_s);
    io("queue", time.queue_s);
    io("cpu", time.cpu_s);
  }
};

/// A window whose steps have ended.
struct Window {
  profile::Means means;
  profile::Waits waits;
  std::int64_t mode_step = 0, global_step = 0, update = 0;  // of its last step
  std::uint64_t number = 0, from_ns = 0, to_ns = 0;         // Unix time; without a sign, as it is beyond 2^53
  double run_s = 0;                                         // of all steps up to its end
  std::uint64_t device_steps = 0, idle_steps = 0;  // with times of a device; at whose begin it was idle
  [[nodiscard]] std::int64_t from() const noexcept { return static_cast<std::int64_t>(from_ns); }
  [[nodiscard]] std::int64_t to() const noexcept { return static_cast<std::int64_t>(to_ns); }
  [[nodiscard]] query::StepInfo Info() const {
    query::StepInfo info;
    info.mode = query::Mode::kTrain;
    info.mode_step = mode_step;
    info.global_step = global_step;
    info.update = update;
    return info;
  }
  void VisitFields(Fields& io) {
    double blocked_s = means.blocked_s.value_or(-1);
    std::uint64_t steps = means.steps;
    io("steps", steps);
    io("step", means.step_s);
    io("wait", means.wait_s);
    io("blocked", blocked_s);
    means.steps = steps;
    means.blocked_s = blocked_s < 0 ? std::nullopt : std::optional(blocked_s);
    io("waits", waits.sums(), kMostWindow);
    io("mode_step", mode_step);
    io("global_step", global_step);
    io("update", update);
    io("number", number);
    io("from", from_ns);
    io("to", to_ns);
    io.Check(std::max(from_ns, to_ns) < std::uint64_t{1} << 62U, "a time");
    io("run_s", run_s);
    io("device_steps", device_steps);
    io("idle_steps", idle_steps);
  }
};

/// Two windows in a row wait; three that do not end it. Of several workers, the one whose phases come first
/// is judged. A window that waits for workers of a loader is judged when samples of the machine say whether
/// they lacked cores.
class InputBound final : public KeptRule {
 public:
  explicit InputBound(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    const query::StepPhases* judged = worker_.In(view);
    if (judged == nullptr) return;
    const query::StepPhases& phases = *judged;
    run_s_ += static_cast<double>(phases.head.wall_ns) * 1e-9;
    if (info.mode != query::Mode::kTrain) return;
    seen_ += phases.head.steps;
    if (seen_ <= limits_.first) return;
    if (run_ == nullptr) run_ = view.memo.Machines();
    if (!waiting_.empty() && info.wall_unix_ns - looked_ns_ >= kLookEveryNs)
      JudgeWaiting(view.trial, info.wall_unix_ns, false, sink);
    // The first batch of an epoch: WorkersRestart.
    if (phases.begins[static_cast<std::size_t>(format::Phase::kDataStart)] != 0) return;
    if (window_.empty()) from_ns_ = Moment(info.wall_unix_ns - phases.head.wall_ns);
    window_.push_back({profile::TimeOf(phases)});
    waits_.Add(phases);
    if (phases.has_device()) {
      device_steps_ += phases.head.steps;
      idle_steps_ += phases.idle_steps;
    }
    if (window_.size() < static_cast<std::size_t>(limits_.window)) return;
    if (waiting_.size() == kMostWaiting) waiting_.erase(waiting_.begin());
    Window& window = waiting_.emplace_back();
    std::vector<profile::StepTime> steps;
    for (const KeptTime& one : window_) steps.push_back(one.time);
    window.means = profile::MeansOf(std::move(steps));
    window.waits = std::exchange(waits_, {});
    window.mode_step = info.mode_step;
    window.global_step = info.global_step;
    window.update = info.update;
    window.number = view.number;
    window.from_ns = from_ns_;
    window.to_ns = Moment(info.wall_unix_ns);
    window.run_s = run_s_;
    window.device_steps = std::exchange(device_steps_, 0);
    window.idle_steps = std::exchange(idle_steps_, 0);
    window_.clear();
    JudgeWaiting(view.trial, info.wall_unix_ns, false, sink);
  }

  void OnEnd(const query::Trial& trial, Sink& sink) override { JudgeWaiting(trial, 0, true, sink); }

  void VisitFields(Fields& io) override {
    worker_.VisitFields(io);
    io("window", window_, kMostWindow);
    io("waits", waits_.sums(), kMostWindow);
    io("from", from_ns_);
    io.Check(from_ns_ < std::uint64_t{1} << 62U, "a time");
    io("waiting", waiting_, kMostWaiting);
    io("cause", cause_);
    io("run_s", run_s_);
    io("device_steps", device_steps_);
    io("idle_steps", idle_steps_);
    io("waited_s", waited_s_);
    io("seen", seen_);
    io("windows", windows_);
    io("free", free_);
    io("since", since_);
    io("open", open_);
  }

 private:
  static constexpr std::int64_t kLookEveryNs = 1'000'000'000;

  [[nodiscard]] static std::uint64_t Moment(std::int64_t unix_ns) noexcept {
    return unix_ns > 0 && unix_ns < std::int64_t{1} << 62U ? static_cast<std::uint64_t>(unix_ns) : 0;
  }
  [[nodiscard]] bool IsLong(const profile::Means& means) const noexcept {
    return means.wait_s >= limits_.share * means.step_s && means.wait_s * 1e3 >= limits_.wait_ms;
  }

  void JudgeWaiting(const query::Trial& trial, std::int64_t now_ns, bool all, Sink& sink) {
    if (run_ == nullptr) run_ = std::make_shared<RunMachines>();  // the run ended right after a restart
    while (!waiting_.empty()) {
      Window& window = waiting_.front();
      if (IsLong(window.means)) {
        const std::string loaders = trial.DocumentAt("loaders", window.number);
        const std::optional<profile::Loader> loader = profile::WaitedLoader(window.waits, loaders);
        if (loader && loader->workers > 0 && window.from_ns > 0 && window.to_ns > window.from_ns) {
          looked_ns_ = now_ns;
          const bool measured = run_->Refresh(trial, now_ns) && run_->measured();
          // The first samples may be written after the first windows have ended.
          const bool known = measured && run_->Cover(window.to() + kLookEveryNs);
          const std::int64_t since_ns = now_ns - window.to();  // negative: the wall clock was set back
          if (!known && !all && since_ns >= 0 && since_ns < kSamplesLateNs) return;
          if (measured)
            window.means = profile::WithCoresForWorkers(window.means, loader, WithoutCore(window));
        }
      }
      const Window judged = std::move(window);
      waiting_.erase(waiting_.begin());
      Judge(trial, judged, sink);
    }
  }

  /// Processes below the training that could have run and had no core, in the mean; 0 if it is not known.
  [[nodiscard]] double WithoutCore(const Window& window) const {
    // A second more on both sides: the sampler reads it once a second, and may have ended with the training.
    constexpr double kLeast = 0.5;
    for (const profile::MachineUse& use :
         run_->In(window.from() - kLookEveryNs, window.to() + kLookEveryNs, kLeast)) {
      for (const profile::RankUse& rank : use.ranks) {
        if (rank.worker == worker_.number()) return rank.children_run_queue.value_or(0);
      }
    }
    return 0;
  }

  void Judge(const query::Trial& trial, const Window& window, Sink& sink) {
    const profile::Means& means = window.means;
    if (!IsLong(means)) {
      windows_ = 0;
      if (open_ && ++free_ >= 3) {
        open_ = false;
        sink.Heal(cause_, "", window.mode_step);
      }
      return;
    }
    free_ = 0;
    if (windows_++ == 0) since_ = std::max<std::int64_t>(window.mode_step - limits_.window + 1, 0);
    const profile::InputCause cause = profile::CauseOf(
        means, window.waits, trial.DocumentAt("loaders", window.number), trial.Document("environment"));
    waited_s_ += cause.estimate.saving_s * static_cast<double>(limits_.window);
    if (windows_ < 2 || cause.estimate.saving_s <= 0) return;
    if (waited_s_ < limits_.seconds || waited_s_ < limits_.worth * window.run_s) return;
    if (open_ && cause_ != cause.cause) return;  // it stays what it was
    open_ = true;
    cause_ = cause.cause;
    sink.Report(Described(trial, window, cause));
  }

  [[nodiscard]] Finding Described(const query::Trial& trial, const Window& window,
                                  const profile::InputCause& cause) const {
    using profile::TimeText, profile::WaitText;
    const profile::Means& means = window.means;
    Finding finding =
        FindingAt(kName, cause.cause.c_str(), trial, format::kNoId, worker_.number(), window.Info());
    finding.since_step = since_;
    finding.what = fmt::format("{}; {} would save about {} of {}", WaitText(means, cause.loader), cause.what,
                               TimeText(waited_s_), TimeText(window.run_s));
    finding.why =
        "the model computes nothing meanwhile; with workers, the next batches are made while it computes";
    finding.remedy = cause.remedy;
    finding.causes = cause.causes;
    finding.evidence = {{"wait_s", means.wait_s},
                        {"step_s", means.step_s},
                        {"share", means.wait_s / means.step_s},
                        {"workers", cause.loader ? cause.loader->workers : 0},
                        {"saved_s", waited_s_},
                        {"run_s", window.run_s},
                        // The texts are written anew whenever the run has become twice as long.
                        {"detail", std::bit_width(static_cast<std::uint64_t>(windows_))}};
    if (window.device_steps != 0) {
      finding.evidence.push_back(
          {"idle_share", static_cast<double>(window.idle_steps) / static_cast<double>(window.device_steps)});
    }
    const profile::Estimate& estimate = cause.estimate;
    finding.saving = {estimate.saving_s, estimate.saving_s / means.step_s, estimate.low_s, estimate.high_s,
                      estimate.method};
    finding.threshold = fmt::format(
        "a wait of {:g} % of a step and {:g} ms in two windows of {} steps, and {:g} s to be saved (Luff)",
        100 * limits_.share, limits_.wait_ms, limits_.window, limits_.seconds);
    return finding;
  }

  const Limits limits_;
  JudgedWorker worker_;
  std::vector<KeptTime> window_;                     // steps of the open window
  profile::Waits waits_;                             // of the same steps
  std::uint64_t from_ns_ = 0;                        // when the first of them began, Unix time; 0: not known
  std::vector<Window> waiting_;                      // for samples
  std::string cause_;                                // of the open finding
  std::uint64_t device_steps_ = 0, idle_steps_ = 0;  // of the open window
  double run_s_ = 0;                                 // of all steps with phases
  double waited_s_ = 0;                              // that more workers would have saved
  std::int64_t seen_ = 0, windows_ = 0, free_ = 0, since_ = 0;
  bool open_ = false;
  std::int64_t looked_ns_ = 0;        // for samples; not kept
  std::shared_ptr<RunMachines> run_;  // not kept: that of the evaluation
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<InputBound>(kName, kParams);
  spec.version = 3;  // 2: windows wait for samples; 3: they count steps at which a device was idle
  spec.summary =
      "the training waits for its data; says why, how many workers would mend it and what that saves";
  return spec;
}

}  // namespace luff::rules::input_bound

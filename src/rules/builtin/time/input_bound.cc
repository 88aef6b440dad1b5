#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/facts/pause_rule.h"

/// InputBound: docs/rules/input_bound.md.
namespace luff::rules::input_bound {
namespace {

constexpr const char* kName = "InputBound";
constexpr std::size_t kMostWindow = 10'000;

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

/// Two windows in a row wait; three that do not end it. Of several workers, the one whose phases come first
/// is judged.
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
    // The first batch of an epoch: WorkersRestart.
    if (phases.begins[static_cast<std::size_t>(format::Phase::kDataStart)] != 0) return;
    const profile::StepTime time = profile::TimeOf(phases);
    window_.push_back({time});
    waits_.Add(phases);
    if (window_.size() < static_cast<std::size_t>(limits_.window)) return;
    Judge(view, sink);
    window_.clear();
    waits_.Clear();
  }

  void VisitFields(Fields& io) override {
    worker_.VisitFields(io);
    io("window", window_, kMostWindow);
    io("waits", waits_.sums(), kMostWindow);
    io("cause", cause_);
    io("run_s", run_s_);
    io("waited_s", waited_s_);
    io("seen", seen_);
    io("windows", windows_);
    io("free", free_);
    io("since", since_);
    io("open", open_);
  }

 private:
  void Judge(const StepView& view, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    std::vector<profile::StepTime> steps;
    for (const KeptTime& one : window_) steps.push_back(one.time);
    const profile::Means means = profile::MeansOf(std::move(steps));
    if (means.wait_s < limits_.share * means.step_s || means.wait_s * 1e3 < limits_.wait_ms) {
      windows_ = 0;
      if (open_ && ++free_ >= 3) {
        open_ = false;
        sink.Heal(cause_, "", info.mode_step);
      }
      return;
    }
    free_ = 0;
    if (windows_++ == 0) since_ = std::max<std::int64_t>(info.mode_step - limits_.window + 1, 0);
    const profile::InputCause cause = profile::CauseOf(
        means, waits_, view.trial.DocumentAt("loaders", view.number), view.trial.Document("environment"));
    waited_s_ += cause.estimate.saving_s * static_cast<double>(limits_.window);
    if (windows_ < 2 || cause.estimate.saving_s <= 0) return;
    if (waited_s_ < limits_.seconds || waited_s_ < limits_.worth * run_s_) return;
    if (open_ && cause_ != cause.cause) return;  // it stays what it was
    open_ = true;
    cause_ = cause.cause;
    sink.Report(Described(view, means, cause));
  }

  [[nodiscard]] Finding Described(const StepView& view, const profile::Means& means,
                                  const profile::InputCause& cause) const {
    using profile::TimeText;
    Finding finding =
        FindingAt(kName, cause.cause.c_str(), view.trial, format::kNoId, worker_.number(), view.rows.info);
    finding.since_step = since_;
    finding.what =
        fmt::format("{} would save about {} of {}", cause.what, TimeText(waited_s_), TimeText(run_s_));
    finding.why =
        "the model computes nothing meanwhile; with workers, the next batches are made while it computes";
    finding.remedy = cause.remedy;
    finding.causes = cause.causes;
    finding.evidence = {{"wait_s", means.wait_s},
                        {"step_s", means.step_s},
                        {"share", means.wait_s / means.step_s},
                        {"workers", cause.loader ? cause.loader->workers : 0},
                        {"saved_s", waited_s_},
                        {"run_s", run_s_},
                        // The texts are written anew whenever the run has become twice as long.
                        {"detail", std::bit_width(static_cast<std::uint64_t>(windows_))}};
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
  std::vector<KeptTime> window_;  // steps of the open window
  profile::Waits waits_;          // of the same steps
  std::string cause_;             // of the open finding
  double run_s_ = 0;              // of all steps with phases
  double waited_s_ = 0;           // that more workers would have saved
  std::int64_t seen_ = 0, windows_ = 0, free_ = 0, since_ = 0;
  bool open_ = false;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<InputBound>(kName, kParams);
  spec.summary =
      "the training waits for its data; says why, how many workers would mend it and what that saves";
  return spec;
}

}  // namespace luff::rules::input_bound

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// InputBound: docs/rules/input_bound.md.
namespace luff::rules::input_bound {
namespace {

constexpr const char* kName = "InputBound";
constexpr const char* kCause = "data_wait";
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
    if (view.rows.phases.empty()) return;
    const query::StepPhases& phases = view.rows.phases.front();
    run_s_ += static_cast<double>(phases.head.wall_ns) * 1e-9;
    if (info.mode != query::Mode::kTrain) return;
    seen_ += phases.head.steps;
    if (seen_ <= limits_.first) return;
    const profile::StepTime time = profile::TimeOf(phases);
    window_.push_back({time});
    if (window_.size() < static_cast<std::size_t>(limits_.window)) return;
    Judge(view, phases.worker, sink);
    window_.clear();
  }

  void VisitFields(Fields& io) override {
    io("window", window_, kMostWindow);
    io("run_s", run_s_);
    io("waited_s", waited_s_);
    io("seen", seen_);
    io("windows", windows_);
    io("free", free_);
    io("since", since_);
    io("open", open_);
  }

 private:
  void Judge(const StepView& view, std::uint32_t worker, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    std::vector<profile::StepTime> steps;
    for (const KeptTime& one : window_) steps.push_back(one.time);
    const profile::Means means = profile::MeansOf(std::move(steps));
    if (means.wait_s < limits_.share * means.step_s || means.wait_s * 1e3 < limits_.wait_ms) {
      windows_ = 0;
      if (open_ && ++free_ >= 3) {
        open_ = false;
        sink.Heal(kCause, "", info.mode_step);
      }
      return;
    }
    free_ = 0;
    if (windows_++ == 0) since_ = std::max<std::int64_t>(info.mode_step - limits_.window + 1, 0);
    const auto loader = profile::TrainingLoader(view.trial.DocumentAt("loaders", view.number));
    const std::int64_t cores = profile::CoresOf(view.trial.Document("environment"));
    const profile::Estimate estimate = profile::EstimateWorkers(means, loader ? loader->workers : 0, cores);
    waited_s_ += estimate.saving_s * static_cast<double>(limits_.window);
    if (windows_ < 2 || estimate.saving_s <= 0) return;
    if (waited_s_ < limits_.seconds || waited_s_ < limits_.worth * run_s_) return;
    open_ = true;
    sink.Report(Described(view, worker, means, estimate, loader));
  }

  [[nodiscard]] Finding Described(const StepView& view, std::uint32_t worker, const profile::Means& means,
                                  const profile::Estimate& estimate,
                                  const std::optional<profile::Loader>& loader) const {
    using profile::TimeText;
    Finding finding = FindingAt(kName, kCause, view.trial, format::kNoId, worker, view.rows.info);
    finding.since_step = since_;
    finding.what =
        fmt::format("{}; num_workers={} would save about {} of {} so far", profile::WaitText(means, loader),
                    estimate.workers, TimeText(waited_s_), TimeText(run_s_));
    finding.why =
        "the model computes nothing meanwhile; with workers, the next batches are made while it computes";
    finding.remedy = fmt::format(
        "pass num_workers={} to {}; if that is not enough, make a sample cheaper: store it decoded, or "
        "nearer",
        estimate.workers, loader && !loader->type.empty() ? loader->type : std::string("the DataLoader"));
    finding.causes = {
        loader && loader->workers == 0 ? "samples are made in the training's own thread" : "too few workers",
        "samples that are dear to make, or slow to read"};
    finding.evidence = {{"wait_s", means.wait_s},
                        {"step_s", means.step_s},
                        {"share", means.wait_s / means.step_s},
                        {"workers", loader ? loader->workers : 0},
                        {"saved_s", waited_s_},
                        // The texts are written anew whenever the run has become twice as long.
                        {"detail", std::bit_width(static_cast<std::uint64_t>(windows_))}};
    finding.saving = {estimate.saving_s, estimate.saving_s / means.step_s, estimate.low_s, estimate.high_s,
                      estimate.method};
    finding.threshold = fmt::format(
        "a wait of {:g} % of a step and {:g} ms in two windows of {} steps, and {:g} s to be saved (Luff)",
        100 * limits_.share, limits_.wait_ms, limits_.window, limits_.seconds);
    return finding;
  }

  const Limits limits_;
  std::vector<KeptTime> window_;  // steps of the open window
  double run_s_ = 0;              // of all steps with phases
  double waited_s_ = 0;           // that more workers would have saved
  std::int64_t seen_ = 0, windows_ = 0, free_ = 0, since_ = 0;
  bool open_ = false;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<InputBound>(kName, kParams);
  spec.summary = "the training waits for its data; says how many workers would mend it and what that saves";
  return spec;
}

}  // namespace luff::rules::input_bound

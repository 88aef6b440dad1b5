#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/loss_tracker.h"
#include "rules/facts/phases.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// LossSpike: docs/rules/loss_spike.md.
namespace luff::rules::loss_spike {
namespace {

constexpr const char* kName = "LossSpike";
constexpr std::size_t kWindow = 64;  // recent values, for the level and its spread
constexpr std::size_t kLevel = 16;   // values that give the level after a spike

struct Limits {
  double factor;
  std::int64_t values, recovery;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::factor, "factor", "4", "times the highest loss so far", Above(1)},
    {&Limits::values, "values", "32", "losses before the first spike can be told", AtLeast(1)},
    {&Limits::recovery, "recovery", "128", "steps in which the level has to come back, else stop",
     AtLeast(1)},
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class LossSpike final : public KeptRule {
 public:
  explicit LossSpike(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain) return;
    if (phases_.OnStep(view)) {
      for (const auto& [name, s] : series_) {
        if (s.step >= 0) sink.Heal("spike", name, view.rows.info.mode_step);
      }
      series_.clear();
    }
    if (Aside(view)) return;
    const std::vector<LossValue>& losses = view.index.losses();
    for (const LossValue& loss : losses) {
      if (loss.worker == losses.front().worker && std::isfinite(loss.value)) Judge(view, loss, sink);
    }
  }

  void VisitFields(Fields& io) override {
    io("losses", series_, LossTracker::kMaxLosses);
    io("phases", phases_);
    io("steps", steps_);
    io("updates", updates_);
  }

 private:
  // A step without an update, in a training of which nearly all steps end with one: a pass that measures
  // something (the size of the weights, a Hessian, a Fisher information), or a batch that the script leaves
  // out. No weights are lost by it, and its loss need not be the training's.
  bool Aside(const StepView& view) {
    const bool updates = !view.index.events(format::EventKind::kOptimizerStep).empty() ||
                         !view.index.events(format::EventKind::kStepSkipped).empty();
    ++steps_;
    if (updates) ++updates_;
    return !updates && updates_ * 10 >= steps_ * 9;
  }

  struct Series {
    std::int64_t count = 0, negative = 0;
    double top = 0;                          // highest so far, without spikes
    double before = 0, size = 0, limit = 0;  // of the open spike
    std::int64_t step = -1;                  // TRAIN step of the open spike; -1: none
    std::vector<double> last;                // the last kWindow losses, without spikes
    std::vector<double> after;               // the last kLevel losses after the open spike
    void VisitFields(Fields& io) {
      io("count", count);
      io("negative", negative);
      io("top", top);
      io("before", before);
      io("size", size);
      io("limit", limit);
      io("step", step);
      io("last", last, kWindow);
      io("after", after, kLevel);
      io.Check(!last.empty(), "a loss with values");
    }
  };

  void Judge(const StepView& view, const LossValue& loss, Sink& sink) {
    const std::string& name = view.trial.tensor(loss.tensor).name;
    if (series_.size() >= LossTracker::kMaxLosses && !series_.contains(name)) return;
    Series& s = series_[name];
    ++s.count;
    s.negative += loss.value < 0 ? 1 : 0;
    if (s.step >= 0) {
      Follow(view, loss, s, sink);
      return;
    }
    // A loss that takes both signs has no level: that of a policy gradient hovers around zero.
    if (s.negative == 0 && s.count > limits_.values && !phases_.several()) {
      const double middle = Median(s.last);
      // If single losses often lie far above the median, one more is nothing new.
      const double spread = *std::max_element(s.last.begin(), s.last.end()) / middle;
      const double limit = std::max(limits_.factor, spread) * s.top;
      if (middle > 0 && loss.value > limit) {
        s.step = view.rows.info.mode_step;
        s.before = middle;
        s.size = loss.value;
        s.limit = limit;
        s.after.clear();
        Tell(view, loss, s, false, sink);
        return;
      }
    }
    s.top = std::max(s.top, loss.value);
    s.last.push_back(loss.value);
    if (s.last.size() > kWindow) s.last.erase(s.last.begin());
  }

  // Follows the losses after a spike, until the level comes back or is lost.
  void Follow(const StepView& view, const LossValue& loss, Series& s, Sink& sink) {
    const std::string& name = view.trial.tensor(loss.tensor).name;
    s.after.push_back(loss.value);
    if (s.after.size() > kLevel) s.after.erase(s.after.begin());
    if (s.after.size() < kLevel) return;
    const double now = Median(s.after);
    const double highest = *std::max_element(s.last.begin(), s.last.end());
    if (now <= highest) {
      sink.Heal("spike", name, view.rows.info.mode_step);
      s.step = -1;
      return;
    }
    if (view.rows.info.mode_step - s.step >= limits_.recovery) Tell(view, loss, s, true, sink);
  }

  void Tell(const StepView& view, const LossValue& loss, const Series& s, bool lost, Sink& sink) {
    Finding finding = FindingAt(kName, "spike", view, loss);
    finding.since_step = s.step;
    finding.what =
        fmt::format("the loss leapt to {:.3g} at step {}, from a level of {:.3g}", s.size, s.step, s.before);
    if (lost) {
      finding.severity = Severity::kStop;
      finding.why = fmt::format("it has not come back in {} steps (level {:.3g}): what was learnt is lost",
                                limits_.recovery, Median(s.after));
      finding.remedy = "go back to a checkpoint before that step; clip gradients; leave that batch out";
    } else {
      finding.why = fmt::format(
          "the highest loss so far, the untrained model's included, was {:.3g}: the batch of "
          "that step is unlike the others, or the update before it wrecked the weights",
          s.top);
      finding.remedy =
          "look at the batch of that step (values far from the others, wrong units, damage); clip gradients; "
          "lower "
          "the learning rate";
    }
    finding.causes = {"a damaged batch", "an update that was far too large",
                      "a learning rate that keeps rising"};
    finding.evidence = {{"loss", s.size}, {"level_before", s.before}, {"highest_before", s.top}};
    if (!s.after.empty()) finding.evidence.emplace_back("level_now", Median(s.after));
    const auto begin = s.last.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(s.last.size(), 32));
    std::int64_t at = s.step - (s.last.end() - begin);
    for (auto it = begin; it != s.last.end(); ++it) finding.series.emplace_back(at++, *it);
    finding.series.emplace_back(s.step, s.size);
    finding.threshold =
        fmt::format("{:.3g}: {:g} times the highest loss so far, more where losses scatter (Luff)", s.limit,
                    limits_.factor);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::map<std::string, Series> series_;
  Phases phases_;
  std::int64_t steps_ = 0, updates_ = 0;  // of TRAIN; with an update among them
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<LossSpike>(kName, kParams);  // losses are always taken
  spec.version = 2;                                   // 2: steps without an update
  spec.summary = "one loss far above all before it, and whether its level comes back";
  return spec;
}

}  // namespace luff::rules::loss_spike

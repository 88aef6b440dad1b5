#include <algorithm>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/builtin/boosting/boosted_rules.h"
#include "rules/facts/curve_rule.h"
#include "rules/facts/loss_tracker.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// Overtraining: docs/rules/overtraining.md.
namespace luff::rules::overtraining {
namespace {

constexpr const char* kName = "Overtraining";

struct Limits {
  std::int64_t patience_train, patience_validation;
  double delta;
  bool both;
  std::int64_t evaluations;
  double rise, of_start;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::patience_train, "patience_train", "5", "TRAIN steps without improvement (original)"},
    {&Limits::patience_validation, "patience_validation", "10", "EVAL steps without improvement (original)"},
    {&Limits::delta, "delta", "0.01", "how much lower a loss must be to count as improved (original)"},
    {&Limits::both, "both", "False",
     "training and validation must have stalled; False: one of them (original)"},
    {&Limits::evaluations, "evaluations", "20", "evaluations since the best one (Luff)", AtLeast(1)},
    {&Limits::rise, "rise", "0.15", "share by which the validation loss lies above its best (Luff)"},
    {&Limits::of_start, "of_start", "0.05", "and this share of the first training losses, at least (Luff)"},
};

// smdebug's rule: the training loss has not improved by `delta` for patience_train steps, or the validation
// loss for patience_validation steps.
class Original final : public KeptRule {
 public:
  explicit Original(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.superseded || (info.mode != query::Mode::kTrain && info.mode != query::Mode::kEval)) return;
    const std::vector<LossValue>& losses = view.index.losses();
    if (losses.empty()) return;
    Series& series = info.mode == query::Mode::kTrain ? training_ : validation_;
    const double value = losses.front().value;
    if (!series.any || value < series.best - limits_.delta) {
      series = {true, value, 0};
    } else {
      ++series.waited;
    }
    const bool train = training_.any && training_.waited >= limits_.patience_train;
    const bool validation = validation_.any && validation_.waited >= limits_.patience_validation;
    if (limits_.both ? !(train && validation) : !(train || validation)) return;
    Finding finding = FindingAt(kName, "stalled", view, TensorAt{losses.front().tensor});
    finding.what =
        fmt::format("the {} loss no longer improves", train && validation ? "training and the validation"
                                                      : train             ? "training"
                                                                          : "validation");
    finding.why = fmt::format("training: {} steps without a new best; validation: {}", training_.waited,
                              validation_.waited);
    finding.remedy = "stop here, or change the learning rate";
    finding.evidence = {{"training_waited", training_.waited}, {"validation_waited", validation_.waited}};
    finding.threshold =
        fmt::format("no improvement by {:g} in {} training {} {} validation steps (original)", limits_.delta,
                    limits_.patience_train, limits_.both ? "and" : "or", limits_.patience_validation);
    sink.Report(std::move(finding));
  }
  void VisitFields(Fields& io) override {
    io("training", training_);
    io("validation", validation_);
  }

 private:
  struct Series {
    bool any = false;
    double best = 0;
    std::int64_t waited = 0;
    void VisitFields(Fields& io) {
      io("any", any);
      io("best", best);
      io("waited", waited);
    }
  };
  const Limits limits_;
  Series training_, validation_;
};

// Luff's rule: the best evaluation is long past, and all later ones are worse, if only mildly.
class Luff final : public CurveRule {
 public:
  explicit Luff(const Limits& limits) : CurveRule(kName, "past_best"), limits_(limits) {}

 private:
  [[nodiscard]] std::int64_t Window() const {
    return std::clamp<std::int64_t>(limits_.evaluations / 2, 1, ValidationCurve::kRecent);
  }
  [[nodiscard]] bool Holds(const ValidationCurve& curve) const override {
    return curve.since_best() >= limits_.evaluations &&
           StandsAboveBest(curve, Window(), limits_.rise, limits_.of_start);
  }
  void Describe(const ValidationCurve& curve, Finding* finding) const override {
    const EvaluationPoint& now = curve.recent().back();
    finding->what =
        fmt::format("{} evaluations have passed since the best one, all of them worse", curve.since_best());
    finding->why = fmt::format(
        "the validation loss was {:.4g} after step {} and is {:.4g} now; the training loss went from "
        "{:.4g} "
        "to {:.4g}",
        curve.best().validation, curve.best().at.mode_step, now.validation, curve.best().training,
        now.training);
    finding->remedy =
        fmt::format("keep the model of step {}; stop, or lower the learning rate", curve.best().at.mode_step);
    finding->causes = {"training for too long", "too little data or regularisation",
                       "a learning rate that is too high for what is left to learn"};
    finding->evidence = {{"best_step", curve.best().at.mode_step},
                         {"best_validation", curve.best().validation},
                         {"validation", now.validation},
                         {"evaluations_since", curve.since_best()}};
    finding->threshold = fmt::format(
        "{} evaluations since the best; the last {} of them {:g} % above it, by {:g} % of the first "
        "training "
        "loss at least (Luff)",
        limits_.evaluations, Window(), 100 * limits_.rise, 100 * limits_.of_start);
  }

  const Limits limits_;
};

}  // namespace

RuleSpec Spec() {  // losses are always taken
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters& all) -> MadeRule {
    if (IsOriginal(all)) return std::unique_ptr<Rule>(new Original(limits));
    return std::unique_ptr<Rule>(
        Together(std::make_unique<Luff>(limits),
                 BoostedOvertraining({limits.evaluations, limits.rise, limits.of_start})));
  });
  spec.version = 4;  // 4: evaluations of models that are trained
  spec.summary = "training goes on long after the best evaluation";
  return spec;
}

}  // namespace luff::rules::overtraining

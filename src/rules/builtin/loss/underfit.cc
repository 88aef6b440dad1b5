#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/curve_rule.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// Underfit: docs/rules/underfit.md.
namespace luff::rules::underfit {
namespace {

constexpr const char* kName = "Underfit";

struct Limits {
  std::int64_t evaluations, steps;
  double share, delta, gap;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::evaluations, "evaluations", "12", "evaluations over which nothing improves (Luff)", AtLeast(1)},
    {&Limits::steps, "steps", "3000", "TRAIN steps before it is judged (Luff)"},
    {&Limits::share, "share", "0.9", "training loss as a share of its first values, at least (Luff)"},
    {&Limits::delta, "delta", "0.01", "share by which a loss must fall to count as improving (Luff)"},
    {&Limits::gap, "gap", "0.1", "largest distance of validation and training, as a share (Luff)"},
};

// The training loss has stopped falling near its start, and the validation loss is close to it.
class Underfit final : public CurveRule {
 public:
  explicit Underfit(const Limits& limits) : CurveRule(kName, "stuck"), limits_(limits) {}

 private:
  [[nodiscard]] bool SpeaksOfAHandful() const override { return true; }
  [[nodiscard]] bool Holds(const ValidationCurve& curve) const override {
    const auto needed = std::min<std::int64_t>(limits_.evaluations, ValidationCurve::kRecent);
    if (evaluations().train_steps() < limits_.steps || curve.count() <= limits_.evaluations ||
        static_cast<std::int64_t>(curve.recent().size()) < needed || !(curve.start() > 0))
      return false;
    const EvaluationPoint& now = curve.recent().back();
    const EvaluationPoint& then = *(curve.recent().end() - needed);
    return now.training >= limits_.share * curve.start() &&
           now.training >= (1 - limits_.delta) * then.training &&
           now.validation >= (1 - limits_.delta) * then.validation &&
           std::abs(now.validation - now.training) <= limits_.gap * now.training;
  }
  void Describe(const ValidationCurve& curve, Finding* finding) const override {
    const EvaluationPoint& now = curve.recent().back();
    finding->since_step = curve.recent().front().at.mode_step;
    finding->what = fmt::format("the training loss has come to rest at {:.3g} % of its first level",
                                100 * now.training / curve.start());
    finding->why = fmt::format(
        "training {:.4g}, validation {:.4g}, at the start {:.4g}: the model does not even fit the samples "
        "it "
        "is trained with",
        now.training, now.validation, curve.start());
    finding->remedy = "a larger model, less regularisation, another learning rate, or better features";
    finding->causes = {"a model that is too small", "regularisation that is too strong",
                       "a learning rate that is too low", "inputs that do not tell the target"};
    finding->evidence = {
        {"training", now.training}, {"validation", now.validation}, {"start", curve.start()}};
    finding->threshold = fmt::format(
        "{:g} % of the first loss or more, less than {:g} % better in {} evaluations, validation within "
        "{:g} % "
        "(Luff)",
        100 * limits_.share, 100 * limits_.delta, limits_.evaluations, 100 * limits_.gap);
  }

  const Limits limits_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<Underfit>(kName, kParams);  // losses are always taken
  spec.version = 3;                                  // 3: evaluations of models that are trained
  spec.summary = "training and validation losses that come to rest near where they began";
  return spec;
}

}  // namespace luff::rules::underfit

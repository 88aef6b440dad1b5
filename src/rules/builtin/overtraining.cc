#include <algorithm>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/boosted_rules.h"
#include "rules/builtin/builtin.h"
#include "rules/curve_rule.h"
#include "rules/json_state.h"
#include "rules/loss_tracker.h"
#include "rules/select.h"

/// Overtraining: docs/rules/overtraining.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
constexpr const char* kName = "Overtraining";
constexpr const char* kPage = "docs/rules/overtraining.md";

// ---- original: no improvement by `delta` of the training loss for patience_train steps, or of the
// validation loss for patience_validation steps.

struct OriginalLimits {
  std::int64_t patience_train = 5, patience_validation = 10;
  double delta = 0.01;
  bool both = false;
};

class Original final : public Rule {
 public:
  explicit Original(const OriginalLimits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.superseded || (info.mode != query::Mode::kTrain && info.mode != query::Mode::kEval)) return;
    const std::vector<LossValue> losses = LossesOf(view.trial, view.rows);
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
    Finding finding = FindingAt(kName, kPage, "stalled", view.trial, losses.front().tensor, 0, info);
    finding.what =
        fmt::format("the {} loss no longer improves", train && validation ? "training and the validation"
                                                      : train             ? "training"
                                                                          : "validation");
    finding.why = fmt::format("training: {} steps without a new best; validation: {}", training_.waited,
                              validation_.waited);
    finding.remedy = "stop here, or change the learning rate";
    finding.evidence = {{"training_waited", static_cast<double>(training_.waited)},
                        {"validation_waited", static_cast<double>(validation_.waited)}};
    finding.threshold =
        fmt::format("no improvement by {:g} in {} training {} {} validation steps (original)", limits_.delta,
                    limits_.patience_train, limits_.both ? "and" : "or", limits_.patience_validation);
    sink.Report(std::move(finding));
  }
  [[nodiscard]] std::string SaveState() const override {
    const Json json = {training_.any,   training_.best,   training_.waited,
                       validation_.any, validation_.best, validation_.waited};
    return JsonText(json);
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      training_ = {json.at(0), json.at(1), json.at(2)};
      validation_ = {json.at(3), json.at(4), json.at(5)};
    });
  }

 private:
  struct Series {
    bool any = false;
    double best = 0;
    std::int64_t waited = 0;
  };
  const OriginalLimits limits_;
  Series training_, validation_;
};

// ---- Luff's own: the best evaluation lies long back, and all that came since is worse, if only mildly.

struct Limits {
  std::int64_t evaluations = 20;
  double rise = 0.15, of_start = 0.05;
};

class Luff final : public CurveRule {
 public:
  explicit Luff(const Limits& limits) : CurveRule(kName, kPage, "past_best"), limits_(limits) {}

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
    finding->evidence = {{"best_validation", curve.best().validation},
                         {"validation", now.validation},
                         {"evaluations_since", static_cast<double>(curve.since_best())}};
    finding->threshold = fmt::format(
        "{} evaluations since the best; the last {} of them {:g} % above it, by {:g} % of the first "
        "training "
        "loss at least (Luff)",
        limits_.evaluations, Window(), 100 * limits_.rise, 100 * limits_.of_start);
  }

  const Limits limits_;
};

}  // namespace

RuleSpec OvertrainingSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.version = 2;
  spec.page = kPage;
  spec.summary = "training goes on long after the best evaluation";
  spec.parameters = {
      {"patience_train", "5", "5", "TRAIN steps without improvement (original)"},
      {"patience_validation", "10", "10", "EVAL steps without improvement (original)"},
      {"delta", "0.01", "0.01", "how much lower a loss must be to count as improved (original)"},
      {"both", "False", "False", "training and validation must have stalled; False: one of them (original)"},
      {"evaluations", "20", "20", "evaluations since the best one (Luff)"},
      {"rise", "0.15", "0.15", "share by which the validation loss lies above its best (Luff)"},
      {"of_start", "0.05", "0.05", "and this share of the first training losses, at least (Luff)"},
  };
  spec.needs = [](const Parameters&) { return std::vector<Need>{}; };  // losses are captured in any case
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    OriginalLimits original;
    LUFF_ASSIGN_OR_RETURN(original.patience_train, ParseInt(TextOf(parameters, "patience_train")));
    LUFF_ASSIGN_OR_RETURN(original.patience_validation, ParseInt(TextOf(parameters, "patience_validation")));
    LUFF_ASSIGN_OR_RETURN(original.delta, ParseDouble(TextOf(parameters, "delta")));
    LUFF_ASSIGN_OR_RETURN(original.both, ParseBool(TextOf(parameters, "both")));
    Limits limits;
    LUFF_ASSIGN_OR_RETURN(limits.evaluations, ParseInt(TextOf(parameters, "evaluations")));
    LUFF_ASSIGN_OR_RETURN(limits.rise, ParseDouble(TextOf(parameters, "rise")));
    LUFF_ASSIGN_OR_RETURN(limits.of_start, ParseDouble(TextOf(parameters, "of_start")));
    if (limits.evaluations < 1) return InvalidArgument("'evaluations' must be at least 1");
    if (IsOriginal(parameters)) return std::unique_ptr<Rule>(new Original(original));
    return Together(std::unique_ptr<Rule>(new Luff(limits)),
                    BoostedOvertraining({limits.evaluations, limits.rise, limits.of_start}));
  };
  return spec;
}

}  // namespace luff::rules

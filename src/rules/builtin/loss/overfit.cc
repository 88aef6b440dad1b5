#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/builtin/boosting/boosted_rules.h"
#include "rules/facts/curve_rule.h"
#include "rules/facts/few_rows.h"
#include "rules/facts/loss_tracker.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// Overfit: docs/rules/overfit.md.
namespace luff::rules::overfit {
namespace {

constexpr const char* kName = "Overfit";

struct Limits {
  std::int64_t start_step, patience;
  double ratio_threshold;
  std::int64_t evaluations;
  double rise, of_start, fall;
};
constexpr Param<Limits> kParams[] = {
    {nullptr, "tensor_regex", "None", "losses to compare instead of the collection losses (original)"},
    {&Limits::start_step, "start_step", "0", "step from which losses count (original)"},
    {&Limits::patience, "patience", "1", "evaluations in a row (original)", AtLeast(1)},
    {&Limits::ratio_threshold, "ratio_threshold", "0.1",
     "validation above training, as a share of it (original)"},
    {&Limits::evaluations, "evaluations", "3", "evaluations in a row above the best (Luff)", AtLeast(1)},
    {&Limits::rise, "rise", "0.35", "share by which the validation loss lies above its best (Luff)"},
    {&Limits::of_start, "of_start", "0.1", "and this share of the first training losses, at least (Luff)"},
    {&Limits::fall, "fall", "0.5", "training loss as a share of that at the best evaluation, at most (Luff)"},
};

// smdebug's rule: (mean validation loss - mean training loss) / mean training loss > ratio_threshold, for
// `patience` evaluations in a row. Means over all values since start_step.
class Original final : public KeptRule {
 public:
  Original(TensorSelector selector, const Limits& limits) : selector_(std::move(selector)), limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.superseded || info.mode_step < limits_.start_step) return;
    if (info.mode != query::Mode::kTrain && info.mode != query::Mode::kEval) return;
    double sum = 0;
    double count = 0;
    query::TensorId tensor = format::kNoId;
    const auto add = [&](query::TensorId id, double value) {
      sum += value;
      ++count;
      if (tensor == format::kNoId) tensor = id;
    };
    if (selector_.empty()) {
      for (const LossValue& loss : view.index.losses()) add(loss.tensor, loss.value);
    } else {
      for (const auto& entry : view.rows.scalars) {
        if (selector_.Selects(view.trial, entry.tensor)) add(entry.tensor, entry.value);
      }
      for (const auto& entry : view.rows.summaries) {
        if (entry.summary.count == 1 && selector_.Selects(view.trial, entry.tensor))
          add(entry.tensor, entry.summary.sum);
      }
    }
    if (count == 0) return;
    Mean& mean = info.mode == query::Mode::kTrain ? training_ : validation_;
    mean.sum += sum;
    mean.count += count;
    if (info.mode == query::Mode::kTrain) return;
    if (training_.count == 0) return;
    const double training = training_.sum / training_.count;
    const double validation = validation_.sum / validation_.count;
    const double ratio = training == 0 ? std::nan("") : (validation - training) / training;
    if (!(ratio > limits_.ratio_threshold)) {
      exceeded_ = 0;
      return;
    }
    if (++exceeded_ < limits_.patience) return;
    Finding finding = FindingAt(kName, "ratio", view, TensorAt{tensor});
    finding.what = fmt::format("the validation loss is {:.3g} % above the training loss", 100 * ratio);
    finding.why =
        fmt::format("mean of the evaluations {:.6g}, mean of the training {:.6g}", validation, training);
    finding.remedy = "more data, regularisation, a smaller model, or stop earlier";
    finding.evidence = {{"ratio", ratio}, {"validation", validation}, {"training", training}};
    finding.threshold = fmt::format("ratio above {:g} in {} evaluations in a row (original)",
                                    limits_.ratio_threshold, limits_.patience);
    sink.Report(std::move(finding));
  }
  void VisitFields(Fields& io) override {
    io("training", training_);
    io("validation", validation_);
    io("exceeded", exceeded_);
  }

 private:
  struct Mean {
    double sum = 0, count = 0;
    void VisitFields(Fields& io) {
      io("sum", sum);
      io("count", count);
    }
  };
  TensorSelector selector_;
  const Limits limits_;
  Mean training_, validation_;
  std::int64_t exceeded_ = 0;
};

// Luff's rule: the validation loss stays well above its best, evaluation after evaluation, while the training
// loss keeps falling.
class Luff final : public CurveRule {
 public:
  explicit Luff(const Limits& limits) : CurveRule(kName, "rising"), limits_(limits) {}

  [[nodiscard]] bool IsTold(const ValidationCurve& curve) const {
    return !curve.answers_hold() && Holds(curve);
  }
  using CurveRule::evaluations;

 private:
  [[nodiscard]] bool Holds(const ValidationCurve& curve) const override {
    const auto needed = std::min<std::int64_t>(limits_.evaluations, ValidationCurve::kRecent);
    if (curve.since_best() < needed) return false;
    const EvaluationPoint& now = curve.recent().back();
    return now.training <= limits_.fall * curve.best().training &&
           now.training <= limits_.fall * now.validation &&
           StandsAboveBest(curve, needed, limits_.rise, limits_.of_start);
  }
  // A noisy curve crosses the limit again and again; it has healed when most of the rise is gone.
  [[nodiscard]] bool Persists(const ValidationCurve& curve) const override {
    return curve.recent().back().validation > (1 + limits_.rise / 2) * curve.best().validation;
  }
  void Describe(const ValidationCurve& curve, Finding* finding) const override {
    const EvaluationPoint& now = curve.recent().back();
    finding->what = fmt::format("the validation loss has risen to {:.3g} times its best",
                                now.validation / std::max(curve.best().validation, 1e-300));
    finding->why = fmt::format(
        "it was {:.4g} after step {} and is {:.4g} now, while the training loss went on falling from "
        "{:.4g} "
        "to {:.4g}: the model learns its training samples by heart",
        curve.best().validation, curve.best().at.mode_step, now.validation, curve.best().training,
        now.training);
    finding->remedy = fmt::format(
        "keep the model of step {} or stop there; more data, augmentation, weight decay, dropout or a "
        "smaller model help",
        curve.best().at.mode_step);
    finding->causes = {"too little data for the size of the model", "no regularisation",
                       "training for too long", "validation data unlike the training data"};
    finding->evidence = {{"best_step", curve.best().at.mode_step},
                         {"best_validation", curve.best().validation},
                         {"validation", now.validation},
                         {"training_then", curve.best().training},
                         {"training", now.training}};
    finding->threshold = fmt::format(
        "{:g} % above the best in {} evaluations in a row, by {:g} % of the first training loss at least, "
        "the training loss at {:g} % of what it was then or less (Luff)",
        100 * limits_.rise, limits_.evaluations, 100 * limits_.of_start, 100 * limits_.fall);
  }

  const Limits limits_;
};

// And the few rows of a training that are learnt by heart, told at the end, where the curve has no better
// evaluation to speak of.
class WithFewRows final : public KeptRule {
 public:
  explicit WithFewRows(const Limits& limits) : curves_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    curves_.OnStep(view, sink);
    rows_.OnStep(view);
  }
  void OnEnd(const query::Trial& trial, Sink& sink) override {
    curves_.OnEnd(trial, sink);
    if (!rows_.are_few() || curves_.evaluations().takes_turns()) return;
    for (const auto& [name, curve] : curves_.evaluations().curves()) {
      if (curve.count() == 0 || curve.unfit() || curves_.IsTold(curve)) continue;
      const EvaluationPoint& now = curve.recent().back();
      const double start = curve.start();
      if (!(rows_.loss_left() <= kByHeart && now.validation >= kLost * start)) continue;
      Tell(trial, name, curve, sink);
      return;
    }
  }
  void VisitFields(Fields& io) override {
    io("curves", curves_);
    io("rows", rows_);
  }

 private:
  static constexpr double kByHeart = 0.05, kLost = 0.3;  // of the first training losses

  void Tell(const query::Trial& trial, const std::string& name, const ValidationCurve& curve,
            Sink& sink) const {
    const EvaluationPoint& now = curve.recent().back();
    Finding finding = FindingAt(kName, "few_rows", trial, format::kNoId, 0, now.at.Info());
    finding.tensor = name;
    finding.since_step = 0;
    finding.series = curve.Picture();
    finding.what = fmt::format("only {} rows are trained on, and learnt by heart: {} and more are evaluated",
                               rows_.trained(), rows_.evaluated());
    finding.why = fmt::format(
        "the training has given the same {} rows {:.0f} times each, as far as samples tell: its loss fell "
        "from "
        "{:.4g} to {:.4g}, and evaluations have {:.4g}",
        rows_.trained(), rows_.times(), curve.start(), rows_.loss_left() * curve.start(), now.validation);
    finding.remedy =
        "look whether a subset was left in from debugging (train_x[:64], Subset, a limit on samples or "
        "files) "
        "and train on all rows; if there are no more data, regularise, or begin with pre-trained weights";
    finding.causes = {"a subset of the rows that was of use for debugging", "a filter that leaves few rows",
                      "too little data for the size of the model"};
    finding.evidence = {{"rows", rows_.trained()},
                        {"evaluated", rows_.evaluated()},
                        {"training_left", rows_.loss_left()},
                        {"validation", now.validation}};
    finding.threshold = fmt::format(
        "{} rows or fewer, {} times as many in evaluations; {:g} % of the first loss in the training, {:g} % "
        "in "
        "evaluations (Luff)",
        FewRows::kMost, FewRows::kMore, 100 * kByHeart, 100 * kLost);
    sink.Report(std::move(finding));
  }

  Luff curves_;
  FewRows rows_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters& all) -> MadeRule {
    LUFF_ASSIGN_OR_RETURN(TensorSelector selector, TensorSelector::Make(all, false));
    if (IsOriginal(all)) return std::unique_ptr<Rule>(new Original(std::move(selector), limits));
    return std::unique_ptr<Rule>(
        Together(std::make_unique<WithFewRows>(limits),
                 BoostedOverfit({limits.evaluations, limits.rise, limits.of_start, limits.fall})));
  });
  // 4: losses that evaluations have no value of; 5: "few_rows"; 6: of several batches; models that are
  // trained
  spec.version = 6;
  spec.summary =
      "validation loss that rises while the training loss falls on; few rows that are learnt by heart";
  spec.needs = [](const Parameters& all) -> std::vector<Need> {
    if (!IsOriginal(all)) return {};  // losses are captured in any case, and samples for other rules
    std::vector<Need> needs = SelectedNeeds(all, "overfit_losses", Bit(format::Form::kSummary));
    for (std::size_t i = 0, count = needs.size(); i < count; ++i) {
      needs.push_back(needs[i]);
      needs.back().mode = "EVAL";
    }
    return needs;
  };
  return spec;
}

}  // namespace luff::rules::overfit

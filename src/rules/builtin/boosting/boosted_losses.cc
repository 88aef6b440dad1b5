#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "base/format.h"
#include "rules/builtin/boosting/boosted_curves.h"
#include "rules/builtin/boosting/boosted_rules.h"
#include "rules/kit/select.h"

/// Overfit, Overtraining and LossNotDecreasing on boosting runs.
namespace luff::rules {
namespace {

using Entry = BoostedCurves::Entry;

class Pair final : public KeptRule {
 public:
  Pair(std::unique_ptr<KeptRule> one, std::unique_ptr<KeptRule> other)
      : one_(std::move(one)),
        other_(std::move(other)) {}
  void OnStep(const StepView& view, Sink& sink) override {
    one_->OnStep(view, sink);
    other_->OnStep(view, sink);
  }
  void OnEnd(const query::Trial& trial, Sink& sink) override {
    one_->OnEnd(trial, sink);
    other_->OnEnd(trial, sink);
  }
  void VisitFields(Fields& io) override {
    io("one", *one_);
    io("other", *other_);
  }

 private:
  std::unique_ptr<KeptRule> one_, other_;
};

// A rule that judges each curve with a new point, and remembers which findings are open.
class OnCurves : public KeptRule {
 public:
  void OnStep(const StepView& view, Sink& sink) override {
    for (const Entry* entry : curves_.OnStep(view.trial, view.rows)) {
      if (!entry->curve.unfit()) Judge(view, *entry, sink);
    }
  }
  void VisitFields(Fields& io) override {
    io("curves", curves_);
    io("open", open_);
  }

 protected:
  virtual void Judge(const StepView& view, const Entry& entry, Sink& sink) = 0;

  void Tell(Finding finding, Sink& sink) {
    open_.insert(finding.cause + " " + finding.tensor);
    sink.Report(std::move(finding));
  }
  void Heal(const char* cause, const StepView& view, const Entry& entry, Sink& sink) {
    const std::string& name = view.trial.tensor(entry.tensor).name;
    if (open_.erase(std::string(cause) + " " + name) > 0) sink.Heal(cause, name, view.rows.info.mode_step);
  }

  BoostedCurves curves_;
  std::set<std::string> open_;
};

// True if all of the newest `rounds` values (at most kRecent) lie above the best by `rise` of the best and by
// `of_start` of the first value.
bool StaysAbove(const BoostedCurve& curve, std::int64_t rounds, double rise, double of_start) {
  const auto needed = static_cast<std::ptrdiff_t>(
      std::min<std::int64_t>(rounds, static_cast<std::int64_t>(BoostedCurve::kRecent)));
  if (curve.since_best() < rounds || static_cast<std::ptrdiff_t>(curve.recent().size()) < needed)
    return false;
  return std::all_of(curve.recent().end() - needed, curve.recent().end(),
                     [&](const BoostedCurve::Point& point) {
                       return point.second >= (1 + rise) * curve.best().second &&
                              point.second - curve.best().second >= of_start * curve.first();
                     });
}

// A metric that is the root of a mean of squares.
bool IsRoot(const std::string& metric) { return metric == "rmse" || metric == "rmsle"; }

class Overfit final : public OnCurves {
 public:
  explicit Overfit(const BoostedOverfitLimits& limits) : limits_(limits) {}

 private:
  static constexpr const char* kName = "Overfit";
  static constexpr std::int64_t kBarrenRounds = 30;  // rounds in which a general pattern would have shown
  static constexpr double kBarrenGain = 0.01, kBarrenFall = 0.2;

  void Judge(const StepView& view, const Entry& entry, Sink& sink) override {
    const Entry* training = entry.loss.training ? nullptr : curves_.TrainingOf(entry);
    if (training == nullptr || training->curve.unfit() || training->curve.count() == 0) return;
    const BoostedCurve& curve = entry.curve;
    const double now = training->curve.last();
    const double then = curve.partner_at_best();
    if (StaysAbove(curve, limits_.rounds, limits_.rise, limits_.of_start) && now <= limits_.fall * then &&
        now <= limits_.fall * curve.last()) {
      Finding finding = Base(view, entry, "rising", now);
      finding.since_step = curve.best().first;
      finding.what = fmt::format("the loss of '{}' has risen to {:.3g} times its best", entry.loss.data,
                                 curve.last() / std::max(curve.best().second, 1e-300));
      finding.why = fmt::format(
          "it was {:.4g} after round {} and is {:.4g} now, while the training loss went on falling from "
          "{:.4g} "
          "to {:.4g}: the newest trees learn single samples by heart",
          curve.best().second, curve.best().first, curve.last(), then, now);
      finding.remedy = fmt::format(
          "keep the model of round {} (early_stopping_rounds does); smaller max_depth, larger "
          "min_child_weight or lambda, subsample and a smaller eta help",
          curve.best().first);
      finding.evidence.emplace_back("training_then", then);
      finding.threshold = fmt::format(
          "{:g} % above the best in {} rounds in a row, by {:g} % of the first loss at least, the training "
          "loss "
          "at {:g} % of what it was then or less (Luff)",
          100 * limits_.rise, limits_.rounds, 100 * limits_.of_start, 100 * limits_.fall);
      Tell(std::move(finding), sink);
      return;
    }
    Heal("rising", view, entry, sink);
    const double start = training->curve.first();
    // Shares are those of squared errors: of a root of them, a fall by a tenth is one by a fifth.
    const double gain = IsRoot(entry.loss.metric) ? std::sqrt(1 - kBarrenGain) : 1 - kBarrenGain;
    const double fall = IsRoot(entry.loss.metric) ? std::sqrt(1 - kBarrenFall) : 1 - kBarrenFall;
    const bool barren = curve.best().second > gain * curve.first() && curve.last() > gain * curve.first() &&
                        now < fall * start;
    if (curve.count() >= kBarrenRounds && barren && curve.first() > 0) {
      Finding finding = Base(view, entry, "nothing_general", now);
      finding.since_step = curve.recent().back().first - curve.count() + 1;
      finding.what = fmt::format("{} rounds have taught the model nothing that holds for '{}'", curve.count(),
                                 entry.loss.data);
      finding.why = fmt::format(
          "its loss was {:.4g} after the first round and {:.4g} at best, while the training loss fell from "
          "{:.4g} to {:.4g}",
          curve.first(), curve.best().second, start, now);
      finding.remedy = "check that labels belong to their rows, and that both sets come from one source";
      finding.causes = {"labels shuffled apart from the rows", "features that tell nothing of the target",
                        "an evaluation set of another kind"};
      finding.threshold = fmt::format(
          "{} rounds, the best evaluation less than {:.2g} % below the first, the training loss {:.3g} % "
          "below "
          "its "
          "first (Luff)",
          kBarrenRounds, 100 * (1 - gain), 100 * (1 - fall));
      Tell(std::move(finding), sink);
      return;
    }
    if (!barren) Heal("nothing_general", view, entry, sink);
  }

  static Finding Base(const StepView& view, const Entry& entry, const char* cause, double training) {
    Finding finding = FindingAt(kName, cause, view.trial, entry.tensor, 0, view.rows.info);
    finding.causes = {"trees that are too deep for so little data", "no regularisation",
                      "training for too many rounds", "an evaluation set unlike the training data"};
    finding.evidence = {{"best_step", entry.curve.best().first},
                        {"best_validation", entry.curve.best().second},
                        {"validation", entry.curve.last()},
                        {"training", training}};
    finding.series = entry.curve.Picture();
    return finding;
  }
  const BoostedOverfitLimits limits_;
};

class Overtraining final : public OnCurves {
 public:
  explicit Overtraining(const BoostedOvertrainingLimits& limits) : limits_(limits) {}

 private:
  void Judge(const StepView& view, const Entry& entry, Sink& sink) override {
    if (entry.loss.training) return;
    const BoostedCurve& curve = entry.curve;
    if (curve.since_best() < limits_.rounds ||
        !StaysAbove(curve, std::max<std::int64_t>(limits_.rounds / 2, 1), limits_.rise, limits_.of_start)) {
      if (curve.since_best() == 0) Heal("past_best", view, entry, sink);
      return;
    }
    Finding finding = FindingAt("Overtraining", "past_best", view.trial, entry.tensor, 0, view.rows.info);
    finding.since_step = curve.best().first;
    finding.what = fmt::format("{} rounds have passed since the best one for '{}', all of them worse",
                               curve.since_best(), entry.loss.data);
    finding.why = fmt::format("its loss was {:.4g} after round {} and is {:.4g} now", curve.best().second,
                              curve.best().first, curve.last());
    finding.remedy =
        fmt::format("keep the model of round {}: early_stopping_rounds would have", curve.best().first);
    finding.causes = {"training for too many rounds", "a learning rate too high for what is left to learn"};
    finding.evidence = {{"best_step", curve.best().first},
                        {"best_validation", curve.best().second},
                        {"validation", curve.last()},
                        {"evaluations_since", curve.since_best()}};
    finding.series = curve.Picture();
    finding.threshold = fmt::format(
        "{} rounds since the best; the newest {:g} % above it, by {:g} % of the first loss at least (Luff)",
        limits_.rounds, 100 * limits_.rise, 100 * limits_.of_start);
    Tell(std::move(finding), sink);
  }
  const BoostedOvertrainingLimits limits_;
};

// Boosting lowers the training loss in every round: each tree is a Newton step on all rows, scaled down by
// the learning rate. So little patience is needed, and a later round gains at most what an earlier one did.
class LossNotDecreasing final : public OnCurves {
 private:
  static constexpr const char* kName = "LossNotDecreasing";
  static constexpr std::int64_t kRounds = 20;     // before a slow loss is reported
  static constexpr std::int64_t kHorizon = 1000;  // rounds to assume if the plan is unknown
  static constexpr double kLeast = 0.01;          // share of the first loss to be gained
  static constexpr std::int64_t kRisingRounds = 5;
  static constexpr double kRise = 0.2;

  void Judge(const StepView& view, const Entry& entry, Sink& sink) override {
    const bool alone = !entry.loss.training && curves_.TrainingOf(entry) == nullptr;
    if (!entry.loss.training && !alone) return;
    const BoostedCurve& curve = entry.curve;
    if (curve.count() <= kRisingRounds || curve.first() <= 0) return;
    const BoostedTraining plan = trainings_.TrainingOf(view.trial, entry.loss.prefix);
    if (plan.rounds_before > 0) return;  // continues a model that has already learnt
    if (entry.loss.training && Rising(curve)) {
      Finding finding = Base(view, entry, "rising");
      finding.severity = Severity::kStop;
      finding.since_step = curve.best().first;
      finding.what = fmt::format("the training loss rises: {:.3g} now, {:.3g} after the first round",
                                 curve.last(), curve.first());
      finding.why = "each tree should lower it: the steps are larger than what they correct";
      finding.remedy = "lower eta (learning_rate); check gradient and hessian of an objective of your own";
      finding.causes = {"eta far too large", "gradient or hessian of the wrong sign or size"};
      finding.threshold =
          fmt::format("{:g} % above the first in {} rounds in a row (Luff)", 100 * kRise, kRisingRounds);
      Tell(std::move(finding), sink);
      return;
    }
    Heal("rising", view, entry, sink);
    const std::int64_t planned =
        plan.rounds_planned > 0 ? plan.rounds_planned : std::max(kHorizon, curve.count());
    const double gained = curve.first() - curve.best().second;
    const double by_end = gained / static_cast<double>(curve.count() - 1) *
                          static_cast<double>(std::max(planned, curve.count()) - 1);
    if (by_end >= kLeast * curve.first()) {
      Heal("flat", view, entry, sink);
      return;
    }
    if (curve.count() < kRounds) return;
    Finding finding = Base(view, entry, "flat");
    finding.severity = Severity::kStop;
    finding.since_step = curve.recent().back().first - curve.count() + 1;
    finding.what =
        fmt::format("{} rounds have lowered the loss by {:.2g} % only: {:.5g}, {:.5g} at the start",
                    curve.count(), 100 * gained / curve.first(), curve.last(), curve.first());
    finding.why =
        fmt::format("at this pace all {} rounds lower it by {:.2g} %", planned, 100 * by_end / curve.first());
    finding.remedy =
        "raise eta (learning_rate); if the trees have no splits, lower gamma, min_child_weight or lambda";
    finding.causes = {"eta far too small for so many rounds", "regularisation that forbids every split",
                      "features that tell nothing of the target"};
    finding.evidence.emplace_back("by_the_end", by_end / curve.first());
    finding.threshold =
        fmt::format("less than {:g} % by the end, told after {} rounds (Luff)", 100 * kLeast, kRounds);
    Tell(std::move(finding), sink);
  }

  static bool Rising(const BoostedCurve& curve) {
    return static_cast<std::int64_t>(curve.recent().size()) > kRisingRounds &&
           std::all_of(
               curve.recent().end() - kRisingRounds, curve.recent().end(),
               [&](const BoostedCurve::Point& point) { return point.second > (1 + kRise) * curve.first(); });
  }
  static Finding Base(const StepView& view, const Entry& entry, const char* cause) {
    Finding finding = FindingAt(kName, cause, view.trial, entry.tensor, 0, view.rows.info);
    finding.evidence = {
        {"start", entry.curve.first()}, {"recent", entry.curve.last()}, {"best", entry.curve.best().second}};
    finding.series = entry.curve.Picture();
    return finding;
  }
  BoostedTrainings trainings_;
};

}  // namespace

std::unique_ptr<KeptRule> Together(std::unique_ptr<KeptRule> one, std::unique_ptr<KeptRule> other) {
  return std::make_unique<Pair>(std::move(one), std::move(other));
}
std::unique_ptr<KeptRule> BoostedOverfit(const BoostedOverfitLimits& limits) {
  return std::make_unique<Overfit>(limits);
}
std::unique_ptr<KeptRule> BoostedOvertraining(const BoostedOvertrainingLimits& limits) {
  return std::make_unique<Overtraining>(limits);
}
std::unique_ptr<KeptRule> BoostedLossNotDecreasing() { return std::make_unique<LossNotDecreasing>(); }

}  // namespace luff::rules

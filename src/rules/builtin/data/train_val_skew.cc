#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/evaluations.h"
#include "rules/facts/features.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// TrainValSkew: docs/rules/train_val_skew.md.
namespace luff::rules {
namespace {

constexpr const char* kName = "TrainValSkew";
constexpr std::size_t kMaxInputs = 16;
constexpr double kMaxKurtosis = 20;  // beyond: the spread of a sample says little

struct Limits {
  std::int64_t rows;
  double shift, spread, share;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::rows, "rows", "32", "rows of the training and of an evaluation, at least (Luff)"},
    {&Limits::shift, "shift", "2.5", "distance of means in deviations of the training (Luff)"},
    {&Limits::spread, "spread", "2.5", "ratio of deviations, either way (Luff)", Above(1)},
    {&Limits::share, "share", "0.5", "share of features that differ so (Luff)"},
};

class TrainValSkew final : public KeptRule {
 public:
  explicit TrainValSkew(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const std::optional<bool> train = IsTraining(view.rows.info, last_);
    if (!train) return;
    if (*train) {
      Judge(view.trial, sink);
      last_.Take(view.rows.info);
      turns_.OnTrainStep(view);
    }
    for (const ModelInput& input : ModelInputsOf(view)) {
      if (!IsFloating(input.entry->dtype)) continue;
      const auto sample = LoadRows(view, input, inputs_, kMaxInputs);
      if (sample == nullptr) continue;
      Input& one = inputs_[view.trial.tensor(input.entry->tensor).name];
      (*train ? one.training : one.evaluation).Add(*sample);
    }
  }
  void OnEnd(const query::Trial& trial, Sink& sink) override { Judge(trial, sink); }

  void VisitFields(Fields& io) override {
    io("open", open_);
    io("last", last_);
    io("turns", turns_);
    io("inputs", inputs_, kMaxInputs);
  }

 private:
  struct Input {
    Features training, evaluation;
    void VisitFields(Fields& io) {
      io("training", training);
      io("evaluation", evaluation);
    }
  };

  // An evaluation has ended: the features that it has seen against those of the training so far.
  void Judge(const query::Trial& trial, Sink& sink) {
    for (auto& [name, input] : inputs_) {
      if (input.evaluation.rows() == 0) continue;
      Compare(trial, name, input, sink);
      input.evaluation.Clear();
    }
  }

  void Compare(const query::Trial& trial, const std::string& name, const Input& input, Sink& sink) {
    const Features& t = input.training;
    const Features& e = input.evaluation;
    // Of few features each must be known well.
    const std::int64_t rows = t.size() < 4 ? 4 * limits_.rows : limits_.rows;
    if (turns_.taken() || t.kind() != e.kind() || t.rows() < rows || e.rows() < rows) return;
    std::size_t judged = 0;
    std::size_t unlike = 0;
    double worst_shift = 0;
    double worst_spread = 1;
    for (std::size_t i = 0; i < t.size(); ++i) {
      if (!t.varies(i) || t.kurtosis(i) > kMaxKurtosis || e.count(i) == 0) continue;
      ++judged;
      const double deviation = std::sqrt(t.variance(i));
      const double shift = std::abs(e.mean(i) - t.mean(i)) / deviation;
      const double spread = std::sqrt(e.variance(i)) / deviation;
      if (shift >= limits_.shift || spread >= limits_.spread || spread * limits_.spread <= 1) ++unlike;
      worst_shift = std::max(worst_shift, shift);
      if (std::abs(std::log(std::max(spread, 1e-9))) > std::abs(std::log(std::max(worst_spread, 1e-9))))
        worst_spread = spread;
    }
    const double share = judged == 0 ? 0 : static_cast<double>(unlike) / static_cast<double>(judged);
    if (judged == 0 || share < limits_.share) {
      if (open_.erase(name) > 0) sink.Heal("skew", name, last_.mode_step);
      return;
    }
    open_.insert(name);
    Finding finding = FindingAt(kName, "skew", trial, format::kNoId, 0, last_.Info());
    finding.tensor = name;
    finding.since_step = 0;
    finding.what = fmt::format(
        "{} of the {} features of {} are distributed otherwise in evaluations than in "
        "training",
        unlike, judged, name);
    finding.why = fmt::format(
        "measured in deviations of the training, means lie up to {:.3g} apart, and deviations differ by up "
        "to "
        "{:.3g} times: what an evaluation says of this model holds for other data",
        worst_shift, worst_spread >= 1 ? worst_spread : 1 / std::max(worst_spread, 1e-9));
    finding.remedy =
        "prepare validation inputs by the very same steps, with the mean and deviation of the "
        "training data";
    finding.causes = {"the scaler was applied to the training data only",
                      "another preparation or channel order", "validation data from another source"};
    finding.evidence = {{"unlike_share", share},
                        {"largest_shift", worst_shift},
                        {"spread_ratio", worst_spread},
                        {"training_rows", t.rows()},
                        {"evaluation_rows", e.rows()}};
    finding.threshold = fmt::format(
        "{:g} % of the features with means {:g} deviations apart or deviations {:g} times as large or small "
        "(Luff)",
        100 * limits_.share, limits_.shift, limits_.spread);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  Anchor last_;
  OptimizerTurns turns_;
  std::set<std::string> open_;
  std::map<std::string, Input> inputs_;
};

}  // namespace

RuleSpec TrainValSkewSpec() {
  RuleSpec spec = SpecOf<TrainValSkew>(kName, kParams);
  spec.summary = "inputs of evaluations that are distributed otherwise than those of the training";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules

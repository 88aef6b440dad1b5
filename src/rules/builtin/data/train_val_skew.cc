#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/evaluations.h"
#include "rules/facts/features.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// TrainValSkew: docs/rules/train_val_skew.md.
namespace luff::rules::train_val_skew {
namespace {

constexpr const char* kName = "TrainValSkew";
constexpr std::size_t kMaxInputs = 16;
constexpr double kMaxKurtosis = 20;  // above it, a sample says little about the spread

struct Limits {
  std::int64_t rows;
  double shift, spread, share, absent;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::rows, "rows", "32", "rows of the training and of an evaluation, at least (Luff)"},
    {&Limits::shift, "shift", "2.5", "distance of means in deviations of the training (Luff)"},
    {&Limits::spread, "spread", "2.5", "ratio of deviations, either way (Luff)", Above(1)},
    {&Limits::share, "share", "0.5", "share of features that differ so (Luff)"},
    {&Limits::absent, "absent", "0.1",
     "share of features that never vary in training and do in evaluations (Luff)"},
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

  // Called when an evaluation may have ended. Compares its features with those of the training so far.
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
    // With few features, each must be known well.
    const std::int64_t rows = t.size() < 4 ? 4 * limits_.rows : limits_.rows;
    if (turns_.taken() || t.kind() != e.kind() || t.rows() < rows || e.rows() < rows) return;
    std::size_t judged = 0;
    std::size_t unlike = 0;
    std::size_t absent = 0;
    double worst_shift = 0;
    double worst_spread = 1;
    for (std::size_t i = 0; i < t.size(); ++i) {
      if (e.count(i) == 0) continue;
      if (!t.varies(i) && e.varies(i) && e.kurtosis(i) <= kMaxKurtosis) ++absent;
      if (!t.varies(i) || t.kurtosis(i) > kMaxKurtosis) continue;
      ++judged;
      const double deviation = std::sqrt(t.variance(i));
      const double shift = std::abs(e.mean(i) - t.mean(i)) / deviation;
      const double spread = std::sqrt(e.variance(i)) / deviation;
      if (shift >= limits_.shift || spread >= limits_.spread || spread * limits_.spread <= 1) ++unlike;
      worst_shift = std::max(worst_shift, shift);
      if (std::abs(std::log(std::max(spread, 1e-9))) > std::abs(std::log(std::max(worst_spread, 1e-9))))
        worst_spread = spread;
    }
    if (t.rows() >= kAbsentRows) Absent(trial, name, t, absent, judged + absent, sink);
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

  // Reports features that are constant in training. Among kAbsentRows rows, even a flag that is set in one
  // row of twenty would have shown.
  void Absent(const query::Trial& trial, const std::string& name, const Features& training,
              std::size_t absent, std::size_t all, Sink& sink) {
    const std::string key = name + "\nabsent";
    if (absent < 2 || static_cast<double>(absent) < limits_.absent * static_cast<double>(all)) {
      if (open_.erase(key) > 0) sink.Heal("absent", name, last_.mode_step);
      return;
    }
    open_.insert(key);
    Finding finding = FindingAt(kName, "absent", trial, format::kNoId, 0, last_.Info());
    finding.tensor = name;
    finding.since_step = 0;
    finding.what =
        fmt::format("{} of the {} features of {} have one value in all training rows and vary in evaluations",
                    absent, all, name);
    finding.why =
        "what these features say cannot be learnt, and the model was never shown what evaluations give it";
    finding.remedy =
        "prepare training inputs by the same steps as those of evaluations; look for columns that were lost";
    finding.causes = {"columns lost or overwritten in the training data",
                      "another preparation or column order", "training data of one source only"};
    finding.evidence = {{"absent", absent}, {"features", all}, {"training_rows", training.rows()}};
    finding.threshold = fmt::format("{:g} % of the features, and two at least, after {} rows (Luff)",
                                    100 * limits_.absent, kAbsentRows);
    sink.Report(std::move(finding));
  }

  static constexpr std::int64_t kAbsentRows = 128;
  const Limits limits_;
  Anchor last_;
  OptimizerTurns turns_;
  std::set<std::string> open_;
  std::map<std::string, Input> inputs_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<TrainValSkew>(kName, kParams);
  spec.version = 2;
  spec.summary = "inputs of evaluations that are distributed otherwise than those of the training";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::train_val_skew

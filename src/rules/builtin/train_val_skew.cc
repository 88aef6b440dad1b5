#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/evaluations.h"
#include "rules/features.h"
#include "rules/json_state.h"
#include "rules/sample.h"
#include "rules/sample_needs.h"
#include "rules/select.h"

/// TrainValSkew: docs/rules/train_val_skew.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
constexpr const char* kName = "TrainValSkew";
constexpr const char* kPage = "docs/rules/train_val_skew.md";
constexpr std::size_t kMaxInputs = 16;
constexpr double kMaxKurtosis = 20;  // beyond: the spread of a sample says little

struct Limits {
  std::int64_t rows = 32;
  double shift = 2.5, spread = 2.5, share = 0.5;
};

class TrainValSkew final : public Rule {
 public:
  explicit TrainValSkew(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const std::optional<bool> train = IsTraining(view.rows.info, last_);
    if (!train) return;
    if (*train) {
      Judge(view.trial, sink);
      last_.Take(view.rows.info);
      turns_.OnTrainStep(view.rows);
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

  [[nodiscard]] std::string SaveState() const override {
    Json json = {{"open", open_}, {"inputs", Json::object()}};
    last_.Save(&json["last"]);
    turns_.Save(&json["turns"]);
    for (const auto& [name, input] : inputs_) {
      Json& saved = json["inputs"][name];
      input.training.Save(&saved["training"]);
      input.evaluation.Save(&saved["evaluation"]);
    }
    return JsonText(json);
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      open_ = json.at("open").get<std::set<std::string>>();
      last_.Load(json.at("last"));
      turns_.Load(json.at("turns"));
      inputs_.clear();
      for (const auto& [name, saved] : json.at("inputs").items()) {
        inputs_[name].training.Load(saved.at("training"));
        inputs_[name].evaluation.Load(saved.at("evaluation"));
      }
    });
  }

 private:
  struct Input {
    Features training, evaluation;
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
    Finding finding = FindingAt(kName, kPage, "skew", trial, format::kNoId, 0, last_.Info());
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
                        {"training_rows", static_cast<double>(t.rows())},
                        {"evaluation_rows", static_cast<double>(e.rows())}};
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
  RuleSpec spec;
  spec.name = kName;
  spec.page = kPage;
  spec.summary = "inputs of evaluations that are distributed otherwise than those of the training";
  spec.parameters = {
      {"rows", "32", "32", "rows of the training and of an evaluation, at least (Luff)"},
      {"shift", "2.5", "2.5", "distance of means in deviations of the training (Luff)"},
      {"spread", "2.5", "2.5", "ratio of deviations, either way (Luff)"},
      {"share", "0.5", "0.5", "share of features that differ so (Luff)"},
  };
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    Limits limits;
    LUFF_ASSIGN_OR_RETURN(limits.rows, ParseInt(TextOf(parameters, "rows")));
    LUFF_ASSIGN_OR_RETURN(limits.shift, ParseDouble(TextOf(parameters, "shift")));
    LUFF_ASSIGN_OR_RETURN(limits.spread, ParseDouble(TextOf(parameters, "spread")));
    LUFF_ASSIGN_OR_RETURN(limits.share, ParseDouble(TextOf(parameters, "share")));
    if (!(limits.spread > 1)) return InvalidArgument("'spread' must be above 1");
    return std::unique_ptr<Rule>(new TrainValSkew(limits));
  };
  return spec;
}

}  // namespace luff::rules

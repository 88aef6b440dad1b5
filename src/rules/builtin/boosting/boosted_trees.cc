#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/format.h"
#include "rules/builtin/boosting/boosted_curves.h"
#include "rules/builtin/boosting/boosted_rules.h"
#include "rules/kit/select.h"

/// TreeDepth and FeatureImportanceOverweight on boosting runs, as recorded live.
namespace luff::rules {
namespace {

class TreeDepth final : public KeptRule {
 public:
  explicit TreeDepth(const BoostedDepthLimits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    static_cast<void>(curves_.OnStep(view.trial, view.rows));
    if (view.rows.info.superseded || view.rows.info.mode != query::Mode::kTrain) return;
    for (; known_ < view.trial.tensor_count(); ++known_) {
      const auto id = static_cast<query::TensorId>(known_);
      const std::string& name = view.trial.tensor(id).name;
      if (name.ends_with("trees/Depth") && columns_.size() < BoostedTrainings::kMost)
        columns_.emplace_back(name.substr(0, name.size() - 11), id);
    }
    // Of several trainings only the newest still grows.
    for (auto at = columns_.rbegin(); at != columns_.rend(); ++at) {
      const auto depths = ReadNumbers(view, at->second);
      if (!depths || depths->empty()) continue;
      OnTrees(view, at->first, at->second, *depths, sink);
      return;
    }
  }
  void VisitFields(Fields& io) override {
    io("curves", curves_);
    io("deep", deep_, BoostedTrainings::kMost);
  }

 private:
  static constexpr std::int64_t kBlindRounds = 10;  // rounds needed without an evaluation set
  static constexpr double kLone = 2.5;              // samples; sums of hessians are not whole numbers

  struct Shape {
    double depth = 0;
    std::int64_t leaves = 0, lone = 0;
  };

  void OnTrees(const StepView& view, const std::string& prefix, query::TensorId id,
               const std::vector<double>& depths, Sink& sink) {
    const auto cover = Column(view, prefix, "Cover");
    const auto feature = Column(view, prefix, "Feature");
    const BoostedTraining training = trainings_.TrainingOf(view.trial, prefix);
    if (cover.size() != depths.size() || feature.size() != depths.size() || training.rows <= 0) return;
    const double rows = static_cast<double>(training.rows) * std::clamp(training.subsample, 0.0, 1.0);
    Shape shape;
    double root = 0;
    for (std::size_t i = 0; i < depths.size(); ++i) {
      if (depths[i] == 0) root = cover[i];
      shape.depth = std::max(shape.depth, depths[i]);
      if (feature[i] >= 0) continue;
      ++shape.leaves;
      if (root > 0 && cover[i] / root * rows < kLone) ++shape.lone;
    }
    const double lone =
        shape.leaves > 0 ? static_cast<double>(shape.lone) / static_cast<double>(shape.leaves) : 0;
    if (!(shape.depth > limits_.depth) || lone < limits_.lone_share) {
      deep_[prefix] = 0;
      return;
    }
    const std::int64_t rounds = ++deep_[prefix];
    const BoostedCurves::Entry* judge = curves_.Judge(prefix);
    const bool evaluated = judge != nullptr && !judge->loss.training;
    if (rounds < (evaluated ? limits_.rounds : kBlindRounds)) return;
    if (evaluated && judge->curve.since_best() < limits_.rounds) return;  // deep, but evaluations improve
    Finding finding = FindingAt("TreeDepth", "deep", view.trial, id, 0, view.rows.info);
    finding.what =
        fmt::format("trees are {:g} levels deep, and {:.0f} % of their leaves hold one or two samples",
                    shape.depth, 100 * lone);
    finding.why = evaluated ? fmt::format(
                                  "the loss of '{}' has not improved since round {}: the trees learn single "
                                  "samples, noise included",
                                  judge->loss.data, judge->curve.best().first)
                            : std::string(
                                  "such leaves learn single samples by heart, noise included; no evaluation "
                                  "set tells whether that does harm");
    finding.remedy =
        "lower max_depth (or num_leaves), raise min_child_weight (or min_data_in_leaf), gamma or lambda";
    finding.causes = {"max_depth too large for so many samples", "min_child_weight 0", "no regularisation"};
    finding.evidence = {
        {"depth", shape.depth}, {"leaves", shape.leaves}, {"lone_share", lone}, {"rows", rows}};
    finding.threshold = fmt::format(
        "deeper than {:g}, {:g} % of the leaves with fewer than {:g} samples, in {} rounds in a row{} (Luff)",
        limits_.depth, 100 * limits_.lone_share, kLone, evaluated ? limits_.rounds : kBlindRounds,
        evaluated ? " without a better evaluation" : "");
    sink.Report(std::move(finding));
  }

  [[nodiscard]] static std::vector<double> Column(const StepView& view, const std::string& prefix,
                                                  const char* name) {
    const auto id = view.trial.TensorNamed(prefix + "trees/" + name);
    if (!id) return {};
    auto values = ReadNumbers(view, *id);
    return values ? std::move(*values) : std::vector<double>{};
  }

  const BoostedDepthLimits limits_;
  BoostedCurves curves_;
  BoostedTrainings trainings_;
  std::size_t known_ = 0;
  std::vector<std::pair<std::string, query::TensorId>> columns_;  // prefix, depths
  std::map<std::string, std::int64_t> deep_;                      // rounds in a row, by prefix
};

class FeatureImportance final : public KeptRule {
 public:
  explicit FeatureImportance(const BoostedImportanceLimits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    static_cast<void>(curves_.OnStep(view.trial, view.rows));
    if (view.rows.info.superseded || view.rows.info.mode != query::Mode::kTrain) return;
    for (; known_ < view.trial.tensor_count(); ++known_) {
      const std::string& name = view.trial.tensor(static_cast<query::TensorId>(known_)).name;
      const std::size_t at = name.find(kType);
      place_.push_back(at == std::string::npos || (at > 0 && name[at - 1] != '/') ? -1
                                                                                  : static_cast<int>(at));
    }
    std::map<std::string, std::vector<std::pair<double, query::TensorId>>> shares;
    std::optional<std::uint32_t> worker;
    for (const auto& scalar : view.rows.scalars) {
      const int at = scalar.tensor < place_.size() ? place_[scalar.tensor] : -1;
      if (at < 0 || !std::isfinite(scalar.value)) continue;
      if (worker.value_or(scalar.worker) != scalar.worker)
        continue;  // other workers share this model, or train their own
      worker = scalar.worker;
      const std::string& name = view.trial.tensor(scalar.tensor).name;
      shares[name.substr(0, static_cast<std::size_t>(at))].emplace_back(scalar.value, scalar.tensor);
    }
    for (auto& [prefix, of] : shares) Judge(view, prefix, of, sink);
  }
  void VisitFields(Fields& io) override {
    io("curves", curves_);
    io("seen", seen_, BoostedTrainings::kMost);
  }

 private:
  static constexpr const char* kType = "feature_importance/total_gain/";

  void Judge(const StepView& view, const std::string& prefix,
             std::vector<std::pair<double, query::TensorId>>& shares, Sink& sink) {
    if (seen_.size() >= BoostedTrainings::kMost && !seen_.contains(prefix)) return;
    if (++seen_[prefix] <= limits_.from) return;
    const BoostedTraining training = trainings_.TrainingOf(view.trial, prefix);
    const auto offered = std::max<std::int64_t>(training.features, static_cast<std::int64_t>(shares.size()));
    if (offered < limits_.least) return;
    std::sort(shares.begin(), shares.end(), std::greater<>());
    double total = 0, top = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      total += shares[i].first;
      if (static_cast<std::int64_t>(i) < limits_.features) top += shares[i].first;
    }
    if (!(total > 0) || !(top / total > limits_.threshold)) return;
    const BoostedCurves::Entry* judge = curves_.Judge(prefix);
    if (judge == nullptr || judge->curve.first() <= 0) return;
    const double rest = judge->curve.best().second / judge->curve.first();
    if (!(rest <= limits_.rest)) return;
    const query::TensorId tensor = shares.front().second;
    const std::string feature =
        view.trial.tensor(tensor).name.substr(prefix.size() + std::string(kType).size());
    Finding finding =
        FindingAt("FeatureImportanceOverweight", "overweight", view.trial, tensor, 0, view.rows.info);
    finding.what = limits_.features == 1
                       ? fmt::format("one feature, '{}', does {:.3g} % of the work of {}", feature,
                                     100 * top / total, offered)
                       : fmt::format("{} of {} features do {:.3g} % of the work, '{}' first",
                                     limits_.features, offered, 100 * top / total, feature);
    finding.why = fmt::format(
        "and the model is all but perfect: the loss of '{}' is down to {:.2g} % of what it was after the "
        "first "
        "round. Such a feature is often a copy of the target",
        judge->loss.data, 100 * rest);
    finding.remedy =
        fmt::format("is '{}' known at the time of the prediction? If not, leave it out", feature);
    finding.causes = {"a feature that was filled after the outcome was known",
                      "an id that separates the classes", "a target that one feature does determine"};
    finding.evidence = {{"share", top / total}, {"features", offered}, {"rest", rest}};
    finding.threshold =
        fmt::format("more than {:g} of the total gain, and the loss at {:g} % of the first or less (Luff)",
                    limits_.threshold, 100 * limits_.rest);
    sink.Report(std::move(finding));
  }

  const BoostedImportanceLimits limits_;
  BoostedCurves curves_;
  BoostedTrainings trainings_;
  std::size_t known_ = 0;
  std::vector<int> place_;  // by tensor id: where kType begins in its name; -1: it does not occur
  std::map<std::string, std::int64_t> seen_;  // rounds with importances, by prefix
};

}  // namespace

std::unique_ptr<KeptRule> BoostedTreeDepth(const BoostedDepthLimits& limits) {
  return std::make_unique<TreeDepth>(limits);
}
std::unique_ptr<KeptRule> BoostedFeatureImportance(const BoostedImportanceLimits& limits) {
  return std::make_unique<FeatureImportance>(limits);
}

}  // namespace luff::rules

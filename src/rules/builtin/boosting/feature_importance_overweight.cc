#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "rules/builtin/boosting/boosted_rules.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// FeatureImportanceOverweight: docs/rules/feature_importance_overweight.md.
namespace luff::rules::feature_importance_overweight {
namespace {

constexpr const char* kName = "FeatureImportanceOverweight";
constexpr const char* kTensors = ".*feature_importance/weight";
constexpr const char* kTotalGain = "(^|/)feature_importance/total_gain/";

struct Limits {
  double threshold;
  std::int64_t features;
  std::string regex;
  std::int64_t least, from;
  double rest;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::threshold, "threshold", "0.8", "share of the importance (original)"},
    {&Limits::features, "nfeatures", "1", "largest features that are added up (original)", AtLeast(1), "3"},
    {&Limits::regex, "tensor_regex", kTensors, "tensors that hold the importance of each feature (original)"},
    {&Limits::least,
     "least_features",
     "8",
     "features that a model must have to be judged: three of four say nothing",
     {},
     "1"},
    {&Limits::from, "start_step", "5", "steps before it is judged: a first tree uses few features", {}, "0"},
    {&Limits::rest, "rest", "0.15",
     "share of the first loss that is left, at most: a copy of the target is all but perfect (Luff)"},
};

class FeatureImportanceOverweight final : public KeptRule {
 public:
  /// `single`: also accepts one tensor per feature.
  FeatureImportanceOverweight(Regex pattern, const Limits& limits, bool single)
      : tensors_(std::move(pattern)),
        limits_(limits),
        single_(single) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode_step < limits_.from) return;
    const std::vector<query::TensorId>& tensors = tensors_.Of(view.trial);
    std::map<std::string, std::pair<query::TensorId, std::vector<double>>> features;  // by type
    std::set<query::TensorId> told;
    if (single_) {
      for (const auto& scalar : view.rows.scalars) {
        if (!std::binary_search(tensors.begin(), tensors.end(), scalar.tensor)) continue;
        if (told.insert(scalar.tensor).second) AddFeature(view, scalar.tensor, scalar.value, &features);
      }
    }
    if (told.empty()) {
      for (const query::TensorId id : tensors) {
        std::optional<std::vector<double>> read = ReadNumbers(view, id);
        if (!read) continue;
        if (read->size() == 1 && single_) {
          AddFeature(view, id, read->front(), &features);
        } else {
          Judge(view, id, std::move(*read), sink);
        }
      }
    }
    for (auto& [type, of] : features) Judge(view, of.first, std::move(of.second), sink);
  }

 private:
  using Features = std::map<std::string, std::pair<query::TensorId, std::vector<double>>>;

  // "feature_importance/weight/f0" is one feature of "feature_importance/weight".
  static void AddFeature(const StepView& view, query::TensorId id, double share, Features* features) {
    static constexpr std::string_view kLead = "feature_importance/";
    const std::string& name = view.trial.tensor(id).name;
    const std::size_t lead = name.find(kLead);
    const std::size_t end = lead == std::string::npos ? lead : name.find('/', lead + kLead.size());
    auto& of = (*features)[name.substr(0, end)];
    if (of.second.empty()) of.first = id;
    of.second.push_back(share);
  }

  void Judge(const StepView& view, query::TensorId id, std::vector<double> shares, Sink& sink) const {
    if (std::any_of(shares.begin(), shares.end(), [](double share) { return !std::isfinite(share); })) return;
    if (static_cast<std::int64_t>(shares.size()) < limits_.least) return;
    std::sort(shares.begin(), shares.end(), std::greater<>());
    double total = 0;
    for (const double share : shares) total += share;
    double top = 0;
    const auto count = std::min<std::size_t>(shares.size(), static_cast<std::size_t>(limits_.features));
    for (std::size_t i = 0; i < count; ++i) top += shares[i];
    if (!(total > 0) || !(top / total > limits_.threshold)) return;
    Finding finding = FindingAt(kName, "overweight", view, TensorAt{id});
    finding.what = fmt::format("{} of {} features make up {:.3g} % of the importance", count, shares.size(),
                               100 * top / total);
    finding.why = "a model that leans on a few features often has one that copies the target";
    finding.remedy = "look at these features: are they known at the time of the prediction?";
    finding.causes = {"a feature that was filled after the outcome was known",
                      "an id that separates the classes", "features that tell nothing"};
    finding.evidence = {{"share", top / total}, {"features", shares.size()}};
    finding.threshold =
        fmt::format("{} features with more than {:g} of all (original)", limits_.features, limits_.threshold);
    sink.Report(std::move(finding));
  }

  MatchingTensors tensors_;
  const Limits limits_;
  const bool single_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters& all) -> MadeRule {
    LUFF_ASSIGN_OR_RETURN(Regex pattern, Regex::Compile(limits.regex));
    const bool original = IsOriginal(all);
    auto shares = std::make_unique<FeatureImportanceOverweight>(std::move(pattern), limits, original);
    if (original) return std::unique_ptr<Rule>(std::move(shares));
    return std::unique_ptr<Rule>(
        Together(std::move(shares), BoostedFeatureImportance({.threshold = limits.threshold,
                                                              .rest = limits.rest,
                                                              .features = limits.features,
                                                              .least = limits.least,
                                                              .from = limits.from})));
  });
  spec.version = 2;
  spec.summary = "a few features carry nearly all of a boosted model";
  spec.needs = [](const Parameters& all) -> std::vector<Need> {
    const std::string pattern = TextOf(all, "tensor_regex");
    Need need = {
        .collection = "feature_importance", .include = ParseList(pattern), .forms = Bit(format::Form::kRaw)};
    if (!IsOriginal(all) && pattern == kTensors) need.include = {kTotalGain};
    if (pattern == kTensors)  // no tensor of a module has such a name
      need.include_roles = {format::Role::kOther, format::Role::kCustom};
    return {need};
  };
  return spec;
}

}  // namespace luff::rules::feature_importance_overweight

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "rules/builtin/builtin.h"
#include "rules/select.h"

/// FeatureImportanceOverweight: docs/rules/feature_importance_overweight.md.
namespace luff::rules {
namespace {

constexpr const char* kName = "FeatureImportanceOverweight";
constexpr const char* kPage = "docs/rules/feature_importance_overweight.md";
constexpr const char* kTensors = ".*feature_importance/weight";

struct Limits {
  double threshold = 0.8;
  std::int64_t features = 3;
  std::int64_t least = 1;  // features that a model must have to be judged
  std::int64_t from = 0;   // steps of the mode before it is judged
};

class FeatureImportanceOverweight final : public Rule {
 public:
  FeatureImportanceOverweight(Regex pattern, const Limits& limits)
      : tensors_(std::move(pattern)),
        limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode_step < limits_.from) return;
    for (const query::TensorId id : tensors_.Of(view.trial)) {
      std::optional<std::vector<double>> read = ReadNumbers(view, id);
      if (!read) continue;
      std::vector<double> shares = std::move(*read);
      if (std::any_of(shares.begin(), shares.end(), [](double share) { return !std::isfinite(share); }))
        continue;
      if (static_cast<std::int64_t>(shares.size()) < limits_.least) continue;
      std::sort(shares.begin(), shares.end(), std::greater<>());
      double total = 0;
      for (const double share : shares) total += share;
      double top = 0;
      const auto count = std::min<std::size_t>(shares.size(), static_cast<std::size_t>(limits_.features));
      for (std::size_t i = 0; i < count; ++i) top += shares[i];
      if (!(total > 0) || !(top / total > limits_.threshold)) continue;
      Finding finding = FindingAt(kName, kPage, "overweight", view.trial, id, 0, view.rows.info);
      finding.what = fmt::format("{} of {} features make up {:.3g} % of the importance", count, shares.size(),
                                 100 * top / total);
      finding.why = "a model that leans on a few features often has one that copies the target";
      finding.remedy = "look at these features: are they known at the time of the prediction?";
      finding.causes = {"a feature that was filled after the outcome was known",
                        "an id that separates the classes", "features that tell nothing"};
      finding.evidence = {{"share", top / total}, {"features", static_cast<double>(shares.size())}};
      finding.threshold = fmt::format("{} features with more than {:g} of all (original)", limits_.features,
                                      limits_.threshold);
      sink.Report(std::move(finding));
    }
  }
  [[nodiscard]] std::string SaveState() const override { return "{}"; }
  [[nodiscard]] Status LoadState(std::string_view) override { return Status::Ok(); }

 private:
  MatchingTensors tensors_;
  const Limits limits_;
};

}  // namespace

RuleSpec FeatureImportanceOverweightSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.version = 1;
  spec.page = kPage;
  spec.summary = "a few features carry nearly all of a boosted model";
  spec.parameters = {
      {"threshold", "0.8", "0.8", "share of the importance (original)"},
      {"nfeatures", "3", "3", "largest features that are added up (original)"},
      {"tensor_regex", kTensors, kTensors, "tensors that hold the importance of each feature (original)"},
      {"least_features", "8", "1", "features that a model must have to be judged: three of four say nothing"},
      {"start_step", "5", "0", "steps before it is judged: a first tree uses few features"},
  };
  spec.needs = [](const Parameters& parameters) {
    Need need;
    need.collection = "feature_importance";
    need.include = ParseList(TextOf(parameters, "tensor_regex"));
    if (TextOf(parameters, "tensor_regex") == kTensors) {  // no tensor of a module's is called so
      need.include_roles = {format::Role::kOther, format::Role::kCustom};
    }
    need.forms = Bit(format::Form::kRaw);
    return std::vector<Need>{need};
  };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    Limits limits;
    LUFF_ASSIGN_OR_RETURN(limits.threshold, ParseDouble(TextOf(parameters, "threshold")));
    LUFF_ASSIGN_OR_RETURN(limits.features, ParseInt(TextOf(parameters, "nfeatures")));
    LUFF_ASSIGN_OR_RETURN(limits.least, ParseInt(TextOf(parameters, "least_features")));
    LUFF_ASSIGN_OR_RETURN(limits.from, ParseInt(TextOf(parameters, "start_step")));
    LUFF_ASSIGN_OR_RETURN(Regex pattern, Regex::Compile(TextOf(parameters, "tensor_regex")));
    if (limits.features < 1) return InvalidArgument("'nfeatures' must be at least 1");
    return std::unique_ptr<Rule>(new FeatureImportanceOverweight(std::move(pattern), limits));
  };
  return spec;
}

}  // namespace luff::rules

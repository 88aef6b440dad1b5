#include <optional>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/kit/kept_rule.h"
#include "rules/select.h"

/// TensorVariance: docs/rules/tensor_variance.md. Both parameter sets are the published rule; without tensors
/// and thresholds it is silent.
namespace luff::rules {
namespace {

using format::Form;
constexpr const char* kName = "TensorVariance";

class TensorVariance final : public KeptRule {
 public:
  TensorVariance(TensorSelector selector, std::optional<double> low, std::optional<double> high)
      : selector_(std::move(selector)),
        low_(low),
        high_(high) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (selector_.empty() || (!low_ && !high_)) return;
    for (const auto& entry : view.rows.summaries) {
      if (!selector_.Selects(view.trial, entry.tensor)) continue;
      const double variance = entry.summary.variance();  // NaN if nothing is finite: no comparison holds
      const bool high = high_ && variance > *high_;
      const bool low = low_ && variance < *low_;
      if (!high && !low) continue;
      Finding finding = FindingAt(kName, high ? "high" : "low", view, entry);
      finding.what = fmt::format("the variance of {} is {:.4g}", finding.tensor, variance);
      finding.why = high ? "values that vary so much saturate or blow up what comes after them"
                         : "values that hardly vary tell what comes after them next to nothing";
      finding.remedy = "check the initialisation, the scale of the inputs and the learning rate";
      finding.evidence = {{"variance", variance}};
      finding.threshold =
          high ? fmt::format("above {:g} (parameter)", *high_) : fmt::format("below {:g} (parameter)", *low_);
      sink.Report(std::move(finding));
    }
  }

 private:
  TensorSelector selector_;
  const std::optional<double> low_, high_;
};

}  // namespace

RuleSpec TensorVarianceSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.page = PageOf(kName);
  spec.summary = "the variance of tensors that you name leaves the range that you name";
  spec.parameters = {
      {"collection_names", "None", "None", "collections to inspect; without tensors the rule is silent"},
      {"tensor_regex", "None", "None", "tensors to inspect"},
      {"max_threshold", "None", "None", "largest variance (of the population, ddof 0); None: any"},
      {"min_threshold", "None", "None", "smallest variance; None: any"},
  };
  spec.needs = [](const Parameters& parameters) -> std::vector<Need> {
    Result<TensorSelector> selector = TensorSelector::Make(parameters, false);
    if (!selector.ok()) return {};
    return selector.value().NeedsOf("tensor_variance", Bit(Form::kSummary));
  };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    LUFF_ASSIGN_OR_RETURN(TensorSelector selector, TensorSelector::Make(parameters, false));
    std::optional<double> low;
    std::optional<double> high;
    if (HasParameter(parameters, "min_threshold")) {
      LUFF_ASSIGN_OR_RETURN(low, ParseDouble(TextOf(parameters, "min_threshold")));
    }
    if (HasParameter(parameters, "max_threshold")) {
      LUFF_ASSIGN_OR_RETURN(high, ParseDouble(TextOf(parameters, "max_threshold")));
    }
    return std::unique_ptr<Rule>(new TensorVariance(std::move(selector), low, high));
  };
  return spec;
}

}  // namespace luff::rules

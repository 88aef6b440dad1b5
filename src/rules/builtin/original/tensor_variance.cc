#include <optional>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// TensorVariance: docs/rules/tensor_variance.md. Both parameter sets are the published rule; without tensors
/// and thresholds it is silent.
namespace luff::rules::tensor_variance {
namespace {

using format::Form;
constexpr const char* kName = "TensorVariance";

struct Limits {
  std::optional<double> high, low;
};
constexpr Param<Limits> kParams[] = {
    {nullptr, "collection_names", "None", "collections to inspect; without tensors the rule is silent"},
    {nullptr, "tensor_regex", "None", "tensors to inspect"},
    {&Limits::high, "max_threshold", "None", "largest variance (of the population, ddof 0); None: any"},
    {&Limits::low, "min_threshold", "None", "smallest variance; None: any"},
};

class TensorVariance final : public KeptRule {
 public:
  TensorVariance(TensorSelector selector, const Limits& limits)
      : selector_(std::move(selector)),
        low_(limits.low),
        high_(limits.high) {}

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

RuleSpec Spec() {
  RuleSpec spec = SpecOf<TensorVariance>(kName, kParams);
  spec.summary = "the variance of tensors that you name leaves the range that you name";
  spec.needs = [](const Parameters& all) {
    return SelectedNeeds(all, "tensor_variance", Bit(Form::kSummary));
  };
  return spec;
}

}  // namespace luff::rules::tensor_variance

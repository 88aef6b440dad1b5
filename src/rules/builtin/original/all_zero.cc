#include <string>
#include <vector>

#include "base/format.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// AllZero: docs/rules/all_zero.md. Both parameter sets are the published rule; without tensors it is silent.
namespace luff::rules::all_zero {
namespace {

using format::Form;
constexpr const char* kName = "AllZero";

struct Limits {
  double threshold;
};
constexpr Param<Limits> kParams[] = {
    {nullptr, "collection_names", "None", "collections to inspect; without tensors the rule is silent"},
    {nullptr, "tensor_regex", "None", "tensors to inspect"},
    {&Limits::threshold, "threshold", "100", "percent of zeros"},
};

class AllZero final : public KeptRule {
 public:
  AllZero(TensorSelector selector, const Limits& limits)
      : selector_(std::move(selector)),
        threshold_(limits.threshold) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (selector_.empty()) return;
    for (const auto& entry : view.rows.summaries) {
      if (!selector_.Selects(view.trial, entry.tensor) || entry.summary.count == 0) continue;
      const double percent =
          100.0 * static_cast<double>(entry.summary.zero_count) / static_cast<double>(entry.summary.count);
      if (!(percent >= threshold_)) continue;
      Finding finding = FindingAt(kName, "zero", view, entry);
      finding.what = fmt::format("{:.4g} % of {} is zero", percent, finding.tensor);
      finding.why = "a tensor of zeros passes nothing on: neither a signal nor a gradient";
      finding.remedy = "check its initialisation, a mask, or dead units in front of it";
      finding.evidence = {{"zero_percent", percent}};
      finding.threshold = fmt::format("{:g} % and more (parameter; original 100 %)", threshold_);
      sink.Report(std::move(finding));
    }
  }

 private:
  TensorSelector selector_;
  const double threshold_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<AllZero>(kName, kParams);
  spec.summary = "tensors that you name consist of zeros";
  spec.needs = [](const Parameters& all) { return SelectedNeeds(all, "all_zero", Bit(Form::kSummary)); };
  return spec;
}

}  // namespace luff::rules::all_zero

#include <string>
#include <vector>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/select.h"

/// AllZero: docs/rules/all_zero.md. Both parameter sets are the published rule; without tensors it is silent.
namespace luff::rules {
namespace {

using format::Form;
constexpr const char* kName = "AllZero";

struct Limits {
  std::string collections, regexes;
  double threshold;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::collections, "collection_names", "None",
     "collections to inspect; without tensors the rule is silent"},
    {&Limits::regexes, "tensor_regex", "None", "tensors to inspect"},
    {&Limits::threshold, "threshold", "100", "percent of zeros"},
};

class AllZero final : public KeptRule {
 public:
  AllZero(TensorSelector selector, double threshold)
      : selector_(std::move(selector)),
        threshold_(threshold) {}

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

RuleSpec AllZeroSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.page = PageOf(kName);
  spec.summary = "tensors that you name consist of zeros";
  spec.parameters = Described(kParams);
  spec.needs = [](const Parameters& parameters) -> std::vector<Need> {
    Result<TensorSelector> selector = TensorSelector::Make(parameters, false);
    if (!selector.ok()) return {};
    return selector.value().NeedsOf("all_zero", Bit(Form::kSummary));
  };
  spec.make = [](const Parameters& all) -> Result<std::unique_ptr<Rule>> {
    LUFF_ASSIGN_OR_RETURN(TensorSelector selector, TensorSelector::Make(all, false));
    LUFF_ASSIGN_OR_RETURN(const Limits limits, ReadLimits(kParams, all));
    return std::unique_ptr<Rule>(new AllZero(std::move(selector), limits.threshold));
  };
  return spec;
}

}  // namespace luff::rules

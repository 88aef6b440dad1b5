#include <algorithm>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/model_modules.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// HighDropout: docs/rules/high_dropout.md.
namespace luff::rules::high_dropout {
namespace {

constexpr const char* kName = "HighDropout";
constexpr std::size_t kMaxNamed = 20;

struct Limits {
  double share;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::share, "share", "0.9", "probability of dropping from which it is too high (Luff)"}};

// Name of the setting that is a module's probability of dropping, "" if it has none.
const char* DropSetting(const std::string& type) {
  if (type.find("Dropout") != std::string::npos) return "p";
  if (type == "RNN" || type == "LSTM" || type == "GRU" || type == "MultiheadAttention") return "dropout";
  return "";
}

class HighDropout final : public KeptRule {
 public:
  explicit HighDropout(const Limits& limits) : share_(limits.share) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (!modules_.OnStep(view)) return;
    std::vector<const ModuleFacts*> high;
    double highest = 0;
    std::size_t kept = 0;
    for (const ModuleFacts& module : modules_.modules()) {
      const char* setting = DropSetting(module.type);
      if (*setting == '\0' || !module.training) continue;
      // Recurrent modules drop between their layers; with one layer this does nothing.
      if (module.type != "MultiheadAttention" && std::string(setting) == "dropout" &&
          module.Number("num_layers").value_or(1) < 2)
        continue;
      const std::optional<double> p = module.Number(setting);
      if (!p.has_value() || !(*p <= 1)) continue;
      if (*p < share_) {
        ++kept;
        continue;
      }
      highest = std::max(highest, *p);
      high.push_back(&module);
    }
    if (high.empty() || told_) return;
    told_ = true;
    Finding finding = FindingAt(kName, "high", view, TensorAt{format::kNoId});
    const auto name = [](const ModuleFacts& module) {
      return module.name.empty() ? module.path : module.name;
    };
    finding.since_step = 0;
    finding.tensor = name(*high.front());
    for (std::size_t i = 1; i < high.size() && i <= kMaxNamed; ++i)
      finding.other_tensors.push_back(name(*high[i]));
    finding.other_count = high.size() - 1;
    finding.what = fmt::format(
        "{} drops {:g} % of its input in training{}", finding.tensor, 100 * highest,
        high.size() > 1 ? fmt::format(", and so do {} more modules", high.size() - 1) : std::string());
    finding.why = fmt::format(
        "hardly any signal passes, and what passes is scaled by {:.3g}; the probability given is that of "
        "dropping, probably that of keeping ({:g}) was meant",
        highest < 1 ? 1 / (1 - highest) : 0.0, highest);
    finding.remedy = fmt::format("use p = {:.3g} if {:g} of the values are to be kept", 1 - highest, highest);
    finding.causes = {"the probability of keeping was given", "a percentage or a typing error"};
    finding.evidence = {{"p", highest}, {"modules", high.size()}, {"other_dropouts", kept}};
    finding.threshold = fmt::format("p of {:g} or more (Luff)", share_);
    sink.Report(std::move(finding));
  }
  void VisitFields(Fields& io) override { io("told", told_); }

 private:
  const double share_;
  bool told_ = false;  // reading the description again gives nothing new
  ModelModules modules_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<HighDropout>(kName, kParams);
  spec.summary = "dropout that lets hardly anything pass";
  return spec;
}

}  // namespace luff::rules::high_dropout

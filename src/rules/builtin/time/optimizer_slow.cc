#include <algorithm>
#include <array>
#include <string_view>

#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/pause_rule.h"

/// OptimizerSlow: docs/rules/optimizer_slow.md.
namespace luff::rules::optimizer_slow {
namespace {

constexpr const char* kName = "OptimizerSlow";
constexpr std::int64_t kParameters = 30;  // tensors; with fewer, calls are not what takes the time
constexpr std::int64_t kFirst = 20;       // steps, in which states are made
// Of an update's time (docs/rules/optimizer_slow.md).
struct Factors {
  double saved, low, high;
};
constexpr Factors kByFused = {0.7, 0.4, 0.9}, kByForeach = {0.3, 0, 0.5};
constexpr std::array<std::string_view, 4> kFused = {"Adam", "AdamW", "SGD", "Adagrad"};

constexpr Param<PauseLimits> kParams[] = {ShareParam("0.15"), SecondsParam("7"), TimesParam("100")};

class OptimizerSlow final : public PauseRule {
 public:
  explicit OptimizerSlow(const PauseLimits& limits) : PauseRule(kName, "one_by_one", limits) {}

 private:
  Pause Of(const query::StepInfo& step, const query::StepPhases& phases) override {
    if (step.mode != query::Mode::kTrain || steps() <= kFirst) return {};
    return {SecondsOf(phases, format::Phase::kOptimizer),
            phases.begins[static_cast<std::size_t>(format::Phase::kOptimizer)]};
  }
  bool Describe(const query::Trial& trial, const Spent& spent, Finding* finding) override {
    const std::vector<OptimizerFacts> all = ModelFacts::Of(trial).optimizers();
    if (all.empty() || !std::ranges::all_of(all, [](const auto& one) { return one.one_by_one; }))
      return false;
    const auto& most = *std::ranges::max_element(all, {}, &OptimizerFacts::parameters);
    if (most.parameters < kParameters) return false;
    const bool fused = std::ranges::find(kFused, most.type) != kFused.end();
    finding->what = fmt::format("the optimizer {}; {} updates {} parameters one by one", spent.Text(),
                                most.type, most.parameters);
    finding->why =
        "each parameter takes several small operations, whose calls take longer than their arithmetic";
    finding->remedy = fmt::format("pass {} to {}", fused ? "fused=True" : "foreach=True", most.type);
    finding->causes = {"many small parameters, and neither fused nor foreach"};
    finding->evidence = {{"parameters", most.parameters}};
    const Factors& by = fused ? kByFused : kByForeach;
    finding->saving = {
        by.saved * spent.seconds, 0, by.low * spent.seconds, by.high * spent.seconds,
        fmt::format("{:g} of the time of the updates, {}", by.saved, profile::TimeText(spent.seconds))};
    return true;
  }
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<OptimizerSlow>(kName, kParams);
  spec.summary = "the optimizer updates many parameters one by one";
  return spec;
}

}  // namespace luff::rules::optimizer_slow

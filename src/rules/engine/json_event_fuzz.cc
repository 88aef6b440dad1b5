// Fuzzes JSON events and the document "model", which come from the run directory: no rule may fail on them.
// The first line of the input is the document, each further line an event; the rules see them in a short
// training.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "luff/rules/choice.h"
#include "luff/rules/rule.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/testing/fake_trial.h"

namespace {

using namespace luff::rules;  // NOLINT(google-build-using-namespace)
using luff::format::EventKind;
using luff::format::Role;

constexpr std::size_t kSteps = 12, kMaxEvents = 64, kMaxNames = 256;

void Require(bool holds) {
  if (!holds) std::abort();
}

class NoSink final : public Sink {
 public:
  void Report(Finding finding) override {
    const std::string line = ToJson(finding, "new");
    Require(line.find('\n') == std::string::npos && ParseFindingUntrusted(line).ok());
  }
  void Heal(const std::string&, const std::string&, std::int64_t) override {}
};

std::vector<std::string> Lines(std::string_view input) {
  std::vector<std::string> lines;
  while (lines.size() <= kMaxEvents) {
    const std::size_t end = input.find('\n');
    lines.emplace_back(input.substr(0, end));
    if (end == std::string_view::npos) break;
    input.remove_prefix(end + 1);
  }
  return lines;
}

testing::FakeTrial Story(const std::vector<std::string>& lines) {
  testing::FakeTrial trial;
  trial.SetDocument("model", lines.front());
  std::size_t next = 1;
  const std::size_t each = (lines.size() - 1 + kSteps - 1) / kSteps;
  for (std::size_t step = 0; step < kSteps; ++step) {
    const double x = static_cast<double>(step);
    trial.Step()
        .Loss(2.0 - 0.1 * x)
        .Tensor("Net_fc.weight", Role::kWeight, {1.0, 2.0 + x})
        .Tensor("gradient/Net_fc.weight", Role::kGradient, {0.5, x})
        .Event(EventKind::kBackward)
        .Event(EventKind::kOptimizerStep);
    for (std::size_t n = 0; n < each && next < lines.size(); ++n) trial.EventJson(lines[next++]);
  }
  return trial;
}

void CheckFacts(const StepIndex& index) {
  for (const ReachFacts& reach : ReachesOf(index)) {
    Require(reach.without_gradient.size() <= kMaxNames && reach.foreign.size() <= kMaxNames);
    Require(reach.without_gradient_count >= 0 && reach.reached_count >= 0);
    for (const auto& leaf : reach.foreign) Require(leaf.shape.size() <= 64);
  }
  for (const LoadFacts& load : LoadsOf(index)) {
    Require(load.missing.size() <= kMaxNames && load.unexpected.size() <= kMaxNames);
    Require(load.matched >= 0 && load.missing_count >= 0 && load.unexpected_count >= 0);
  }
}

void CheckModel(const luff::query::Trial& trial) {
  const ModelFacts facts = ModelFacts::Of(trial);
  for (const auto& [name, parameter] : facts.parameters()) {
    Require(!name.empty() && parameter.elements >= -1 && parameter.shape.size() <= 64);
    Require(facts.Find(name) == &parameter);
    (void)facts.IsPartlyOptimized(parameter.model);
    (void)facts.ModuleTypes(parameter.model);
  }
  Require(facts.optimizer_count() <= facts.optimizers().size());
  for (const OptimizerFacts& optimizer : facts.optimizers()) {
    Require(facts.OptimizerNumber(optimizer.name).has_value() && optimizer.parameters >= 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<Choice> choices = [] {
    auto parsed = ParseChoices("all", ParameterSet::kLuff);
    Require(parsed.ok());
    return *parsed;
  }();
  const std::vector<std::string> lines = Lines({reinterpret_cast<const char*>(data), size});
  const testing::FakeTrial trial = Story(lines);
  CheckModel(trial);
  std::vector<luff::query::Trial::StepRows> rows(kSteps);
  for (std::size_t n = 0; n < kSteps; ++n) Require(trial.ReadStepRows(n, &rows[n]).ok());
  NoSink sink;
  std::vector<std::unique_ptr<Rule>> rules;
  for (const Choice& choice : choices) {
    auto rule = choice.spec->make(choice.parameters);
    Require(rule.ok());
    rules.push_back(std::move(rule).value());
  }
  StepMemo memo;
  for (std::size_t n = 0; n < kSteps; ++n) {
    memo.Clear();
    const StepIndex index(trial, rows[n]);
    CheckFacts(index);
    for (const auto& rule : rules) rule->OnStep({trial, rows[n], n, memo, index}, sink);
  }
  for (const auto& rule : rules) {
    rule->OnEnd(trial, sink);
    (void)rule->SaveState();
  }
  return 0;
}

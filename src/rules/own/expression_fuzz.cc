// Fuzzes conditions, which come from files that people write, and their states, which come from the run
// directory. The input is a condition, a zero byte, and a state. A condition that parses sees a few steps, is
// saved and loaded, and sees more steps.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "luff/rules/rule.h"
#include "rules/facts/step_memo.h"
#include "rules/own/expression.h"
#include "rules/own/expression_rule.h"
#include "rules/testing/fake_trial.h"

namespace {

using namespace luff::rules;  // NOLINT(google-build-using-namespace)
using luff::format::Role;

class Nothing final : public Sink {
 public:
  void Report(Finding finding) override { bytes += ToJson(finding, "new").size(); }
  void Heal(const std::string& cause, const std::string& tensor, std::int64_t) override {
    bytes += cause.size() + tensor.size();
  }
  std::size_t bytes = 0;
};

const testing::FakeTrial& Story() {
  static const testing::FakeTrial trial = [] {
    testing::FakeTrial story;
    for (int step = 0; step < 12; ++step) {
      story.Step().Loss(step == 9 ? std::nan("") : 2.0 - step * 0.1);
      if (step % 2 == 0) story.Tensor("gradient/w", Role::kGradient, {1.0, 0.5 * step});
      if (step % 3 == 0) story.Tensor("gradient/b", Role::kGradient, {step > 8 ? HUGE_VAL : 1.0});
    }
    return story;
  }();
  return trial;
}

void Tell(Rule& rule, Sink& sink, std::size_t from, std::size_t to) {
  luff::query::Trial::StepRows rows;
  for (std::size_t n = from; n < to; ++n) {
    if (!Story().ReadStepRows(n, &rows).ok()) std::abort();
    StepMemo memo;
    rule.OnStep({Story(), rows, n, memo, StepIndex(Story(), rows)}, sink);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = input.find('\0');
  const std::string when(input.substr(0, cut));
  const auto parsed = Expression::ParseUntrusted(when);
  const auto spec = ExpressionSpec({{"name", "fuzz"}, {"when", when}});
  if (parsed.ok() != spec.ok()) std::abort();
  if (!spec.ok()) return 0;
  for (const Node& node : parsed->nodes()) {
    if (node.begin > node.end || node.end > when.size()) std::abort();
    if (node.left > parsed->root() || node.right > parsed->root()) std::abort();
  }
  auto rule = spec->make({});
  Nothing sink;
  Tell(**rule, sink, 0, 6);
  const std::string state = (*rule)->SaveState();
  auto again = spec->make({});
  if (!(*again)->LoadState(state).ok()) std::abort();
  Tell(**rule, sink, 6, 12);
  Tell(**again, sink, 6, 12);
  if ((*again)->SaveState() != (*rule)->SaveState()) std::abort();
  (*again)->OnEnd(Story(), sink);
  if (cut == std::string_view::npos) return 0;
  auto hostile = spec->make({});
  if ((*hostile)->LoadState(input.substr(cut + 1)).ok()) Tell(**hostile, sink, 0, 12);
  return 0;
}

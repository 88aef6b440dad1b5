#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// Parameters behind numbers that are normalised alone (NoGradient, norm_of_one).
namespace luff::rules::norm_of_one_test {
namespace {

using format::EventKind;
using testing::FakeTrial;

std::vector<Finding> Told(const std::vector<std::string>& events, int steps = 40) {
  FakeTrial trial;
  trial.SetDocument("model",
                    R"({"models": [{"name": "Net", "type": "Net", "modules": [{"path": "", "type": "Net"}],
    "parameters": [{"path": "gate.weight", "name": "Net_gate.weight", "shape": [4, 4], "requires_grad": true,
    "optimizer": "Adam"}]}], "optimizers": [{"number": 0, "name": "Adam", "type": "Adam", "foreign": 0,
    "groups": [{"parameters": 1}]}]})");
  for (int step = 0; step < steps; ++step) {
    trial.Step().Event(EventKind::kOptimizerStep, 0);
    if (static_cast<std::size_t>(step) < events.size() && !events[static_cast<std::size_t>(step)].empty())
      trial.EventJson(R"({"kind": "norm_of_one", )" + events[static_cast<std::size_t>(step)] + "}");
  }
  return testing::FindingsOf(trial, "NoGradient", ParameterSet::kLuff);
}

TEST(NormOfOne, IsToldWithItsKind) {
  for (const auto& [of, word] : std::vector<std::pair<std::string, std::string>>{{"sum", "own sum"},
                                                                                 {"length", "own length"},
                                                                                 {"mean", "own mean"},
                                                                                 {"best", "one best score"},
                                                                                 {"layer", "one feature"},
                                                                                 {"group", "in each group"},
                                                                                 {"new", "alone"}}) {
    const auto found = Told({R"("of": ")" + of + R"(", "layers": ["Net_gate.weight"])"});
    ASSERT_EQ(found.size(), 1U) << of;
    EXPECT_EQ(found[0].cause, "norm_of_one");
    EXPECT_EQ(found[0].tensor, "Net_gate.weight");
    EXPECT_EQ(found[0].severity, Severity::kWarn);
    EXPECT_NE(found[0].what.find(word), std::string::npos) << found[0].what;
  }
}

TEST(NormOfOne, OfAnotherModel_ForAWhile_AndDamaged_IsSilent) {
  const std::string sum = R"("of": "sum", "layers": ["Net_gate.weight"])";
  EXPECT_TRUE(Told({sum, "", R"("of": "", "layers": [])"}).empty());
  EXPECT_TRUE(Told({R"("of": "sum", "layers": ["unknown"])"}).empty());
  EXPECT_TRUE(Told({R"("of": "sum", "layers": 3)"}).empty());
  EXPECT_TRUE(Told({R"("of": 3, "layers": [3, {}])"}).empty());
  EXPECT_TRUE(Told({sum}, 3).empty());  // no update since
  EXPECT_EQ(Told({R"("of": 3, "layers": ["Net_gate.weight"])"}).size(), 1U);
}

}  // namespace
}  // namespace luff::rules::norm_of_one_test

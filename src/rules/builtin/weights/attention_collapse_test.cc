#include <cmath>

#include <gtest/gtest.h>

#include "base/format.h"
#include "rules/testing/recorder.h"

namespace luff::rules::attention_collapse_test {
namespace {

using testing::FakeTrial;

struct Layer {
  double least, entropy;
};

std::string Event(const std::vector<Layer>& layers) {
  std::string text;
  for (const Layer& layer : layers)
    text += fmt::format(
        R"({}{{"heads": 4, "queries": 16, "keys": 16, "rows": 64, "least": {}, "top": {}, "entropy": {}}})",
        text.empty() ? "" : ", ", layer.least, layer.least, layer.entropy);
  return fmt::format(R"({{"kind": "inside", "attention": [{}], "codes": []}})", text);
}

bool IsLook(int step) { return (step & (step - 1)) == 0 || step % 32 == 0; }

template <typename Layers, typename Loss>
std::vector<Finding> Told(Layers layers, Loss loss, int steps = 300) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step) {
    trial.Step().Loss(loss(step));
    if (IsLook(step)) trial.EventJson(Event(layers(step)));
  }
  return testing::FindingsOf(trial, "AttentionCollapse", ParameterSet::kLuff);
}

const auto kFlat = [](int) { return 2.4; };
const auto kLearns = [](int step) { return 2.4 * std::exp(-0.02 * step); };

TEST(AttentionCollapse, SharpFromTheStart_IsToldWithinFiveSteps) {
  const auto findings = Told([](int) { return std::vector<Layer>{{0.9, 0.1}, {0.85, 0.12}}; }, kLearns);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "sharp_start");
  EXPECT_EQ(findings[0].step, 2);
}

TEST(AttentionCollapse, OneLayerOrOneHeadThatLooksAround_IsSilentAtTheStart) {
  EXPECT_TRUE(Told([](int) { return std::vector<Layer>{{0.9, 0.1}, {0.79, 0.2}}; }, kLearns).empty());
  EXPECT_TRUE(
      Told([](int step) { return std::vector<Layer>{{step < 2 ? 0.9 : 0.5, 0.3}}; }, kLearns).empty());
}

TEST(AttentionCollapse, WeightsThatSumToOneAlongAnotherAxis_AreTold) {
  const auto told = [](int without) {
    FakeTrial trial;
    for (int step = 0; step < 20; ++step) {
      trial.Step().Loss(1);
      if (!IsLook(step)) continue;
      trial.EventJson(step == without ? R"({"kind": "inside", "attention": [], "codes": []})"
                                      : R"({"kind": "inside", "attention": [], "codes": [], "crossed": 2})");
    }
    return testing::FindingsOf(trial, "AttentionCollapse", ParameterSet::kLuff);
  };
  const auto findings = told(-1);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "other_axis");
  EXPECT_EQ(findings[0].step, 2);
  EXPECT_TRUE(told(0).empty());
  EXPECT_TRUE(told(2).empty());
}

const auto kCollapses = [](int step) {
  return std::vector<Layer>{{0.2, 0.9}, step < 40 ? Layer{0.3, 0.8} : Layer{0.99, 0.01}};
};

TEST(AttentionCollapse, ALayerThatCollapsesWhileNothingIsLearned_IsTold) {
  const auto findings = Told(kCollapses, kFlat);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "collapsed");
  EXPECT_EQ(findings[0].since_step, 64);
  EXPECT_EQ(findings[0].step, 128);
}

TEST(AttentionCollapse, ATaskThatIsSolvedByLookingAtOnePlace_IsSilent) {
  EXPECT_TRUE(Told(kCollapses, kLearns).empty());
}

TEST(AttentionCollapse, SharpButNotAtTheLimit_IsSilent) {
  EXPECT_TRUE(
      Told([](int step) { return std::vector<Layer>{{step < 40 ? 0.3 : 0.94, 0.3}}; }, kFlat).empty());
}

TEST(AttentionCollapse, AMaskThatIsTheWrongWayRound_IsToldOnce) {
  const auto told = [](const std::string& event) {
    FakeTrial trial;
    for (int step = 0; step < 6; ++step) {
      trial.Step().Loss(2);
      if (step >= 2) trial.EventJson(event);
    }
    return testing::FindingsOf(trial, "AttentionCollapse", ParameterSet::kLuff);
  };
  const auto findings = told(R"({"kind": "padded_attention", "step": 2, "layers": 2, "rows": 9})");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "padding_only");
  EXPECT_EQ(findings[0].step, 2);
  EXPECT_TRUE(told(R"({"kind": "padded_attention", "step": 2, "layers": 0, "rows": 9})").empty());
  EXPECT_TRUE(told(R"({"kind": "padded_attention", "rows": "9", "layers": 2})").empty());
  EXPECT_TRUE(told(R"({"kind": "padded_attention"})").empty());
}

}  // namespace
}  // namespace luff::rules::attention_collapse_test

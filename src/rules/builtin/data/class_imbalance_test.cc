#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules {
namespace {

using testing::Batch;
using testing::FakeTrial;

using format::Role;

std::vector<Finding> FindingsOf(const FakeTrial& trial, const std::string& rule = "ClassImbalance",
                                ParameterSet set = ParameterSet::kLuff) {
  return testing::FindingsOf(trial, rule, set);
}

// `share` of the samples are positive. The model answers "no" to all, or finds them.
FakeTrial Story(double share, double pos_weight, bool finds_them, int steps = 240) {
  FakeTrial trial;
  std::mt19937 random(4);
  std::uniform_real_distribution<double> uniform;
  for (int step = 0; step < steps; ++step) {
    std::vector<double> scores;
    std::vector<double> targets;
    for (int i = 0; i < 64; ++i) {
      const double y = uniform(random) < share ? 1 : 0;
      targets.push_back(y);
      scores.push_back((finds_them && y == 1 ? 1 : -3) + uniform(random));
    }
    testing::TellPairs(&trial, "WeightedBCE", testing::BceWithLogits(scores, targets, pos_weight), scores,
                       targets, DType::kInt64);
  }
  return trial;
}

TEST(ClassImbalance, RarePositivesThatNothingWeights_AreTold) {
  const auto findings = FindingsOf(Story(0.03, 1, false));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "unweighted");
  EXPECT_GE(findings[0].step, 96);
}

TEST(ClassImbalance, WeightedFoundOrCommonPositives_AreSilent) {
  EXPECT_TRUE(FindingsOf(Story(0.03, 25, false)).empty());
  EXPECT_TRUE(FindingsOf(Story(0.03, 1, true)).empty());
  EXPECT_TRUE(FindingsOf(Story(0.3, 1, false)).empty());
  EXPECT_TRUE(FindingsOf(Story(0.03, 1, false, 90)).empty());  // too early
}

TEST(ClassImbalance, Original_TenOfAThousand) {
  std::vector<double> labels(1000);
  for (std::size_t i = 0; i < 10; ++i) labels[i * 100] = 1;
  FakeTrial trial;
  for (int step = 0; step < 3; ++step) trial.Step();
  trial.Step().Tensor("labels", Role::kLabel, labels).Tensor("predictions", Role::kOutput, labels);
  const auto findings = FindingsOf(trial, "ClassImbalance", ParameterSet::kOriginal);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 3);
  EXPECT_EQ(findings[0].cause, "imbalance");
  EXPECT_EQ(findings[0].evidence[0].value, 99);
}

TEST(ClassImbalance, Original_AtTheThresholds) {
  const auto story = [](std::size_t ones, std::size_t missed) {
    std::vector<double> labels(1100, 0);
    std::vector<double> predictions(1100, 0);
    for (std::size_t i = 0; i < ones; ++i) {
      labels[i] = 1;
      predictions[i] = i < missed ? 0 : 1;
    }
    FakeTrial trial;
    trial.Step().Tensor("y_labels", Role::kLabel, labels).Tensor("y_predictions", Role::kOutput, predictions);
    return FindingsOf(trial, "ClassImbalance", ParameterSet::kOriginal).size();
  };
  EXPECT_EQ(story(100, 0), 0U);  // ratio 10 is not above 10
  EXPECT_EQ(story(99, 0), 1U);
  EXPECT_EQ(story(100, 70), 0U);  // 0.7 is not above 0.7
  EXPECT_EQ(story(100, 71), 1U);
}

}  // namespace
}  // namespace luff::rules

#include <cmath>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// Known answers of the published rules.
namespace luff::rules::original_test {
namespace {

using format::Role;
using testing::FakeTrial;
using testing::FindingsOf;

FakeTrial Losses(std::initializer_list<std::pair<std::int64_t, double>> values) {
  FakeTrial trial;
  for (const auto& [step, value] : values) trial.Step(query::Mode::kTrain, step).Loss(value);
  return trial;
}

TEST(OriginalLossNotDecreasing, EqualLossTenStepsLater_Fires) {
  const FakeTrial trial = Losses({{0, .3}, {4, .33}, {8, .31}, {12, .30}, {16, .28}});
  const auto findings = FindingsOf(trial, "LossNotDecreasing:diff_percent=0", ParameterSet::kOriginal);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].global_step, 12);
  EXPECT_EQ(findings[0].since_step, 0);
}

TEST(OriginalLossNotDecreasing, FallingLoss_IsSilent) {
  const FakeTrial trial = Losses({{0, .4}, {4, .36}, {8, .31}, {12, .30}, {16, .28}, {24, .2}});
  EXPECT_TRUE(FindingsOf(trial, "LossNotDecreasing:diff_percent=0", ParameterSet::kOriginal).empty());
}

TEST(OriginalLossNotDecreasing, IncreaseAboveThreshold_Fires_BelowItIsTolerated) {
  const FakeTrial trial = Losses({{0, 1.0}, {10, 1.04}, {20, 1.2}});
  const auto findings = FindingsOf(trial, "LossNotDecreasing", ParameterSet::kOriginal);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].global_step, 20);
  EXPECT_EQ(FindingsOf(trial, "LossNotDecreasing:strict=True", ParameterSet::kOriginal).at(0).global_step,
            10);
}

TEST(OriginalUnchangedTensor, ThreeEqualSteps_FireAtTheThird) {
  FakeTrial trial;
  for (int step = 0; step < 3; ++step) trial.Step().Tensor("a", Role::kCustom, {1, 2, 3}, {"foo"});
  for (int step = 3; step < 6; ++step) trial.Step().Tensor("a", Role::kCustom, {1.0 * step, 2, 3}, {"foo"});
  const auto findings = FindingsOf(trial, "UnchangedTensor:collection_names=foo", ParameterSet::kOriginal);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 2);
}

TEST(OriginalUnchangedTensor, ToleranceIsNumpys) {
  FakeTrial trial;
  trial.Step().Tensor("a", Role::kCustom, {1.0});
  trial.Step().Tensor("a", Role::kCustom, {1.0 + 0.9e-5});
  EXPECT_EQ(FindingsOf(trial, "UnchangedTensor:tensor_regex=a:num_steps=2", ParameterSet::kOriginal).size(),
            1U);
  EXPECT_TRUE(
      FindingsOf(trial, "UnchangedTensor:tensor_regex=a:num_steps=2:rtol=1e-6", ParameterSet::kOriginal)
          .empty());
}

TEST(OriginalUnchangedTensor, NanEqualsNanOnlyOnRequest) {
  FakeTrial trial;
  for (int step = 0; step < 3; ++step) trial.Step().Tensor("a", Role::kCustom, {std::nan("")});
  EXPECT_TRUE(FindingsOf(trial, "UnchangedTensor:tensor_regex=a", ParameterSet::kOriginal).empty());
  EXPECT_EQ(
      FindingsOf(trial, "UnchangedTensor:tensor_regex=a:equal_nan=True", ParameterSet::kOriginal).size(), 1U);
}

TEST(OriginalExplodingTensor, NanAndInfinity_OnlyNanLeavesInfinity) {
  FakeTrial trial;
  trial.Step().Tensor("gradient/w", Role::kGradient, {1, HUGE_VAL}, {"gradients"});
  trial.Step().Tensor("gradient/w", Role::kGradient, {1, std::nan("")}, {"gradients"});
  EXPECT_EQ(FindingsOf(trial, "ExplodingTensor", ParameterSet::kOriginal).size(), 2U);
  const auto only_nan = FindingsOf(trial, "ExplodingTensor:only_nan=True:collection_names=gradients;weights",
                                   ParameterSet::kOriginal);
  ASSERT_EQ(only_nan.size(), 1U);
  EXPECT_EQ(only_nan[0].step, 1);
  EXPECT_TRUE(FindingsOf(trial, "ExplodingTensor:tensor_regex=^weight", ParameterSet::kOriginal).empty());
}

TEST(OriginalVanishingGradient, ThresholdIsStrict) {
  FakeTrial trial;
  trial.Step()
      .Tensor("gradient/a", Role::kGradient, {1e-7, -1e-7})
      .Tensor("gradient/b", Role::kGradient, {1, 1});
  EXPECT_TRUE(FindingsOf(trial, "VanishingGradient", ParameterSet::kOriginal).empty());
  trial.Step()
      .Tensor("gradient/a", Role::kGradient, {0.99e-7, -0.99e-7})
      .Tensor("gradient/b", Role::kGradient, {1, 1});
  const auto findings = FindingsOf(trial, "VanishingGradient", ParameterSet::kOriginal);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].tensor, "gradient/a");
}

TEST(OriginalDeadRelu, MoreThanHalfOfTheNodesInactive_Fires) {
  FakeTrial trial;
  trial.Step().Units("relu_output_0", {0, 0, 5, 7}, 200);  // exactly half: silent
  EXPECT_TRUE(FindingsOf(trial, "DeadRelu", ParameterSet::kOriginal).empty());
  trial.Step().Units("relu_output_0", {0, 1, 1, 7}, 200);  // 0.5 % is below 1 %
  EXPECT_EQ(FindingsOf(trial, "DeadRelu", ParameterSet::kOriginal).size(), 1U);
}

TEST(OriginalWeightUpdateRatio, MeanChangeOverMeanWeight) {
  FakeTrial trial;
  trial.Step().Tensor("w", Role::kWeight, {1, -1}).Difference("w", 21.8, 15, 1, 2);  // 10.9 / 1
  const auto findings = FindingsOf(trial, "WeightUpdateRatio", ParameterSet::kOriginal);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NEAR(findings[0].evidence[0].value, 10.9, 1e-6);
  FakeTrial still;
  still.Step().Tensor("w", Role::kWeight, {1, -1}).Difference("w", 0, 0, 1, 0);
  EXPECT_EQ(FindingsOf(still, "WeightUpdateRatio", ParameterSet::kOriginal).at(0).cause, "small");
}

}  // namespace
}  // namespace luff::rules::original_test

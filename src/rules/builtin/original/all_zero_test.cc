#include <cmath>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::all_zero_test {
namespace {

using format::Role;
using testing::FakeTrial;
using testing::FindingsOf;

TEST(AllZero, PercentOfZeros_AtTheThreshold) {
  FakeTrial trial;
  trial.Step().Tensor("a", Role::kCustom, {0, 0, 0, 1}, {"foo"}).Tensor("b", Role::kCustom, {0, 0});
  for (const ParameterSet set : {ParameterSet::kLuff, ParameterSet::kOriginal}) {
    EXPECT_TRUE(FindingsOf(trial, "AllZero", set).empty());
    EXPECT_TRUE(FindingsOf(trial, "AllZero:collection_names=foo", set).empty());
    EXPECT_EQ(FindingsOf(trial, "AllZero:collection_names=foo:threshold=75", set).size(), 1U);
    EXPECT_EQ(FindingsOf(trial, "AllZero:collection_names=foo:tensor_regex=^b$", set).at(0).tensor, "b");
  }
}

TEST(TensorVariance, AboveAndBelow_PopulationVariance) {
  FakeTrial trial;
  trial.Step().Tensor("a", Role::kCustom, {1, 3});  // variance 1
  for (const ParameterSet set : {ParameterSet::kLuff, ParameterSet::kOriginal}) {
    EXPECT_TRUE(FindingsOf(trial, "TensorVariance", set).empty());
    EXPECT_TRUE(FindingsOf(trial, "TensorVariance:tensor_regex=a", set).empty());
    EXPECT_TRUE(
        FindingsOf(trial, "TensorVariance:tensor_regex=a:max_threshold=1:min_threshold=1", set).empty());
    EXPECT_EQ(FindingsOf(trial, "TensorVariance:tensor_regex=a:max_threshold=0.99", set).at(0).cause, "high");
    EXPECT_EQ(FindingsOf(trial, "TensorVariance:tensor_regex=a:min_threshold=1.01", set).at(0).cause, "low");
  }
}

TEST(OriginalPoorWeightInitialization, EachConditionAlone) {
  constexpr const char* kRule = "PoorWeightInitialization";
  FakeTrial variance;
  variance.Step()
      .Tensor("a_relu_input_0", Role::kInput, {1, -1})
      .Tensor("b_relu_input_0", Role::kInput, {3, -3});  // 9 times
  EXPECT_TRUE(FindingsOf(variance, kRule, ParameterSet::kOriginal).empty());
  variance.Step()
      .Tensor("a_relu_input_0", Role::kInput, {1, -1})
      .Tensor("b_relu_input_0", Role::kInput, {4, -4});
  EXPECT_EQ(FindingsOf(variance, kRule, ParameterSet::kOriginal).at(0).cause, "variance");
  FakeTrial gradient;  // 5th and 95th percentile of 0, 1e-3 are 5e-5 and 9.5e-4
  gradient.Step().Tensor("gradient/w", Role::kGradient, {0, 1e-3});
  EXPECT_EQ(FindingsOf(gradient, kRule, ParameterSet::kOriginal).at(0).cause, "gradient");
  EXPECT_TRUE(
      FindingsOf(gradient, "PoorWeightInitialization:distribution_range=8.9e-4", ParameterSet::kOriginal)
          .empty());
  FakeTrial loss;
  for (const double value : {1.0, 1.1, 1.1, 1.1, 1.1, 1.1}) loss.Step().Loss(value);
  EXPECT_EQ(FindingsOf(loss, kRule, ParameterSet::kOriginal).at(0).global_step, 5);
  EXPECT_TRUE(FindingsOf(loss, "PoorWeightInitialization:steps=5.0", ParameterSet::kOriginal).empty());
}

TEST(StalledTrainingRule, GapLongerThanTheThreshold_IsTheLastStepsAndHeals) {
  FakeTrial trial;
  for (const std::int64_t wall : {100, 110, 1910, 3711, 3712}) {
    trial.Step();
    trial.Last().info.wall_unix_ns = wall * 1'000'000'000;
  }
  const auto findings = FindingsOf(trial, "StalledTrainingRule", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);  // 1800 s do not exceed the threshold, 1801 s do
  EXPECT_EQ(findings[0].step, 2);
  EXPECT_TRUE(findings[0].healed);
  EXPECT_EQ(FindingsOf(trial, "StalledTrainingRule:threshold=1799", ParameterSet::kOriginal).size(), 2U);
}

}  // namespace
}  // namespace luff::rules::all_zero_test

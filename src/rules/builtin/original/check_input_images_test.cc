#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::check_input_images_test {
namespace {

using format::Role;
using testing::FakeTrial;

// Batches of 50 images of 2 channels of 2 x 2; channel 0 has +-1, channel 1 is shifted and stretched.
FakeTrial Story(int batches, double mean, double stretch,
                const std::string& name = "hybridsequential0_input_0", DType dtype = DType::kFloat32) {
  FakeTrial trial;
  trial.Define(name, name.starts_with("sample/") ? Role::kSample : Role::kInput);
  for (int step = 0; step < batches; ++step) {
    std::vector<double> values;
    for (int i = 0; i < 50; ++i) {
      for (const double sign : {1.0, -1.0, 1.0, -1.0}) values.push_back(sign);
      for (const double sign : {1.0, -1.0, 1.0, -1.0}) values.push_back(mean + stretch * sign);
    }
    trial.Step().Sample(name, {50, 2, 2, 2}, values, dtype);
  }
  return trial;
}

std::vector<Finding> Original(const FakeTrial& trial, const std::string& rule = "CheckInputImages") {
  return testing::FindingsOf(trial, rule, ParameterSet::kOriginal);
}

TEST(OriginalCheckInputImages, MeanOfAChannel_FiresAtFiveHundredImages) {
  EXPECT_TRUE(Original(Story(9, 0.3, 1)).empty());
  const auto findings = Original(Story(12, 0.3, 1));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 9);
  EXPECT_EQ(findings[0].cause, "mean");
  EXPECT_TRUE(Original(Story(12, 0.1999, 1)).empty());
  EXPECT_EQ(Original(Story(12, -0.3, 1)).size(), 1U);
  EXPECT_TRUE(Original(Story(12, 0.3, 1), "CheckInputImages:threshold_mean=0.4").empty());
  EXPECT_EQ(Original(Story(2, 0.3, 1), "CheckInputImages:threshold_samples=100").size(), 1U);
}

TEST(OriginalCheckInputImages, Variance_OnlyWhenAsked) {
  EXPECT_TRUE(Original(Story(12, 0, 3)).empty());
  EXPECT_EQ(Original(Story(12, 0, 3), "CheckInputImages:threshold_variance=0.5").at(0).cause, "variance");
  EXPECT_TRUE(Original(Story(12, 0, 1.1), "CheckInputImages:threshold_variance=0.5").empty());
}

TEST(OriginalCheckInputImages, InputsOfModelsOfOtherFrameworks_AreInputs) {
  const auto findings = Original(Story(12, 20, 3, "sample/Net_input_0"));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].tensor, "sample/Net_input_0");
  EXPECT_NE(findings[0].what.find("is 20"), std::string::npos);
  EXPECT_TRUE(Original(Story(12, 0, 1, "sample/Net_input_0")).empty());
  EXPECT_TRUE(Original(Story(12, 20, 3, "sample/Net_input_0", DType::kInt64)).empty());
  EXPECT_TRUE(Original(Story(12, 20, 3, "sample/Net_input_0"), "CheckInputImages:regex=images").empty());
}

TEST(CheckInputImages, WithoutARegex_IsSilent) {
  EXPECT_TRUE(
      testing::FindingsOf(Story(12, 9, 9, "sample/Net_input_0"), "CheckInputImages", ParameterSet::kLuff)
          .empty());
  EXPECT_TRUE(testing::FindingsOf(Story(12, 9, 9), "CheckInputImages", ParameterSet::kLuff).empty());
  EXPECT_EQ(
      testing::FindingsOf(Story(12, 9, 9), "CheckInputImages:regex=.*input_0", ParameterSet::kLuff).size(),
      1U);
}

}  // namespace
}  // namespace luff::rules::check_input_images_test

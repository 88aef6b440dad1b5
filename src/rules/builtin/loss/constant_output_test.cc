#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules::constant_output_test {
namespace {

using testing::Batch;
using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "ConstantOutput", ParameterSet::kLuff);
}

FakeTrial Story(int constant_until, bool inputs_differ = true, int steps = 60, int constant_from = 0,
                DType dtype = DType::kFloat32) {
  FakeTrial trial;
  std::mt19937 random(2);
  std::normal_distribution<double> normal;
  for (int step = 0; step < steps; ++step) {
    Batch batch;
    for (int i = 0; i < 8; ++i) {
      batch.inputs.push_back(inputs_differ ? normal(random) : 1);
      batch.ids.push_back(i % 2);
      const bool constant = step >= constant_from && step < constant_until;
      const double varied = constant ? 0 : 0.01 * normal(random);
      batch.scores.push_back(0.3 - 0.001 * step + varied);
      batch.scores.push_back(-0.3);
    }
    testing::TellClasses(&trial, batch, 2);
    trial.Last().summaries.front().dtype = dtype;
  }
  return trial;
}

TEST(ConstantOutput, OneAnswerForAllSamples_Stops) {
  const auto findings = FindingsOf(Story(60));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].since_step, 0);
  EXPECT_EQ(findings[0].step, 40);
  EXPECT_FALSE(findings[0].healed);
}

TEST(ConstantOutput, ADeadReluAtTheOutput_IsNamed) {
  for (const double value : {0.0, 0.7}) {
    FakeTrial trial;
    std::mt19937 random(2);
    std::normal_distribution<double> normal;
    for (int step = 0; step < 60; ++step) {
      std::vector<double> inputs(8);
      for (double& input : inputs) input = normal(random);
      const std::vector<double> outputs(8, value);
      testing::TellPairs(&trial, "MSELoss", testing::SquaredError(outputs, inputs), outputs, inputs);
      trial.Sample("sample/Net_input_0", {8, 1}, inputs);
      if (step == 0)
        trial.EventJson(R"({"kind": "loss_input", "loss": "MSELoss", "call": 0, "made_by": "relu"})");
    }
    const auto findings = FindingsOf(trial);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].causes.size() == 1 && findings[0].remedy.find("ReLU") != std::string::npos,
              value == 0);
  }
}

TEST(ConstantOutput, AnOutputLayerThatBeginsWithZeros_IsSilent) {
  EXPECT_TRUE(FindingsOf(Story(30)).empty());
}

TEST(ConstantOutput, EqualInputs_AreSilent) { EXPECT_TRUE(FindingsOf(Story(60, false)).empty()); }

TEST(ConstantOutput, HealsWhenAnswersDifferAgain) {
  const auto findings = FindingsOf(Story(50));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
}

TEST(ConstantOutput, SixteenBits_AreJudgedOnceAnswersHaveDiffered) {
  // A head of zeros that learns slowly: what it has learnt is less than one rounding.
  EXPECT_TRUE(FindingsOf(Story(60, true, 60, 0, DType::kBFloat16)).empty());
  EXPECT_TRUE(FindingsOf(Story(60, true, 60, 0, DType::kFloat16)).empty());
  EXPECT_EQ(FindingsOf(Story(60, true, 60, 3, DType::kBFloat16)).size(), 1U);
}

}  // namespace
}  // namespace luff::rules::constant_output_test

#include <cmath>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::saturated_activation_test {
namespace {

using format::Role;
using testing::FakeTrial;
using testing::FindingsOf;

FakeTrial& Output(FakeTrial& trial, const std::string& type, const std::vector<double>& values) {
  trial.Define("Net_act_output_0", Role::kOutput, type);
  return trial.Tensor("Net_act_output_0", Role::kOutput, values);
}

TEST(SaturatedActivation, TanhAtBothLimitsFromTheStart_Warns) {
  FakeTrial trial;
  for (int step = 1; step < 3; ++step) Output(trial.Step().Loss(2), "Tanh", {0.99, -0.98, 1, -1});
  const auto findings = FindingsOf(trial, "SaturatedActivation", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 1);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
}

TEST(SaturatedActivation, BoundIsTheMeanSlope) {
  for (const double y : {0.90, 0.95}) {  // slopes 0.19 and 0.0975
    FakeTrial tanh;
    FakeTrial sigmoid;
    for (int step = 0; step < 3; ++step) {
      Output(tanh.Step().Loss(2), "Tanh", {y, -y});
      Output(sigmoid.Step().Loss(2), "Sigmoid", {(1 + y) / 2, (1 - y) / 2});
    }
    EXPECT_EQ(FindingsOf(tanh, "SaturatedActivation", ParameterSet::kLuff).size(), y > 0.93 ? 1U : 0U);
    EXPECT_EQ(FindingsOf(sigmoid, "SaturatedActivation", ParameterSet::kLuff).size(), y > 0.93 ? 1U : 0U);
  }
}

TEST(SaturatedActivation, GatesOnOneSide_LoadedWeights_AndOutputs_AreSilent) {
  FakeTrial gates;
  FakeTrial loaded;
  FakeTrial output;
  output.SetDocument("model", R"({"models": [{"name": "Net", "modules": [
    {"path": "fc", "type": "Linear"}, {"path": "act", "name": "Net_act", "type": "Sigmoid"}]}]})");
  for (int step = 0; step < 4; ++step) {
    Output(gates.Step().Loss(2), "Sigmoid", {0.03, 0.02});
    loaded.Step().Loss(2);
    if (step == 0) loaded.EventJson(R"({"kind": "load_state_dict", "matched": 2})");
    Output(loaded, "Tanh", {0.99, -0.98});
    const auto id = output.Step().Loss(2).Define("Net_act_output_0", Role::kOutput, "Sigmoid");
    Output(output, "Sigmoid", {0.999, 0.001});
    EXPECT_EQ(output.tensor(id).module_type, "Sigmoid");
  }
  EXPECT_TRUE(FindingsOf(gates, "SaturatedActivation", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(loaded, "SaturatedActivation", ParameterSet::kLuff).empty());
}

TEST(OriginalSaturatedActivation, MoreThanHalfOfTheNodesOutsideTheRange_Fires) {
  FakeTrial trial;  // batch of 2, four nodes: two inside in one sample
  trial.Step().Sample("tanh_input_0", {2, 4}, {10, 10, -10, 1, 10, -9.5, -10, 1});
  auto findings = FindingsOf(trial, "SaturatedActivation", ParameterSet::kOriginal);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NEAR(findings[0].evidence[0].value, 75, 1e-9);
  FakeTrial half;
  half.Step().Sample("tanh_input_0", {2, 4}, {10, 10, -9.4, 1, 10, 10, -10, 1});
  EXPECT_TRUE(FindingsOf(half, "SaturatedActivation", ParameterSet::kOriginal).empty());
  EXPECT_EQ(FindingsOf(half, "SaturatedActivation:threshold_layer=49", ParameterSet::kOriginal).size(), 1U);
}

TEST(OriginalSaturatedActivation, TheNameTellsTheRange) {
  FakeTrial trial;
  trial.Step().Sample("sigmoid_input_0", {1, 2}, {-22, 16});
  EXPECT_TRUE(FindingsOf(trial, "SaturatedActivation", ParameterSet::kOriginal).empty());
  trial.Step().Sample("sigmoid_input_0", {1, 2}, {-23, 17});
  EXPECT_EQ(FindingsOf(trial, "SaturatedActivation", ParameterSet::kOriginal).size(), 1U);
}

}  // namespace
}  // namespace luff::rules::saturated_activation_test

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::input_scale_test {
namespace {

using format::Role;
using testing::FakeTrial;

// Rows whose features have the given scales; the first layer gets the input times `passed`.
FakeTrial Story(const std::vector<double>& scales, double passed = 1, DType dtype = DType::kFloat32) {
  FakeTrial trial;
  std::mt19937 noise(3);
  std::normal_distribution<double> normal(0, 1);
  trial.Define("0_input_0", Role::kInput, "Linear");
  for (int step = 0; step < 6; ++step) {
    std::vector<double> values;
    std::vector<double> inside;
    for (int row = 0; row < 8; ++row) {
      for (const double scale : scales) {
        values.push_back(scale * normal(noise));
        inside.push_back(passed * values.back());
      }
    }
    trial.Step().Loss(1).Sample("sample/Net_input_0", {8, static_cast<std::int64_t>(scales.size())}, values,
                                dtype);
    if (step > 0) trial.Tensor("0_input_0", Role::kInput, inside);  // the hook does not see step 0
  }
  return trial;
}

std::vector<Finding> Findings(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "InputScale", ParameterSet::kLuff);
}

TEST(InputScale, RawTable_IsNamedAtTheFirstStepWhoseLayersAreSeen) {
  const auto findings = Findings(Story({0.01, 1, 20, 4000}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 1);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].other_tensors, std::vector<std::string>{"0_input_0"});
  EXPECT_NE(findings[0].what.find("differ in scale"), std::string::npos);
}

TEST(InputScale, TinyInputs_AreNamed) { EXPECT_EQ(Findings(Story({1e-5, 1e-4})).size(), 1U); }

TEST(InputScale, OrdinaryInputs_Ids_AndInputsThatTheModelScales_AreSilent) {
  EXPECT_TRUE(Findings(Story({0.05, 0.5, 1, 16})).empty());
  EXPECT_TRUE(Findings(Story({100, 100}, 1, DType::kInt64)).empty());
  EXPECT_TRUE(Findings(Story({100, 100}, 1.0 / 255)).empty());
}

TEST(InputScale, LayerThatIsFollowedByANorm_IsSilent) {
  const auto with = [](const std::string& next) {
    FakeTrial trial = Story({200, 200});
    trial.SetDocument("model",
                      R"({"models": [{"name": "Net", "modules": [{"path": "0", "name": "0", "type": "Linear"},
      {"path": "1", "name": "1", "type": ")" +
                          next + R"("}, {"path": "2", "name": "2", "type": "Linear"}],
      "parameters": [{"path": "0.weight"}, {"path": "2.weight"}]}]})");
    return Findings(trial);
  };
  EXPECT_TRUE(with("BatchNorm1d").empty());
  EXPECT_EQ(with("ReLU").size(), 1U);
}

}  // namespace
}  // namespace luff::rules::input_scale_test

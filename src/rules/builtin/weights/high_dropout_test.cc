#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::high_dropout_test {
namespace {

using testing::FakeTrial;

std::vector<Finding> With(const std::string& modules) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [{"name": "Net", "modules": [)" + modules + "]}]}");
  for (int step = 0; step < 40; ++step) trial.Step().Loss(1);
  return testing::FindingsOf(trial, "HighDropout", ParameterSet::kLuff);
}

TEST(HighDropout, KeepProbability_IsNamedAtOnce_WithAllItsModules) {
  const auto findings = With(
      R"({"path": "2", "name": "2", "type": "Dropout", "training": true, "settings": {"p": 0.97}},
         {"path": "5", "name": "5", "type": "Dropout2d", "training": true, "settings": {"p": 0.97}})");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 0);
  EXPECT_EQ(findings[0].tensor, "2");
  EXPECT_EQ(findings[0].other_tensors, std::vector<std::string>{"5"});
  EXPECT_NE(findings[0].remedy.find("0.03"), std::string::npos);
}

TEST(HighDropout, HeavyButOrdinary_Evaluating_AndIdleOnes_AreSilent) {
  EXPECT_TRUE(With(R"({"path": "2", "type": "Dropout", "settings": {"p": 0.65}})").empty());
  EXPECT_TRUE(
      With(R"({"path": "2", "type": "Dropout", "training": false, "settings": {"p": 0.97}})").empty());
  EXPECT_TRUE(
      With(R"({"path": "r", "type": "LSTM", "settings": {"dropout": 0.95, "num_layers": 1}})").empty());
  EXPECT_EQ(With(R"({"path": "r", "type": "LSTM", "settings": {"dropout": 0.95, "num_layers": 2}})").size(),
            1U);
}

TEST(HighDropout, MalformedDescription_IsSilent) {
  EXPECT_TRUE(With(R"(7, {"type": "Dropout", "settings": {"p": "much"}}, {"settings": 3})").empty());
  FakeTrial trial;
  trial.SetDocument("model", "[{");
  trial.Step().Loss(1);
  EXPECT_TRUE(testing::FindingsOf(trial, "HighDropout", ParameterSet::kLuff).empty());
}

}  // namespace
}  // namespace luff::rules::high_dropout_test

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// Inputs and targets of two loaders (LabelNoise, two_loaders).
namespace luff::rules::broken_pairs_test {
namespace {

using testing::FakeTrial;

std::vector<Finding> Told(const std::string& event, int times = 1) {
  FakeTrial trial;
  for (int step = 0; step < 20; ++step) {
    trial.Step().Loss(1);
    if (step >= 3 && step < 3 + times) trial.EventJson(event);
  }
  return testing::FindingsOf(trial, "LabelNoise", ParameterSet::kLuff);
}

TEST(BrokenPairs, TwoLoadersThatShuffle_AreNamedOnce) {
  const auto findings = Told(R"({"kind": "broken_pairs", "input": 0, "target": 1, "samples": 320,
    "batch_size": 16, "loss": "Mul"})",
                             2);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "two_loaders");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 3);
  EXPECT_NE(findings[0].why.find("320 rows"), std::string::npos);
}

TEST(BrokenPairs, BrokenEvents_AreSilent) {
  for (const char* event :
       {R"({"kind": "broken_pairs"})", R"({"kind": "broken_pairs", "samples": -3, "batch_size": 1})",
        R"({"kind": "broken_pairs", "samples": "a", "batch_size": [1]})"})
    EXPECT_TRUE(Told(event).empty());
}

}  // namespace
}  // namespace luff::rules::broken_pairs_test

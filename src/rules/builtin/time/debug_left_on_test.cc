#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::debug_left_on_test {
namespace {

std::vector<Finding> Told(const std::string& document, int steps = 300) {
  testing::FakeTrial trial;
  trial.SetDocument("debug", document);
  for (int i = 0; i < steps; ++i) trial.Step();
  return testing::FindingsOf(trial, "DebugLeftOn", ParameterSet::kLuff);
}

TEST(DebugLeftOn, WhatIsOnAtBothLooksIsNamed) {
  const auto findings =
      Told(R"({"looks":[{"step":20,"on":["anomaly","profiler"]},{"step":200,"on":["anomaly"]}]})");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].what, "anomaly is on all along; it slows each step");
  EXPECT_FALSE(findings[0].saving);
}

TEST(DebugLeftOn, OtherwiseItIsSilent) {
  EXPECT_TRUE(Told(R"({"looks":[{"step":20,"on":["profiler"]},{"step":200,"on":[]}]})").empty());
  EXPECT_TRUE(Told(R"({"looks":[{"step":20,"on":["profiler"]}]})").empty());
  EXPECT_TRUE(Told(R"({"looks":[{"on":["a"]},{"on":["a"]}]})", 150).empty());
  EXPECT_TRUE(Told("").empty());
  for (const char* hostile :
       {"{", "[]", R"({"looks":3})", R"({"looks":[1,2]})", R"({"looks":[{"on":[1]},{"on":{}}]})"})
    EXPECT_TRUE(Told(hostile).empty()) << hostile;
}

}  // namespace
}  // namespace luff::rules::debug_left_on_test

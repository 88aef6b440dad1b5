#include <gtest/gtest.h>

#include "base/format.h"
#include "rules/builtin/time/pauses_test.h"

namespace luff::rules::logging_stalls_test {
namespace {

using testing::PausesOf;
constexpr format::Phase kOther = format::Phase::kOther;

TEST(LoggingStalls, EveryFiftiethStepTakesLonger) {
  const auto findings = PausesOf({.steps = 900, .phase = kOther, .pause_ms = 740}, "LoggingStalls");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find("every 50th step takes 740 ms more in the script's own code"),
            std::string::npos)
      << findings[0].what;
  ASSERT_TRUE(findings[0].saving);
  EXPECT_NEAR(findings[0].saving->seconds_a_step, 0.74 / 50, 1e-4);
}

TEST(LoggingStalls, TheLineIsNamed_WhereMostOfItsTimeWasSeen) {
  const auto told = [](const char* counts) {
    testing::FakeTrial trial = testing::RunOf({.steps = 900, .phase = kOther, .pause_ms = 740});
    trial.SetDocument("lines", fmt::format(R"({{"samples":40,"lines":[
        {{"phase":"other","file":"/data/a/train.py","line":88,"function":"log_images",{}}},
        {{"phase":"other","file":"/data/a/train.py","line":12,"function":"main","count":4}}]}})",
                                           counts));
    return testing::FindingsOf(trial, "LoggingStalls", ParameterSet::kLuff).at(0).what;
  };
  EXPECT_NE(told(R"("count":36)").find("; it is mostly in train.py:88 log_images"), std::string::npos);
  EXPECT_EQ(told(R"("count":3)").find("train.py"), std::string::npos);
}

TEST(LoggingStalls, WhatTheMachineDoesHasNoPeriod) {
  testing::FakeTrial trial;
  unsigned seed = 7;
  for (int i = 0; i < 3000; ++i) {
    seed = seed * 1103515245U + 12345U;
    trial.Step().Phases({{format::Phase::kForward, 50}, {kOther, (seed >> 16U) % 50 == 0 ? 740 : 1}});
  }
  EXPECT_TRUE(testing::FindingsOf(trial, "LoggingStalls", ParameterSet::kLuff).empty());
}

TEST(LoggingStalls, SmallOnesAndThoseWithoutACore_AreSilent) {
  EXPECT_TRUE(PausesOf({.steps = 3000, .phase = kOther, .pause_ms = 20}, "LoggingStalls").empty());
  EXPECT_TRUE(PausesOf({.steps = 300, .phase = kOther, .pause_ms = 740}, "LoggingStalls").empty());
  EXPECT_TRUE(
      PausesOf({.steps = 900, .phase = format::Phase::kGc, .pause_ms = 740}, "LoggingStalls").empty());
  testing::FakeTrial trial;
  for (int i = 0; i < 900; ++i) {
    const double waits = i % 50 == 0 ? 740 : 0;
    trial.Step().Phases({{format::Phase::kForward, 50}, {kOther, 1 + waits}}, 50, waits);
  }
  EXPECT_TRUE(testing::FindingsOf(trial, "LoggingStalls", ParameterSet::kLuff).empty());
}

TEST(LoggingStalls, StepsThatLuffHasTracedCountForNoRule) {
  testing::FakeTrial trial;
  for (int i = 0; i < 900; ++i) {
    const bool pauses = i % 50 == 49;
    trial.Step().Phases({{format::Phase::kForward, 50}, {kOther, pauses ? 740 : 1}});
    if (pauses) trial.Last().phases.back().head.flags = format::kStepTraced;
  }
  EXPECT_TRUE(testing::FindingsOf(trial, "LoggingStalls", ParameterSet::kLuff).empty());
}

TEST(LoggingStalls, OnADeviceAStepThatReadsALoss_WaitsForAllBefore) {
  testing::FakeTrial trial = testing::RunOf({.steps = 900, .phase = kOther, .pause_ms = 740});
  trial.SetDocument("model", R"({"optimizers":[{"number":0,"name":"o","device":"cuda","groups":[]}]})");
  EXPECT_TRUE(testing::FindingsOf(trial, "LoggingStalls", ParameterSet::kLuff).empty());
}

}  // namespace
}  // namespace luff::rules::logging_stalls_test

#include <gtest/gtest.h>

#include "rules/builtin/time/pauses_test.h"

namespace luff::rules::checkpoint_stalls_test {
namespace {

using testing::PausesOf;
constexpr format::Phase kCheckpoint = format::Phase::kCheckpoint;

TEST(CheckpointStalls, SavesThatTakeAShareAreNamed) {
  const auto findings = PausesOf({.phase = kCheckpoint}, "CheckpointStalls");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find("12 times: 6.0 s of 36.0 s), about every 50 steps"), std::string::npos)
      << findings[0].what;
  ASSERT_TRUE(findings[0].saving);
  EXPECT_NEAR(findings[0].saving->seconds_a_step, 0.01, 1e-6);
}

TEST(CheckpointStalls, ItCountsThoseAtTheEndOfAnEpoch_WhichAreInAStepOfTheEvaluation) {
  testing::FakeTrial trial;
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (int i = 0; i < 50; ++i) trial.Step().Phases({{format::Phase::kForward, 50}});
    trial.Step(query::Mode::kEval).Phases({{format::Phase::kForward, 20}, {kCheckpoint, 900}});
  }
  trial.Step().Phases({{format::Phase::kForward, 50}});
  EXPECT_EQ(testing::FindingsOf(trial, "CheckpointStalls", ParameterSet::kLuff).size(), 1U);
}

// On a machine that others use too, the share is of what was the run's own.
TEST(CheckpointStalls, WaitsForACoreAreTakenOffBothSides) {
  testing::FakeTrial trial;
  for (int i = 0; i < 600; ++i)
    trial.Step().Phases({{format::Phase::kForward, 60}, {kCheckpoint, 60}}, -1, 84);
  const auto findings = testing::FindingsOf(trial, "CheckpointStalls", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(
      findings[0].what.find("takes 50 % of the time (18 ms each, 600 times: 10.8 s of 21.6 s, both without "
                            "waits for a core)"),
      std::string::npos)
      << findings[0].what;
}

TEST(CheckpointStalls, SavesNowAndThen_AreSilent) {
  EXPECT_TRUE(
      PausesOf({.steps = 20000, .phase = kCheckpoint, .every = 1000, .pause_ms = 2000}, "CheckpointStalls")
          .empty());  // 4 %
  EXPECT_TRUE(PausesOf({.phase = kCheckpoint, .every = 300, .pause_ms = 9000}, "CheckpointStalls").empty());
}

}  // namespace
}  // namespace luff::rules::checkpoint_stalls_test

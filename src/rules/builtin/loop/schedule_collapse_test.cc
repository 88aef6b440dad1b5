#include <cmath>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::schedule_collapse_test {
namespace {

using format::Role;
using testing::FakeTrial;
using testing::FindingsOf;

FakeTrial Rates(int steps, double (*rate)(int)) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step)
    trial.Step().Loss(2.3).Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, rate(step));
  return trial;
}

TEST(ScheduleCollapse, DecayPerBatch_IsForecast_AndStopsWhenItHasCome) {
  const FakeTrial trial = Rates(100, [](int step) { return 0.05 * std::pow(0.8, step); });
  const auto findings = FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 16);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_FALSE(findings[0].forecast);
  FakeTrial early = Rates(30, [](int step) { return 0.05 * std::pow(0.8, step); });
  const auto forecast = FindingsOf(early, "ScheduleCollapse", ParameterSet::kLuff);
  ASSERT_EQ(forecast.size(), 1U);
  EXPECT_TRUE(forecast[0].forecast);
  EXPECT_EQ(forecast[0].lead_steps, 15);  // 0.8^31 is the first power below 1e-3
}

TEST(ScheduleCollapse, CosineWarmUpRestartAndSlowDecay_AreSilent) {
  const FakeTrial cosine = Rates(400, [](int step) { return 0.5 * (1 + std::cos(3.14159265 * step / 400)); });
  const FakeTrial warm_up = Rates(400, [](int step) { return step < 300 ? step / 300.0 : 1; });
  const FakeTrial restart =
      Rates(400, [](int step) { return 0.5001 * (1 + std::cos(3.14159265 * (step % 50) / 50)); });
  const FakeTrial slow = Rates(400, [](int step) { return std::pow(0.99, step); });
  for (const FakeTrial* trial : {&cosine, &warm_up, &restart, &slow})
    EXPECT_TRUE(FindingsOf(*trial, "ScheduleCollapse", ParameterSet::kLuff).empty());
}

TEST(ScheduleCollapse, OneGroupOfTwo_IsSilent) {
  FakeTrial trial;
  for (int step = 0; step < 200; ++step) {
    trial.Step()
        .Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, step < 20 ? 1 : 0)
        .Scalar("optimizer/SGD.group1.lr", Role::kOptimizerSetting, 1);
  }
  EXPECT_TRUE(FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff).empty());
}

TEST(ScheduleCollapse, ASchedulePlannedForUpdatesAndSteppedPerEpoch_IsNamedAtTheEnd) {
  const auto told = [](int planned, int every, int updates) {
    FakeTrial trial;
    trial.SetDocument("model", R"({"schedulers": [{"type": "OneCycleLR", "settings": {"total_steps": )" +
                                   std::to_string(planned) + "}}]}");
    for (int step = 0; step < updates; ++step) {
      trial.Step().Event(format::EventKind::kOptimizerStep, 0, 0);
      if (step % every == every - 1) trial.Event(format::EventKind::kSchedulerStep, 0, 0);
    }
    return FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff);
  };
  const auto findings = told(100, 20, 100);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "hardly_begun");
  EXPECT_EQ(findings[0].step, 99);
  EXPECT_TRUE(told(100, 1, 100).empty());    // as planned
  EXPECT_TRUE(told(5, 20, 100).empty());     // planned for epochs
  EXPECT_TRUE(told(1000, 20, 100).empty());  // stopped early
}

// ---- ClipSaturated, which reads settings as well

FakeTrial Clips(double norm, double slope) {
  FakeTrial trial;
  for (int step = 0; step < 100; ++step) {
    trial.Step().Loss(2.3 - slope * step + 0.001 * (step % 3));
    trial.Scalar("clip/norm", Role::kOptimizerSetting, norm).Scalar("clip/limit", Role::kOptimizerSetting, 1);
  }
  return trial;
}

TEST(ClipSaturated, EveryStepCutByMuchAndNothingLearnt_Warns) {
  const auto findings = FindingsOf(Clips(51, 0), "ClipSaturated", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 63);
  EXPECT_EQ(findings[0].since_step, 0);
}

TEST(ClipSaturated, CutByLess_OrALossThatFalls_IsSilent) {
  EXPECT_TRUE(FindingsOf(Clips(50, 0), "ClipSaturated", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(Clips(500, 0.02), "ClipSaturated", ParameterSet::kLuff).empty());
}

}  // namespace
}  // namespace luff::rules::schedule_collapse_test

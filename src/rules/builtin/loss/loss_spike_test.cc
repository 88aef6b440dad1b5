#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::loss_spike_test {
namespace {

using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "LossSpike", ParameterSet::kLuff);
}

// A noisy loss that falls from 1 to 0.1; from step `at` on it is `then(step - at)`.
template <typename F>
FakeTrial Falling(int steps, int at, F&& then) {
  FakeTrial trial;
  std::mt19937 random(1);
  std::normal_distribution<double> noise(0, 0.2);
  for (int step = 0; step < steps; ++step) {
    const double level = 0.1 + 0.9 * std::exp(-step / 30.0);
    trial.Step().Loss(step >= at ? then(step - at) : level * std::exp(noise(random)));
  }
  return trial;
}

TEST(LossSpike, LeapAndBack_WarnsAtItsStep_AndHeals) {
  const auto findings = FindingsOf(Falling(200, 100, [](int n) { return n == 0 ? 50.0 : 0.15; }));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 100);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_TRUE(findings[0].healed);
}

TEST(LossSpike, LevelThatDoesNotComeBack_Stops) {
  const auto findings = FindingsOf(Falling(300, 100, [](int n) { return n == 0 ? 50.0 : 2.0; }));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 100);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
}

TEST(LossSpike, AnotherTaskAtTheLevelOfTheStart_IsSilent) {
  EXPECT_TRUE(FindingsOf(Falling(200, 60, [](int n) { return 2.3 * std::exp(-n / 30.0); })).empty());
}

TEST(LossSpike, HeavyNoiseAndLossesOfBothSigns_AreSilent) {
  FakeTrial heavy;
  FakeTrial signs;
  std::mt19937 random(3);
  std::student_t_distribution<double> tail(2.5);
  std::normal_distribution<double> normal(0, 1);
  for (int step = 0; step < 1500; ++step) {
    const double t = tail(random);
    heavy.Step().Loss(0.1 + t * t);
    signs.Step().Loss(normal(random) * (step % 100 == 99 ? 50 : 1));
  }
  EXPECT_TRUE(FindingsOf(heavy).empty());
  EXPECT_TRUE(FindingsOf(signs).empty());
}

TEST(LossSpike, NewOptimizer_BeginsANewPhase) {
  FakeTrial trial;
  for (int step = 0; step < 200; ++step) {
    trial.Step().Loss(step < 100 ? 0.9 - 0.008 * step : 11 - 0.1 * (step - 100));
    trial.Event(format::EventKind::kOptimizerStep, step < 100 ? 0 : 1);
  }
  EXPECT_TRUE(FindingsOf(trial).empty());
}

// A pass that measures something, without an update; in a training of which other steps have one.
TEST(LossSpike, AStepWithoutAnUpdate_IsNoLossOfTheTraining) {
  for (const bool update : {false, true}) {
    FakeTrial trial;
    for (int step = 0; step < 150; ++step) {
      const bool odd = step == 100 || step == 149;
      trial.Step().Loss(odd ? 50.0 : 1.0 - 0.005 * step);
      if (!odd || update) trial.Event(format::EventKind::kOptimizerStep);
    }
    EXPECT_EQ(FindingsOf(trial).empty(), !update);
  }
}

// Steps of accumulation have no update, either, and those of frameworks that tell none.
TEST(LossSpike, WhereOnlySomeStepsHaveAnUpdate_AllAreJudged) {
  FakeTrial trial;
  for (int step = 0; step < 150; ++step) {
    trial.Step().Loss(step == 101 ? 50.0 : 1.0 - 0.005 * step);
    if (step % 4 == 0) trial.Event(format::EventKind::kOptimizerStep);
  }
  EXPECT_EQ(FindingsOf(trial).size(), 1U);
}

TEST(LossSpike, ScaleOfTheLossDoesNotMatter) {
  for (const double scale : {1e-8, 1.0, 1e8}) {
    const auto findings = FindingsOf(Falling(150, 100, [](int n) { return n == 0 ? 50.0 : 0.15; }));
    FakeTrial scaled;
    for (int step = 0; step < 150; ++step)
      scaled.Step().Loss(scale * (step == 100 ? 50.0 : 1.0 - 0.005 * step));
    EXPECT_EQ(FindingsOf(scaled).size(), findings.size()) << scale;
  }
}

}  // namespace
}  // namespace luff::rules::loss_spike_test

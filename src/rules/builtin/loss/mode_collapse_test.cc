#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::mode_collapse_test {
namespace {

using format::EventKind;
using testing::FakeTrial;

// Batches of a ring of eight modes, and of a generator that makes `modes` of them, `away` from the ring.
struct Story {
  int modes = 8;
  double width = 0.05, away = 0;
  bool two_optimizers = true, generator = true;
  int steps = 300;
  int healed_at = 1000;
};

std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  std::mt19937 random(5);
  std::normal_distribution<double> normal(0, 1);
  const auto batch = [&](int modes, double width, double away) {
    std::vector<double> values;
    for (int i = 0; i < 64; ++i) {
      const double angle = 0.7853981633974483 * static_cast<double>(random() % static_cast<unsigned>(modes));
      values.push_back((2 + away) * std::cos(angle) + width * normal(random));
      values.push_back((2 + away) * std::sin(angle) + width * normal(random));
    }
    return values;
  };
  for (int step = 0; step < story.steps; ++step) {
    trial.Step().Loss(0.7);
    if (step % 2 == 0) {
      if (story.generator) trial.Sample("sample/G_input_0", {64, 2}, batch(8, 1, 0));
      trial.Sample("sample/D_input_0", {64, 2}, batch(8, 0.05, 0));
      trial.Sample("sample/D_input_1", {64, 2},
                   step < story.healed_at ? batch(story.modes, story.width, story.away) : batch(8, 0.05, 0));
    }
    trial.Event(EventKind::kOptimizerStep, story.two_optimizers ? static_cast<std::uint32_t>(step % 2) : 0);
  }
  return testing::FindingsOf(trial, "ModeCollapse", ParameterSet::kLuff);
}

TEST(ModeCollapse, OneModeOfEight_IsTold) {
  const auto findings = Told({.modes = 1});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].since_step, 128);
  EXPECT_EQ(findings[0].step, 158);
  EXPECT_FALSE(findings[0].healed);
}

TEST(ModeCollapse, APoint_IsToldEvenFarFromTheData) {
  EXPECT_EQ(Told({.modes = 1, .width = 0.001, .away = 3}).size(), 1U);
}

TEST(ModeCollapse, AllModes_OrHalfOfThem_AreSilent) {
  EXPECT_TRUE(Told({}).empty());
  EXPECT_TRUE(Told({.modes = 4}).empty());
}

TEST(ModeCollapse, NotLearnedYet_IsSilent) {
  EXPECT_TRUE(Told({.away = 1}).empty());
  EXPECT_TRUE(Told({.modes = 1, .steps = 140}).empty());
}

TEST(ModeCollapse, WhatIsNoGame_IsSilent) {
  EXPECT_TRUE(Told({.modes = 1, .two_optimizers = false}).empty());
  EXPECT_TRUE(Told({.modes = 1, .generator = false}).empty());
}

TEST(ModeCollapse, HealsWhenAllModesComeBack) {
  const auto findings = Told({.modes = 1, .healed_at = 200});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
}

}  // namespace
}  // namespace luff::rules::mode_collapse_test

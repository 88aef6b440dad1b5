#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// The cause "replaced" of WeightUpdateRatio: first updates that leave nothing of the weights, where losses
// tell nothing.
namespace luff::rules::first_replacement_test {
namespace {

using format::Role;
using testing::FakeTrial;

struct Training {
  double drawn = 1.6, moved = 16;  // norms of 256 weights, and of their first change
  int layers = 2;
  bool second_loss = true;
  double loss = 1;  // at the end; 1 at the start
  int since = 1;    // the step that shows the change
  int steps = 64;
  bool one_rests = false;  // one of the layers moves by a hundredth
};
std::vector<Finding> Told(const Training& how) {
  FakeTrial trial;
  for (int step = 0; step < how.steps; ++step) {
    trial.Step().Loss(step < 8 ? 1 : how.loss);
    if (how.second_loss) trial.Loss(0.3, "MSELoss_output_0");
    trial.Tensor("gradient/Net_0.weight", Role::kGradient, {1});
    if (step == 0 || (step > 8 && step % 8 != 0)) continue;
    for (int layer = 0; layer < how.layers; ++layer) {
      const bool first = step == how.since && !(how.one_rests && layer == 0);
      const double size = step <= how.since ? how.drawn : how.moved;
      trial.Difference("Net_" + std::to_string(layer) + ".weight", 1, first ? how.moved : 0.01 * size, size,
                       256);
    }
  }
  return testing::FindingsOf(trial, "WeightUpdateRatio", ParameterSet::kLuff);
}

TEST(WeightUpdateRatio, FirstUpdatesThatReplaceTheWeights_Warn) {
  const auto findings = Told({.moved = 160});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "replaced");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].since_step, 0);
  EXPECT_LE(findings[0].step, 40);
  EXPECT_NE(findings[0].remedy.find("lower the learning rate"), std::string::npos);
}

TEST(WeightUpdateRatio, WhatMovesFarForOtherReasons_IsNotReplaced) {
  EXPECT_TRUE(Told({.moved = 14}).empty());  // nine times their size: something is left
  EXPECT_TRUE(
      Told({.drawn = 1e-3, .moved = 1}).empty());  // tables that are drawn next to zero, a rate of 0.06
  EXPECT_TRUE(Told({.moved = 160, .one_rests = true}).empty());
  EXPECT_TRUE(Told({.moved = 160, .layers = 1}).empty());  // a probe
  EXPECT_TRUE(Told({.moved = 160, .loss = 0.2}).empty());  // it learns all the same
  EXPECT_TRUE(Told({.moved = 160, .since = 16}).empty());  // later
  EXPECT_TRUE(Told({.moved = 160, .steps = 24}).empty());  // too early to say
}

}  // namespace
}  // namespace luff::rules::first_replacement_test

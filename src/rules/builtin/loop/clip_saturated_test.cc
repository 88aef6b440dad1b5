#include <bit>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::clip_saturated_test {
namespace {

using format::EventKind;
using format::Role;
using testing::FakeTrial;

struct Story {
  double scale = 1024, limit = 1, norm = 3;  // the norm of the gradients that the loss asks for
  bool unscaled_first = false, grows = false;
  int steps = 40;
};

// A loop with a loss scaler, whose gradients are clipped before they are divided by the scale, or after.
std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  double scale = story.scale;
  for (int step = 0; step < story.steps; ++step) {
    if (story.grows && step % 10 == 9) scale *= 2;
    const double true_norm = story.norm * (1 + 0.3 * std::sin(step));
    const double clipped = story.unscaled_first ? true_norm : true_norm * scale;
    const double used = std::min(clipped, story.limit) / (story.unscaled_first ? 1 : scale);
    trial.Step()
        .Loss(2)
        .Event(EventKind::kScaleLoss, 0, std::bit_cast<std::uint64_t>(scale))
        .Event(EventKind::kBackward)
        .Event(EventKind::kClipGrad, format::kNoId, std::bit_cast<std::uint64_t>(story.limit))
        .Event(EventKind::kOptimizerStep, 0)
        .Event(EventKind::kZeroGrad, 0)
        .Scalar("clip/norm", Role::kOptimizerSetting, clipped)
        .Scalar("clip/limit", Role::kOptimizerSetting, story.limit)
        .Tensor("gradient/a", Role::kGradient, {0.6 * used, 0})
        .Tensor("gradient/b", Role::kGradient, {0, -0.8 * used});
  }
  return testing::FindingsOf(trial, "ClipSaturated", ParameterSet::kLuff);
}

TEST(ClipSaturated, ClippedBeforeTheLossScaleIsTakenOff_IsTold) {
  const auto findings = Told({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "scaled");
  EXPECT_EQ(findings[0].step, 7);
  EXPECT_EQ(findings[0].since_step, 0);
  EXPECT_NE(findings[0].remedy.find("unscale_"), std::string::npos);
  EXPECT_EQ(Told({.grows = true}).size(), 1U);
  // A hundred times as many steps, and nothing else is said: the limit is not what is wrong.
  EXPECT_EQ(Told({.steps = 300}).size(), 1U);
}

TEST(ClipSaturated, LoopsWithAScalerThatClipAsTheyShould_AreSilent) {
  EXPECT_TRUE(Told({.unscaled_first = true}).empty());
  EXPECT_TRUE(Told({.scale = 1, .unscaled_first = true}).empty());
  EXPECT_TRUE(Told({.norm = 0.5, .unscaled_first = true}).empty());               // never clipped
  EXPECT_TRUE(Told({.limit = 1e6, .norm = 3, .unscaled_first = false}).empty());  // nor here: only measured
  EXPECT_TRUE(Told({.scale = 1}).empty());  // a scaler that does nothing
  // A limit that is multiplied by the scale, too.
  EXPECT_TRUE(Told({.scale = 65536, .limit = 65536}).empty());
  EXPECT_TRUE(Told({.scale = 65536, .limit = 0.1 * 65536}).empty());
  EXPECT_EQ(Told({.scale = 65536, .limit = 10}).size(), 1U);
}

}  // namespace
}  // namespace luff::rules::clip_saturated_test

#include <cmath>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::exploding_tensor_test {
namespace {

using format::EventKind;
using format::Role;
using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "ExplodingTensor", ParameterSet::kLuff);
}

FakeTrial Story(int steps, double (*loss)(int), double (*norm)(int), int optimizers = 1) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step) {
    trial.Step().Tensor("w", Role::kWeight, {norm(step)}).Loss(loss(step));
    trial.Event(EventKind::kOptimizerStep, static_cast<std::uint32_t>(step % optimizers));
  }
  return trial;
}

TEST(ExplodingTensor, LossTenThousandTimesItsStart_Stops) {
  const auto findings =
      FindingsOf(Story(30, [](int n) { return n < 20 ? 1 + n * 0.1 : 1e6; }, [](int) { return 1.0; }));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "growth");
  EXPECT_EQ(findings[0].step, 22);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
}

double Diverging(int n) { return n < 60 ? 2.5 * std::exp(-n / 20.0) + 0.5 : 0.6 * std::exp((n - 60) / 8.0); }
double Growing(int n) { return n < 60 ? 10 : 10 * std::exp((n - 60) / 15.0); }

TEST(ExplodingTensor, LossAndWeightsThatGrowTogether_Stop) {
  const auto findings = FindingsOf(Story(120, Diverging, Growing));
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].cause, "divergence");
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_LE(findings[0].step, 95);
}

TEST(ExplodingTensor, AnotherTaskOrAdversaries_AreSilent) {
  EXPECT_TRUE(
      FindingsOf(Story(
                     200, [](int n) { return n < 60 ? 0.5 : 2.5; }, [](int n) { return 10 + 0.05 * n; }))
          .empty());
  EXPECT_TRUE(FindingsOf(Story(
                             200, [](int n) { return n < 60 ? 0.5 : 5.0; },
                             [](int n) { return n < 60 ? 1.0 : 3.0; }, 2))
                  .empty());
  EXPECT_TRUE(
      FindingsOf(Story(
                     200, [](int n) { return std::exp(-n / 40.0); }, [](int n) { return 1 + 0.1 * n; }))
          .empty());
}

TEST(ExplodingTensor, LossThatFallsWithoutBound_IsAForecast_ThenItStops) {
  const auto loss = [](int n) { return -0.1 * std::exp(n / 8.0); };
  const auto norm = [](int n) { return 3 * std::exp(n / 16.0); };
  const auto findings = FindingsOf(Story(60, loss, norm));
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].cause, "unbounded");
  EXPECT_TRUE(findings[0].forecast);
  // -0.1 exp(n / 8) is 3.4e38 at n = 8 ln 3.4e39
  EXPECT_NEAR(static_cast<double>(findings[0].step + findings[0].lead_steps), 8 * std::log(3.4e39), 60);
  const auto later = FindingsOf(Story(90, loss, norm));
  ASSERT_EQ(later.size(), 1U);
  EXPECT_EQ(later[0].id, findings[0].id);
  EXPECT_EQ(later[0].severity, Severity::kStop);
  EXPECT_FALSE(later[0].forecast);
}

// Outputs saturate, and one batch brings the gradients back: no pace that goes on.
TEST(ExplodingTensor, GradientsThatReturnFromNextToNothing_DoNotGrow) {
  FakeTrial trial;
  for (int step = 0; step < 200; ++step) {
    const double gradient = step < 4 ? 1 : step < 160 ? 1e-10 * (1 + step / 60) : step < 166 ? 3e-9 : 6;
    trial.Step().Loss(1 + 0.001 * step).Tensor("gradient/w", Role::kGradient, {gradient});
  }
  EXPECT_TRUE(FindingsOf(trial).empty());
}

// As of outputs that saturate: norms of single steps jump by orders, and what medians do is no growth.
TEST(ExplodingTensor, GradientsThatJumpAbout_DoNotGrow) {
  for (const bool high_before : {true, false}) {
    FakeTrial trial;
    for (int step = 0; step < 60; ++step) {
      double gradient = step < 36 ? 1e-8 : std::exp((step - 60) / 4.0);
      if (high_before && step % 9 == 4 && step < 36) gradient = 100;
      if (!high_before && step % 4 == 1) gradient = 1e-11;
      trial.Step().Loss(1 + 0.001 * step).Tensor("gradient/w", Role::kGradient, {gradient});
    }
    EXPECT_TRUE(FindingsOf(trial).empty()) << high_before;
  }
}

TEST(ExplodingTensor, GradientsThatDoubleAgainAndAgain_AreAForecast_UnlessTheLossFalls) {
  FakeTrial rising;
  FakeTrial falling;  // leaves a plateau
  for (int step = 0; step < 100; ++step) {
    const double gradient = step < 60 ? 1 : std::exp((step - 60) / 8.0);
    rising.Step().Loss(1 + 0.001 * step).Tensor("gradient/w", Role::kGradient, {gradient});
    falling.Step().Loss(1 - 0.001 * step).Tensor("gradient/w", Role::kGradient, {gradient});
  }
  const auto findings = FindingsOf(rising);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "gradient_growth");
  EXPECT_TRUE(findings[0].forecast);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  // 1e4 times the level of 1 is reached at step 60 + 8 ln 1e4
  EXPECT_NEAR(static_cast<double>(findings[0].step + findings[0].lead_steps), 60 + 8 * std::log(1e4), 12);
  EXPECT_TRUE(FindingsOf(falling).empty());
}

TEST(ExplodingTensor, GradientsWhoseLevelIsShiftedUp_AreSilent) {
  // Rows in the order of their targets: with each part of an epoch the norm has another level, and falls
  // again.
  FakeTrial trial;
  const std::vector<double> late = {0.17, 0.17, 0.12, 0.15, 0.34, 0.44, 0.77, 1.66,
                                    1.58, 1.55, 1.52, 1.49, 1.44, 1.43, 1.38, 1.23};
  for (int step = 0; step < 64; ++step) {
    const double gradient = step < 40 ? 0.11 : late[static_cast<std::size_t>(step - 40) % late.size()];
    trial.Step().Loss(1 + 0.001 * step).Tensor("gradient/w", Role::kGradient, {gradient});
  }
  EXPECT_TRUE(FindingsOf(trial).empty());
}

TEST(ExplodingTensor, NegativeLossWithABound_IsSilent) {
  EXPECT_TRUE(FindingsOf(Story(
                             400, [](int n) { return 1.0 - 6.0 * (1 - std::exp(-n / 50.0)); },
                             [](int n) { return 1 + 0.01 * n; }))
                  .empty());
}

TEST(ExplodingTensor, NanIsLeftToNonFinite) {
  EXPECT_TRUE(FindingsOf(Story(
                             20, [](int n) { return n < 5 ? 1.0 : std::nan(""); }, [](int) { return 1.0; }))
                  .empty());
}

}  // namespace
}  // namespace luff::rules::exploding_tensor_test

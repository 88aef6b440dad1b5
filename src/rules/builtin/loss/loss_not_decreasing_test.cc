#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "rules/testing/recorder.h"

namespace luff::rules::loss_not_decreasing_test {
namespace {

using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "LossNotDecreasing", ParameterSet::kLuff);
}

// A training whose first step says which losses are maximised; `optimizers` take turns.
FakeTrial Maximised(const std::string& losses, std::uint32_t optimizers = 1, int steps = 40) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step) {
    trial.Step().Loss(-1 - 0.1 * step, "loss_output_0");
    if (step == 0) trial.EventJson(R"({"kind": "maximised", "losses": )" + losses + "}");
    trial.Event(format::EventKind::kOptimizerStep, static_cast<std::uint32_t>(step) % optimizers);
  }
  return trial;
}

TEST(LossNotDecreasing, ALossWithAMinusInFront_Stops) {
  const auto findings = FindingsOf(Maximised(R"(["CrossEntropyLoss"])"));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "maximised");
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 15);
  EXPECT_NE(findings[0].what.find("CrossEntropyLoss"), std::string::npos);
}

TEST(LossNotDecreasing, AnOptimizerThatMaximisesALoss_Stops_UnlessWeightsWereLoaded) {
  for (const bool loads : {false, true}) {
    FakeTrial trial;
    for (int step = 0; step < 40; ++step) {
      trial.Step().Loss(1 + 0.1 * step, "loss_output_0");
      if (step == 0 && loads) trial.EventJson(R"({"kind": "load_state_dict", "matched": 2})");
      if (step == 0)
        trial.EventJson(R"({"kind": "maximised", "losses": ["CrossEntropyLoss"], "optimizer": true})");
      trial.Event(format::EventKind::kOptimizerStep);
    }
    const auto findings = FindingsOf(trial);
    ASSERT_EQ(findings.size(), loads ? 0U : 1U);
    if (loads) continue;
    EXPECT_EQ(findings[0].cause, "maximised");
    EXPECT_EQ(findings[0].severity, Severity::kStop);
    EXPECT_NE(findings[0].remedy.find("maximize"), std::string::npos);
  }
}

TEST(LossNotDecreasing, ASquaredErrorOfAScriptWithAMinusInFront_Warns) {
  const auto findings = FindingsOf(Maximised(R"(["squared error"])"));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].what.find("makes a squared error larger"), std::string::npos);
}

TEST(LossNotDecreasing, AdversariesUnknownLossesAndHostileEvents_AreSilent) {
  EXPECT_TRUE(FindingsOf(Maximised(R"(["BCELoss"])", 2)).empty());
  EXPECT_TRUE(FindingsOf(Maximised(R"(["RewardLoss"])")).empty());
  EXPECT_TRUE(FindingsOf(Maximised("[]")).empty());
  EXPECT_TRUE(FindingsOf(Maximised(R"({"a": 1})")).empty());
  EXPECT_TRUE(FindingsOf(Maximised(R"([["MSELoss"], 3, null])")).empty());
  EXPECT_TRUE(FindingsOf(Maximised(R"(["MSELoss"])", 1, 12)).empty());
}

// Two optimizers take turns, as of a policy and the values that it is compared with: every other step has a
// known loss.
std::vector<Finding> OfTurns(const std::string& kind, const std::string& other, double spread,
                             int steps = 80) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step) {
    trial.Step();
    if (step == 0) trial.EventJson(R"({"kind": "maximised", "losses": ["MSELoss"]})");
    if (step % 2 == 0)
      trial.Loss(-0.1, kind + "_output_0")
          .Sample("sample/" + kind + "_input_0", {3}, {0.1, 0.2, 0.3})
          .Sample("sample/" + kind + "_input_1", {3}, {1, 1 + spread, 1 - spread});
    if (step % 2 == 1 && !other.empty())
      trial.Loss(0.1, other + "_output_0")
          .Sample("sample/" + other + "_input_0", {3}, {0.1, 0.2, 0.3})
          .Sample("sample/" + other + "_input_1", {3}, {1, 0, 1});
    trial.Event(format::EventKind::kOptimizerStep, static_cast<std::uint32_t>(step) % 2);
  }
  return FindingsOf(trial);
}

TEST(LossNotDecreasing, TheOnlyKnownLossOfSeveralOptimizersWithAMinus_Warns) {
  const auto findings = OfTurns("MSELoss", "", 0.5);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "maximised");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 63);
}

TEST(LossNotDecreasing, WhatAnotherOptimizerMakesSmaller_IsMadeLargerOnPurpose) {
  EXPECT_TRUE(OfTurns("MSELoss", "BCELoss", 0.5).empty());
  EXPECT_TRUE(OfTurns("MSELoss", "", 0).empty());  // real or made
  EXPECT_TRUE(OfTurns("L1Loss", "", 0.5).empty());
  EXPECT_TRUE(OfTurns("MSELoss", "", 0.5, 40).empty());
}

TEST(LossNotDecreasing, AMinusThatIsWithdrawn_Heals) {
  FakeTrial trial = Maximised(R"(["MSELoss"])", 1, 20);
  trial.Step().Loss(1, "loss_output_0").EventJson(R"({"kind": "maximised", "losses": []})");
  const auto findings = FindingsOf(trial);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
}

// A loss that rises, beside two squared errors, of which the second has the answer and target of the first
// exchanged (`mutual`), or others.
FakeTrial Codes(bool mutual) {
  FakeTrial trial;
  for (int step = 0; step < 260; ++step) {
    trial.Step().Loss(step < 40 ? 1 : 3 + 0.01 * (step % 3), "loss_output_0");
    trial.Loss(0.25, "MSELoss_output_0").Loss(0.25, "MSELoss_output_1");
    trial.Sample("sample/MSELoss_input_0", {2, 2}, {1, 2, 3, 4})
        .Sample("sample/MSELoss_input_1", {2, 2}, {1, 1, 3, 4});
    trial.Sample("sample/MSELoss_input_2", {2, 2}, {1, 1, 3, mutual ? 4.0 : 5.0});
    trial.Sample("sample/MSELoss_input_3", {2, 2}, {1, 2, 3, 4});
  }
  return trial;
}

TEST(LossNotDecreasing, CodesAndWhatTheyStandFor_PullEachOther_AndMayRise) {
  EXPECT_TRUE(FindingsOf(Codes(true)).empty());
  const auto findings = FindingsOf(Codes(false));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "rising");
}

// Losses by step, of batches that are numbered by `batch`; `second` is the step from which another optimizer
// steps; `type` is that of gradients, `gradient` one of them.
FakeTrial Values(const std::function<double(int)>& loss, const std::function<int(int)>& batch,
                 int second = 1000, DType type = DType::kFloat32, double gradient = 0.1) {
  FakeTrial trial;
  for (int step = 0; step < 120; ++step) {
    trial.Step().Tensor("gradient/fc.weight", format::Role::kGradient, {gradient, 0}).AsType(type);
    trial.Loss(loss(step)).Event(format::EventKind::kBatch, 0, static_cast<std::uint64_t>(batch(step) + 1));
    trial.Event(format::EventKind::kOptimizerStep, step < second ? 0 : 1);
  }
  return trial;
}

TEST(LossNotDecreasing, ALossThatIsOneNumberWhateverTheBatchIs_IsTold) {
  const auto each = [](int step) { return step % 10; };
  const auto findings =
      FindingsOf(Values([](int step) { return 0.6931471 + (step % 3 == 0 ? 6e-8 : 0); }, each));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "constant");
  EXPECT_EQ(findings[0].step, 47);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  // In the second phase of a program.
  const auto later =
      FindingsOf(Values([](int step) { return step < 40 ? 3 - 0.01 * step : 0.69315; }, each, 40));
  ASSERT_EQ(later.size(), 1U);
  EXPECT_EQ(later[0].step, 87);
  EXPECT_EQ(later[0].since_step, 40);
}

TEST(LossNotDecreasing, OneBatchAMarginOfZeroAChangeAtLastAndALevelThatWasReached_AreSilent) {
  const auto each = [](int step) { return step % 10; };
  EXPECT_TRUE(FindingsOf(Values([](int) { return 0.69315; }, [](int) { return 0; })).empty());
  EXPECT_TRUE(FindingsOf(Values([](int) { return 0.0; }, each)).empty());
  EXPECT_TRUE(FindingsOf(Values([](int step) { return step == 20 ? 0.694 : 0.69315; }, each)).empty());
  EXPECT_TRUE(
      FindingsOf(Values([](int step) { return step < 20 ? 2 - 0.05 * step : 0.69315; }, each)).empty());
  // A loss of 8 bits stands still while the rate warms up; the constant of a float32 among such gradients
  // does not.
  const auto coarse = [](int) { return 8.4375; };
  EXPECT_TRUE(FindingsOf(Values(coarse, each, 1000, DType::kBFloat16)).empty());
  EXPECT_EQ(FindingsOf(Values(coarse, each)).size(), 1U);
  EXPECT_EQ(FindingsOf(Values([](int) { return 0.6931472; }, each, 1000, DType::kBFloat16)).size(), 1U);
  // A loss that is divided by its own value; without gradients it is a fault.
  EXPECT_TRUE(FindingsOf(Values([](int) { return 1.0; }, each)).empty());
  EXPECT_TRUE(FindingsOf(Values([](int step) { return step % 2 == 0 ? 0.25 : 0.2499999997; }, each)).empty());
  EXPECT_EQ(FindingsOf(Values([](int) { return 1.0; }, each, 1000, DType::kFloat32, 0)).size(), 1U);
  const auto changed = FindingsOf(Values([](int step) { return step < 100 ? 0.69315 : 0.69; }, each));
  ASSERT_EQ(changed.size(), 1U);
  EXPECT_TRUE(changed[0].healed);
}

}  // namespace
}  // namespace luff::rules::loss_not_decreasing_test

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// Luff's parameter set: what each rule must find, and what it must leave alone.
namespace luff::rules::luff_test {
namespace {

using format::EventKind;
using format::Role;
using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial, const std::string& rule) {
  return testing::FindingsOf(trial, rule, ParameterSet::kLuff);
}

constexpr const char* kModel = R"({"models": [{"name": "Net", "parameters": [
  {"name": "Net_a.weight", "requires_grad": true, "optimizer": "Adam", "group": 0},
  {"name": "Net_b.weight", "requires_grad": true, "optimizer": "Adam", "group": 0}]}],
  "optimizers": [{"number": 0, "name": "Adam"}]})";

TEST(LossNotDecreasing, PlateauThenLearning_IsSilent) {
  FakeTrial trial;
  std::mt19937 noise(1);
  std::normal_distribution<double> normal(0, 0.01);
  for (int step = 0; step < 2600; ++step) trial.Step().Loss((step < 1800 ? 0.693 : 0.3) + normal(noise));
  EXPECT_TRUE(FindingsOf(trial, "LossNotDecreasing").empty());
}

TEST(LossNotDecreasing, NoDecreaseInThreeThousandSteps_Warns) {
  FakeTrial trial;
  std::mt19937 noise(1);
  std::normal_distribution<double> normal(0, 0.05);
  for (int step = 0; step < 3200; ++step) trial.Step().Loss(2.3 + normal(noise));
  const auto findings = FindingsOf(trial, "LossNotDecreasing");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "flat");
}

TEST(LossNotDecreasing, LossThatDoublesAndStays_Stops) {
  FakeTrial trial;
  for (int step = 0; step < 300; ++step) trial.Step().Loss(step < 60 ? 1.0 - 0.005 * step : 3.0);
  const auto findings = FindingsOf(trial, "LossNotDecreasing");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "rising");
}

// Before each update a target network is asked about the next states: errors grow with the values that are
// learnt.
TEST(LossNotDecreasing, ValuesThatAreLearntFromTheirOwnEstimates_AreSilentAndClassesOfATeacherAreNot) {
  const auto told = [](const char* loss, bool asked) {
    FakeTrial trial;
    for (int step = 0; step < 300; ++step) {
      if (asked) trial.Step(query::Mode::kEval).Sample("sample/Target_input_0", {1, 1}, {0.5});
      trial.Step().Loss(step < 60 ? 1.0 - 0.005 * step : 3.0, loss);
    }
    return FindingsOf(trial, "LossNotDecreasing").size();
  };
  EXPECT_EQ(told("MSELoss_output_0", true), 0U);
  EXPECT_EQ(told("loss_0", true), 0U);
  EXPECT_EQ(told("MSELoss_output_0", false), 1U);
  EXPECT_EQ(told("CrossEntropyLoss_output_0", true), 1U);
}

// A test set that a script measures by hand after each update, and an encoder that stands still, make no
// targets.
TEST(LossNotDecreasing, ATestByHandAndAFrozenEncoder_HideNothing) {
  const auto told = [](const std::string& model, std::int64_t width, bool same) {
    FakeTrial trial;
    for (int step = 0; step < 300; ++step) {
      std::vector<double> rows;
      for (std::int64_t i = 0; i < 8 * width; ++i)
        rows.push_back((same ? 0 : step * 1000.0) + static_cast<double>(i));
      trial.Step(query::Mode::kEval).Sample("sample/" + model + "_input_0", {8, width}, rows);
      trial.Step().Loss(step < 60 ? 1.0 - 0.005 * step : 3.0, "MSELoss_output_0");
      trial.Sample("sample/Net_input_0", {8, 2}, std::vector<double>(16, step));
    }
    return FindingsOf(trial, "LossNotDecreasing").size();
  };
  EXPECT_EQ(told("Net", 2, true), 1U);       // the test set
  EXPECT_EQ(told("Encoder", 5, false), 1U);  // what it makes of them is trained on
  EXPECT_EQ(told("Target", 2, false), 0U);
  EXPECT_EQ(told("Net", 5, false), 0U);
}

TEST(LossNotDecreasing, PolicyLossAroundZeroAndAdversaries_AreSilent) {
  FakeTrial policy;
  FakeTrial adversaries;
  std::mt19937 noise(1);
  std::normal_distribution<double> normal(0, 1);
  for (int step = 0; step < 4000; ++step) {
    policy.Step().Loss(normal(noise) * (step < 1000 ? 1 : 5));
    adversaries.Step()
        .Loss(step < 500 ? 0.7 : 2.5)
        .Event(EventKind::kOptimizerStep, static_cast<std::uint32_t>(step % 2));
  }
  EXPECT_TRUE(FindingsOf(policy, "LossNotDecreasing").empty());
  EXPECT_TRUE(FindingsOf(adversaries, "LossNotDecreasing").empty());
}

FakeTrial TwoLayers(double first, double last, double loss_slope) {
  FakeTrial trial;
  for (int step = 0; step < 120; ++step) {
    trial.Step().Loss(2.3 - loss_slope * step + 0.001 * (step % 3));
    trial.Tensor("gradient/Net_a.weight", Role::kGradient, {first, -first})
        .Tensor("gradient/Net_b.weight", Role::kGradient, {last, last});
  }
  return trial;
}

TEST(VanishingGradient, TinyRatioAndFlatLoss_Stops) {
  const auto findings = FindingsOf(TwoLayers(1e-9, 1e-2, 0), "VanishingGradient");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].tensor, "gradient/Net_a.weight");
}

TEST(VanishingGradient, TinyGradientsEverywhereOrAFallingLoss_AreSilent) {
  EXPECT_TRUE(FindingsOf(TwoLayers(1e-9, 1e-9, 0), "VanishingGradient").empty());
  EXPECT_TRUE(FindingsOf(TwoLayers(1e-9, 1e-2, 0.01), "VanishingGradient").empty());
}

TEST(VanishingGradient, GradientThatWasNotRecorded_IsNotZero) {
  FakeTrial trial;
  for (int step = 0; step < 120; ++step) {
    trial.Step()
        .Loss(2.3)
        .Tensor("gradient/Net_b.weight", Role::kGradient, {1})
        .Tensor("gradient/Net_c.weight", Role::kGradient, {1});
    if (step < 2) trial.Tensor("gradient/Net_a.weight", Role::kGradient, {0});
  }
  EXPECT_TRUE(FindingsOf(trial, "VanishingGradient").empty());
}

TEST(DeadRelu, MostUnitsBornDead_Warns_AllDead_Stops) {
  FakeTrial trial;
  for (int capture = 0; capture < 4; ++capture) trial.Step().Units("Net_relu_output_0", {0, 0, 9, 0}, 64);
  EXPECT_EQ(FindingsOf(trial, "DeadRelu").at(0).severity, Severity::kWarn);
  FakeTrial all;
  for (int capture = 0; capture < 4; ++capture) all.Step().Units("Net_relu_output_0", {0, 0, 0, 0}, 64);
  EXPECT_EQ(FindingsOf(all, "DeadRelu").at(0).severity, Severity::kStop);
}

TEST(DeadRelu, UnitsThatDieOfAPenalty_AreSilent) {
  FakeTrial trial;
  trial.Step().Units("Net_relu_output_0", {1, 1, 1, 1, 1}, 64);
  for (int capture = 0; capture < 20; ++capture) trial.Step().Units("Net_relu_output_0", {0, 0, 9, 0, 0}, 64);
  EXPECT_TRUE(FindingsOf(trial, "DeadRelu").empty());
}

enum class Gradient { kNormal, kZero, kNone };

FakeTrial Unchanged(Gradient gradient_of_a, bool clear_without_update = false) {
  FakeTrial trial;
  trial.SetDocument("model", kModel);
  for (int step = 0; step < 64; ++step) {
    trial.Step(query::Mode::kTrain, -1, clear_without_update ? 0 : step).Loss(2.3);
    trial.Event(EventKind::kBackward);
    if (clear_without_update) {
      trial.Event(EventKind::kZeroGrad);
    } else {
      trial.Event(EventKind::kOptimizerStep);
      if (gradient_of_a != Gradient::kNone) {
        trial.Tensor("gradient/Net_a.weight", Role::kGradient,
                     {gradient_of_a == Gradient::kZero ? 0.0 : 1.0});
      }
      trial.Tensor("gradient/Net_b.weight", Role::kGradient, {1});
    }
    trial.Scalar("optimizer/Adam.group0.lr", Role::kOptimizerSetting, 0.01);
    if (step % 8 == 0 && step > 0) {
      trial.Difference("Net_a.weight", 0, 0, 1, 0);
      trial.Difference("Net_b.weight", clear_without_update ? 0 : 1, 0.1, 1, clear_without_update ? 0 : 1);
    }
  }
  return trial;
}

TEST(UnchangedTensor, GradientsThatChangeNothing_AreTold_OtherCausesAreOtherRules) {
  EXPECT_EQ(FindingsOf(Unchanged(Gradient::kNormal), "UnchangedTensor").at(0).cause, "unchanged");
  EXPECT_TRUE(FindingsOf(Unchanged(Gradient::kZero), "UnchangedTensor").empty());          // NoGradient
  EXPECT_TRUE(FindingsOf(Unchanged(Gradient::kNone), "UnchangedTensor").empty());          // NoGradient
  EXPECT_TRUE(FindingsOf(Unchanged(Gradient::kNormal, true), "UnchangedTensor").empty());  // StepSkipped
}

// A weight that has moved, until its gradient is `left` of what it was: then not one bit of it changes.
TEST(UnchangedTensor, WeightsThatHaveReachedTheirMinimum_AreSilent) {
  const auto told = [](double left) {
    FakeTrial trial;
    trial.SetDocument("model", kModel);
    for (int step = 0; step < 128; ++step) {
      const bool moves = step <= 48;
      trial.Step(query::Mode::kTrain, -1, step).Loss(0.1).Event(EventKind::kOptimizerStep);
      trial.Tensor("gradient/Net_a.weight", Role::kGradient, {moves ? 1.0 : left});
      trial.Scalar("optimizer/Adam.group0.lr", Role::kOptimizerSetting, 0.01);
      if (step % 8 == 0 && step > 0)
        trial.Difference("Net_a.weight", moves ? 0.1 : 0, moves ? 0.1 : 0, 1, moves);
    }
    return FindingsOf(trial, "UnchangedTensor").size();
  };
  EXPECT_EQ(told(1e-6), 0U);  // full batches of a small regression come so far
  EXPECT_EQ(told(0.1), 1U);   // a rate that rounds away
}

// A critic whose weights are clipped after each update, until all are at a bound.
TEST(UnchangedTensor, WeightsThatAreClipped_AreSilent) {
  const auto told = [](const std::vector<double>& weights, bool moved) {
    FakeTrial trial;
    trial.SetDocument("model", kModel);
    for (int step = 0; step < 128; ++step) {
      const bool moves = moved && step <= 48;
      trial.Step(query::Mode::kTrain, -1, step).Loss(0.1).Event(EventKind::kOptimizerStep);
      trial.Tensor("gradient/Net_a.weight", Role::kGradient, {1.0});
      trial.Tensor("Net_a.weight", Role::kWeight, weights);
      trial.Scalar("optimizer/Adam.group0.lr", Role::kOptimizerSetting, 0.01);
      if (step % 8 == 0 && step > 0)
        trial.Difference("Net_a.weight", moves ? 0.1 : 0, moves ? 0.1 : 0, 1, moves);
    }
    return FindingsOf(trial, "UnchangedTensor").size();
  };
  EXPECT_EQ(told({0.01, -0.01, -0.01}, true), 0U);
  EXPECT_EQ(told({0.01, -0.01, -0.01}, false), 0U);
  EXPECT_EQ(told({0.01, 0.01, 0.01}, true), 0U);
  EXPECT_EQ(told({1, 1, 1}, false), 1U);  // a scale whose updates round away
  EXPECT_EQ(told({0.01, -0.01, 0.005}, true), 1U);
}

TEST(UnchangedTensor, FrozenWeightsAndALearningRateOfZero_AreSilent) {
  FakeTrial frozen = Unchanged(Gradient::kNone);
  std::string model = kModel;
  model.replace(model.find("true"), 4, "false");
  frozen.SetDocument("model", model);
  EXPECT_TRUE(FindingsOf(frozen, "UnchangedTensor").empty());
  FakeTrial at_zero;
  at_zero.SetDocument("model", kModel);
  for (int step = 0; step < 64; ++step) {
    at_zero.Step()
        .Loss(1)
        .Event(EventKind::kOptimizerStep)
        .Tensor("gradient/Net_a.weight", Role::kGradient, {1});
    at_zero.Scalar("optimizer/Adam.group0.lr", Role::kOptimizerSetting, 0);
    if (step % 8 == 0 && step > 0) at_zero.Difference("Net_a.weight", 0, 0, 1, 0);
  }
  EXPECT_TRUE(FindingsOf(at_zero, "UnchangedTensor").empty());
}

FakeTrial Moving(double ratio, double loss_slope) {
  FakeTrial trial;
  for (int step = 0; step < 96; ++step) {
    trial.Step().Loss(2.3 - loss_slope * step).Tensor("gradient/Net_a.weight", Role::kGradient, {1});
    if (step % 8 == 0 && step > 0) trial.Difference("Net_a.weight", ratio * 10, ratio * 8, 1, 1);
  }
  return trial;
}

TEST(WeightUpdateRatio, HugeUpdatesWithoutProgress_Stop_WithProgressAreSilent) {
  const auto findings = FindingsOf(Moving(1, 0), "WeightUpdateRatio");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "large");
  EXPECT_TRUE(FindingsOf(Moving(1, 0.01), "WeightUpdateRatio").empty());
}

// The weights leap in the first interval; the loss is `after` from then on.
FakeTrial Leap(double ratio, double after, bool second_loss = false) {
  FakeTrial trial;
  for (int step = 0; step < 64; ++step) {
    const double loss = step < 3 ? 2.3 - 0.01 * step : step < 8 ? 900.0 : after + 0.01 * (step % 3);
    trial.Step().Loss(loss).Tensor("gradient/Net_a.weight", Role::kGradient, {1});
    if (second_loss) trial.Loss(1.0, "MSELoss_output_0");
    if (step % 8 != 0 || step == 0) continue;
    trial.Difference("Net_a.weight", 1, step == 8 ? ratio * 2 : 0.01, step == 8 ? 2 : 2 * ratio, 1);
    trial.Difference("Net_b.weight", 1, 0.01, 1, 1);
  }
  return trial;
}

TEST(WeightUpdateRatio, WeightsOutgrownUpdateByUpdate_StopWhenTheLossIsNoBetterThanBefore) {
  const auto story = [](double after) {
    FakeTrial trial;
    double norm = 3;
    for (int step = 0; step < 64; ++step) {
      trial.Step()
          .Loss(step < 10 ? 2.3 : after + 0.01 * (step % 3))
          .Tensor("gradient/w", Role::kGradient, {1});
      if (step == 0 || (step > 8 && step % 8 != 0)) continue;
      const double moved = step <= 8 ? 0.7 * norm : 0.01;
      trial.Difference("w", 1, moved, norm, 1);
      norm += moved;
    }
    return trial;
  };
  const auto findings = FindingsOf(story(2.4), "WeightUpdateRatio");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "overwritten");
  EXPECT_LE(findings[0].step, 40);
  EXPECT_TRUE(FindingsOf(story(0.4), "WeightUpdateRatio").empty());
}

TEST(WeightUpdateRatio, WeightsOverwrittenInOneInterval_StopWhenTheLossIsNoBetterThanBefore) {
  const auto findings = FindingsOf(Leap(500, 2.4), "WeightUpdateRatio");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "overwritten");
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].tensor, "Net_a.weight");
  EXPECT_EQ(findings[0].since_step, 0);
  EXPECT_EQ(findings[0].step, 40);
  EXPECT_TRUE(FindingsOf(Leap(500, 2.2), "WeightUpdateRatio").empty());        // the loss has improved
  EXPECT_TRUE(FindingsOf(Leap(5, 2.4), "WeightUpdateRatio").empty());          // no leap
  EXPECT_TRUE(FindingsOf(Leap(500, 2.4, true), "WeightUpdateRatio").empty());  // two losses have no level
}

// A head that began at zero under a warm-up whose rate grows with the square of the updates: its norm grows
// with their cube. `start` is its norm at the beginning, `beside` that of another weight (0: there is none).
FakeTrial WarmHead(double start, double beside, double loss_slope) {
  FakeTrial trial;
  const auto norm = [&](int step) { return start + 1e-6 * step * step * step; };
  int captured = 0;
  for (int step = 0; step < 120; ++step) {
    trial.Step().Loss(1.39 + loss_slope * step).Tensor("gradient/head.weight", Role::kGradient, {0.1});
    if (step == 0 || (step > 8 && step % 8 != 0)) continue;
    trial.Difference("head.weight", 1, norm(step) - norm(captured), norm(captured), 1);
    if (beside > 0) trial.Difference("body.weight", 1, 1e-6, beside, 1);
    captured = step;
  }
  return trial;
}

TEST(WeightUpdateRatio, AHeadThatBeganAtZero_OutgrowsNothing_UnlessTheLossBecomesWorse) {
  EXPECT_TRUE(FindingsOf(WarmHead(0, 5, 0), "WeightUpdateRatio", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(WarmHead(0, 0, 0), "WeightUpdateRatio", ParameterSet::kLuff).empty());  // a probe
  EXPECT_TRUE(FindingsOf(WarmHead(1e-4, 5, 0), "WeightUpdateRatio", ParameterSet::kLuff)
                  .empty());  // normal_(std=1e-5)
  const auto worse = FindingsOf(WarmHead(0, 5, 0.02), "WeightUpdateRatio", ParameterSet::kLuff);
  ASSERT_FALSE(worse.empty());
  EXPECT_EQ(worse[0].cause, "large");
  EXPECT_FALSE(FindingsOf(WarmHead(1e-4, 0, 0), "WeightUpdateRatio", ParameterSet::kLuff)
                   .empty());  // what it was is lost
}

TEST(WeightUpdateRatio, NoUpdateChangesABit_IsToldAsZero) {
  const auto findings = FindingsOf(Moving(0, 0), "WeightUpdateRatio");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "small");
  EXPECT_NE(findings[0].what.find("no weight has moved at all in 48 updates"), std::string::npos)
      << findings[0].what;
  EXPECT_NE(findings[0].why.find("every update is lost in rounding"), std::string::npos);
  EXPECT_EQ(findings[0].what.find("inf"), std::string::npos);
}

// A model whose weights have gradients and rest, while an optimizer of something else steps. `holder`: of
// them.
std::vector<Finding> BesideAnother(const std::string& holder, std::uint32_t stepped) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [{"name": "Net", "type": "Net", "parameters": [
    {"path": "a.weight", "name": "Net_a.weight", "shape": [2], "requires_grad": true, "optimizer": )" +
                                 holder +
                                 R"(}]}], "optimizers": [{"number": 0, "name": "Adam", "type": "Adam"},
    {"number": 1, "name": "Adam_2", "type": "Adam"}]})");
  for (int step = 0; step < 96; ++step) {
    trial.Step().Loss(2.3).Tensor("gradient/Net_a.weight", Role::kGradient, {1});
    trial.Event(format::EventKind::kOptimizerStep, stepped);
    if (step % 8 == 0 && step > 0) trial.Difference("Net_a.weight", 0, 0, 1, 1);
  }
  return FindingsOf(trial, "WeightUpdateRatio", ParameterSet::kLuff);
}

TEST(WeightUpdateRatio, AModelThatRestsWhileAnotherThingIsTrained_IsSilent) {
  EXPECT_TRUE(BesideAnother("null", 1).empty());         // a disturbance of its inputs
  EXPECT_TRUE(BesideAnother("\"Adam\"", 1).empty());     // it was trained before
  EXPECT_EQ(BesideAnother("\"Adam_2\"", 1).size(), 1U);  // its own optimizer steps
}

// Each update undoes the one before: captures an even number of them apart see none.
TEST(WeightUpdateRatio, WeightsThatSwingBetweenTwoValues_DoMove) {
  const auto told = [](double other, double rate) {
    FakeTrial trial;
    for (int step = 0; step < 96; ++step) {
      trial.Step()
          .Loss(step % 2 == 0 ? 0.5 : other)
          .Tensor("gradient/Net_a.weight", Role::kGradient, {1})
          .Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, rate);
      if (step % 8 == 0 && step > 0) trial.Difference("Net_a.weight", 0, 0, 1, 1);
    }
    return FindingsOf(trial, "WeightUpdateRatio", ParameterSet::kLuff).size();
  };
  EXPECT_EQ(told(0.75, 0.01), 0U);
  EXPECT_EQ(told(0.5, 0.01), 1U);
  EXPECT_EQ(told(0.75, 0), 1U);  // two batches in turn, and a rate of zero
}

// Weights that never move, with a rate of 0, and one that is tiny from a step on.
FakeTrial WithoutRate(int rises_at) {
  FakeTrial trial;
  for (int step = 0; step < 100; ++step) {
    trial.Step().Loss(2).Tensor("gradient/Net_a.weight", Role::kGradient, {1});
    trial.Scalar("optimizer/Adam.group0.lr", Role::kOptimizerSetting, step >= rises_at ? 1e-30 : 0);
    if (step % 8 == 0 && step > 0) trial.Difference("Net_a.weight", 0, 0, 1, 0);
  }
  return trial;
}

TEST(WeightUpdateRatio, ARateOfZero_IsNamed) {
  const auto zero = FindingsOf(WithoutRate(1000), "WeightUpdateRatio");
  ASSERT_EQ(zero.size(), 1U);
  EXPECT_NE(zero[0].what.find("the learning rate is 0"), std::string::npos) << zero[0].what;
  EXPECT_NE(zero[0].causes.at(0).find("warm-up"), std::string::npos);
  const auto tiny = FindingsOf(WithoutRate(20), "WeightUpdateRatio");
  ASSERT_EQ(tiny.size(), 1U);
  EXPECT_EQ(tiny[0].what.find("the learning rate is 0"), std::string::npos) << tiny[0].what;
}

// Weights that rest while the loss has fallen to `left` of what it was.
FakeTrial Resting(double left) {
  FakeTrial trial;
  for (int step = 0; step < 200; ++step) {
    trial.Step().Loss(std::max(0.1 * std::pow(0.9, step), 0.1 * left));
    trial.Tensor("gradient/Net_a.weight", Role::kGradient, {1});
    const double moved = step < 96 ? 1e-3 : 1e-8;
    if (step % 8 == 0 && step > 0) trial.Difference("Net_a.weight", moved * 10, moved * 8, 1, 1);
  }
  return trial;
}

TEST(WeightUpdateRatio, WeightsThatRestBecauseNothingIsLeftToLearn_AreSilent) {
  EXPECT_EQ(FindingsOf(Resting(0.3), "WeightUpdateRatio").at(0).cause, "small");
  EXPECT_TRUE(FindingsOf(Resting(1e-4), "WeightUpdateRatio").empty());
}

TEST(WeightUpdateRatio, NoWeightMoves_Warns_OrdinaryUpdatesAreSilent) {
  EXPECT_EQ(FindingsOf(Moving(1e-8, 0), "WeightUpdateRatio").at(0).cause, "small");
  EXPECT_TRUE(FindingsOf(Moving(1e-3, 0), "WeightUpdateRatio").empty());
}

}  // namespace
}  // namespace luff::rules::luff_test

#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// NonFinite: poisoned weights, skipped updates, and the hook's report on the producer.
namespace luff::rules::non_finite_test {
namespace {

using format::EventKind;
using format::Role;
using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "NonFinite", ParameterSet::kLuff);
}

FakeTrial& Updated(FakeTrial& trial, double loss, double weight = 1, double gradient = 1) {
  trial.Step().Loss(loss).Tensor("Net_a.weight", Role::kWeight, {weight, 2});
  return trial.Tensor("gradient/Net_a.weight", Role::kGradient, {gradient, 1})
      .Event(EventKind::kOptimizerStep);
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(NonFinite, NanLossThatAnUpdateUses_WarnsAtOnce_StopsWithTheWeights) {
  FakeTrial trial;
  for (int step = 0; step < 5; ++step) Updated(trial, 1);
  Updated(trial, kNan, 1, kNan);
  trial.ShowOnly(6);
  auto findings = FindingsOf(trial);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 5);
  EXPECT_EQ(findings[0].tensor, "CrossEntropyLoss_output_0");
  Updated(trial, kNan, kNan, kNan);
  trial.ShowOnly(7);
  findings = FindingsOf(trial);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 5);
  EXPECT_EQ(findings[0].other_tensors, std::vector<std::string>{"Net_a.weight"});
}

TEST(NonFinite, BeforeAnyUpdate_NoRateAndNoCheckpointIsToBlame) {
  for (const int good : {0, 3}) {
    FakeTrial trial;
    for (int step = 0; step < good; ++step) Updated(trial, 1);
    Updated(trial, kNan, 1, kNan);
    trial.EventJson(
        R"({"kind":"nonfinite","step":)" + std::to_string(good) +
        R"(,"from":"replay","phase":"forward","operator":"exp","reason":"exponential overflows"})");
    const auto findings = FindingsOf(trial);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].remedy.find("smaller weights") != std::string::npos, good == 0);
    EXPECT_EQ(findings[0].remedy.find("checkpoint") != std::string::npos, good > 0);
    EXPECT_EQ(findings[0].remedy.find("learning rate") != std::string::npos, good > 0);
  }
}

TEST(NonFinite, GradientsBeforeTheLoss_Lead) {
  FakeTrial trial;
  Updated(trial, 1);
  Updated(trial, 1, 1, HUGE_VAL);
  Updated(trial, kNan, HUGE_VAL, kNan);
  const auto findings = FindingsOf(trial);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].tensor, "gradient/Net_a.weight");
  EXPECT_EQ(findings[0].since_step, 1);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
}

TEST(NonFinite, UpdatesThatAreLeftOut_AreSilent_UnlessItNeverEnds) {
  FakeTrial scaler;
  FakeTrial never;
  FakeTrial one;
  for (int step = 0; step < 60; ++step) {
    const bool overflow = step < 16 || step % 20 == 0;
    scaler.Step().Loss(1).Event(overflow ? EventKind::kStepSkipped : EventKind::kOptimizerStep);
    never.Step().Loss(1).Event(EventKind::kStepSkipped);
    one.Step().Loss(step == 20 ? HUGE_VAL : 1).Tensor("Net_a.weight", Role::kWeight, {1});
  }
  EXPECT_TRUE(FindingsOf(scaler).empty());
  EXPECT_TRUE(FindingsOf(one).empty());
  const auto findings = FindingsOf(never);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 24);
  EXPECT_EQ(findings[0].since_step, 0);
}

TEST(NonFinite, ScaleThatCollapses_IsAForecast) {
  FakeTrial trial;
  double scale = 256;
  for (int step = 0; step < 20; ++step, scale /= 2) {
    trial.Step().Loss(1).Event(EventKind::kStepSkipped);
    trial.Event(EventKind::kScaleLoss, 0, std::bit_cast<std::uint64_t>(scale));
  }
  const auto findings = FindingsOf(trial);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "scale");
  EXPECT_TRUE(findings[0].forecast);
  EXPECT_EQ(findings[0].step, 9);
  EXPECT_EQ(findings[0].lead_steps, 15);
}

TEST(NonFinite, MaskOfInfinitiesAmongTheParameters_IsSilent) {
  FakeTrial trial;
  for (int step = 0; step < 40; ++step) Updated(trial, 1, -HUGE_VAL);
  EXPECT_TRUE(FindingsOf(trial).empty());
}

TEST(NonFinite, WeightsThatComeBack_HealIt) {
  FakeTrial trial;
  Updated(trial, 1);
  Updated(trial, kNan);
  Updated(trial, 1);
  const auto findings = FindingsOf(trial);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
}

TEST(NonFinite, RunThatEndsOnANanLoss_IsTold) {
  FakeTrial trial;
  trial.Step().Loss(1);
  trial.Step().Loss(kNan);
  EXPECT_EQ(FindingsOf(trial).size(), 1U);
}

TEST(NonFinite, ProducerOfTheHook_IsNamed_TheReplayReplacesTheGraph) {
  FakeTrial trial;
  Updated(trial, 1);
  Updated(trial, kNan, 1, kNan);
  trial.EventJson(R"({"kind":"nonfinite","step":1,"from":"graph","phase":"loss","operator":"log",)"
                  R"("reason":"logarithm of zero","count":3})");
  trial.ShowOnly(2);
  const auto first = FindingsOf(trial);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_NE(first[0].what.find("logarithm of zero"), std::string::npos) << first[0].what;
  Updated(trial, kNan, kNan, kNan);
  Updated(trial, kNan, kNan, kNan);
  trial.EventJson(R"({"kind":"nonfinite","step":1,"from":"replay","phase":"loss","operator":"log",)"
                  R"("reason":"logarithm of zero","file":"train.py","line":12})");
  trial.ShowOnly(4);
  const auto findings = FindingsOf(trial);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find("train.py:12"), std::string::npos) << findings[0].what;
  EXPECT_EQ(findings[0].severity, Severity::kStop);
}

TEST(NonFinite, ASoftmaxOfARowInWhichEverythingIsMasked_SpeaksOfTheMask) {
  FakeTrial trial;
  Updated(trial, kNan, 1, kNan);
  trial.EventJson(R"({"kind":"nonfinite","step":0,"from":"replay","phase":"forward","operator":"softmax",)"
                  R"("reason":"softmax of a row in which everything is masked"})");
  Updated(trial, kNan, kNan, kNan);
  const auto findings = FindingsOf(trial);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].remedy.find("mask"), std::string::npos) << findings[0].remedy;
  EXPECT_EQ(findings[0].remedy.find("learning rate"), std::string::npos);
}

// Of what a model or a loss is given, only what was bad before anything else was is to blame.
TEST(NonFinite, DataAreBlamedOnlyWhereTheyWereBadFirst) {
  const auto told = [](const char* name, int from, bool finite_output, double loss) {
    FakeTrial trial;
    for (int step = 0; step < 6; ++step) {
      Updated(trial, step < 3 ? 1 : step == 3 ? loss : kNan, step < 4 ? 1 : kNan, step < 3 ? 1 : kNan);
      trial.Tensor(name, Role::kSample, {step < from ? 1 : kNan, 2});
      if (finite_output) trial.Tensor("sample/MSELoss_input_0", Role::kSample, {1, 2});
    }
    const auto findings = FindingsOf(trial);
    EXPECT_EQ(findings.size(), 1U);
    return findings[0].why.find("held NaN in that step") != std::string::npos &&
           findings[0].remedy.find("batch of that step and at how it was made") != std::string::npos;
  };
  EXPECT_TRUE(told("sample/Net_input_0", 3, false, kNan));
  EXPECT_TRUE(told("sample/MSELoss_input_1", 3, true, kNan));
  EXPECT_FALSE(told("sample/MSELoss_input_0", 3, false, kNan));  // the model's answer
  EXPECT_FALSE(told("sample/Net_input_0", 4, false, kNan));      // made by weights that were lost before
  EXPECT_FALSE(told("sample/Net_input_0", 4, false, 1));
  EXPECT_FALSE(told("sample/Net_input_0", 3, false, 1));  // the loss was finite still
}

TEST(NonFinite, WhatIsToBeDone_DependsOnTheOperation) {
  const auto remedy = [](const std::string& phase, const std::string& reason) {
    FakeTrial trial;
    Updated(trial, 1);
    Updated(trial, phase == "backward" ? 1 : kNan, 1, kNan);
    trial.EventJson(R"({"kind":"nonfinite","step":1,"from":"replay","phase":")" + phase +
                    R"(","operator":"op","reason":")" + reason + R"("})");
    const auto findings = FindingsOf(trial);
    return findings.size() == 1 ? findings[0].remedy : "";
  };
  EXPECT_NE(remedy("backward", "derivative of a power at zero is infinite").find("1e-8"), std::string::npos);
  EXPECT_NE(
      remedy("backward",
             "derivative of the square root at zero is infinite, and a gradient of zero is multiplied by "
             "it: torch.where, a mask or a factor of zero does not keep it out")
          .find("torch.where(ok, x, 1)"),
      std::string::npos);
  EXPECT_NE(remedy("loss", "logarithm of zero").find("log_softmax"), std::string::npos);
  EXPECT_NE(remedy("loss", "division by zero").find("clamp(min=1)"), std::string::npos);
  EXPECT_NE(remedy("loss", "standard deviation of one sample").find("drop_last"), std::string::npos);
  EXPECT_NE(remedy("input", "standard deviation of one sample").find("drop_last"), std::string::npos);
  EXPECT_NE(remedy("backward", "the derivative of bmm is not finite").find("clip"), std::string::npos);
}

TEST(NonFinite, StepThatCouldNotBeEvaluatedAgain_IsSaid) {
  FakeTrial trial;
  Updated(trial, 1);
  Updated(trial, kNan, 1, kNan);
  trial.EventJson(R"({"kind":"nonfinite","step":1,"from":"graph","phase":"loss","operator":"log",)"
                  R"("reason":"logarithm of zero","no_replay":"several ranks train together"})");
  const auto findings = FindingsOf(trial);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find("logarithm of zero"), std::string::npos) << findings[0].what;
  EXPECT_NE(findings[0].why.find("its line is not known: several ranks"), std::string::npos)
      << findings[0].why;
}

TEST(NonFinite, WordsThatAreNoProducer_DoNoHarm) {
  FakeTrial trial;
  Updated(trial, 1);
  Updated(trial, kNan, 1, kNan);
  trial.EventJson("{\"kind\":\"nonfinite\"")
      .EventJson(R"({"kind":"nonfinite","step":"x","reason":7,"line":{}})");
  const auto findings = FindingsOf(trial);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].what, "the loss is NaN since step 1");
}

// Evaluations of four losses, of which the first `bad` are not finite.
std::vector<Finding> Evaluated(int bad, bool training = true, int healthy_from = 100) {
  FakeTrial trial;
  for (int e = 0; e < 4; ++e) {
    for (int step = 0; step < 5; ++step)
      trial.Step().Loss(training ? 1 : NAN).Event(format::EventKind::kOptimizerStep, 0);
    for (int i = 0; i < 4; ++i) trial.Step(query::Mode::kEval).Loss(i < bad && e < healthy_from ? NAN : 1);
  }
  std::vector<Finding> findings;
  for (const Finding& one : testing::FindingsOf(trial, "NonFinite", ParameterSet::kLuff)) {
    if (one.cause == "evaluation") findings.push_back(one);
  }
  return findings;
}

TEST(NonFinite, EvaluationsThatAreNotFinite_AreToldAtTheSecond) {
  const auto findings = Evaluated(4);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(Evaluated(3).size(), 1U);
  EXPECT_TRUE(Evaluated(1).empty());         // a batch in which nothing counts
  EXPECT_TRUE(Evaluated(4, false).empty());  // the training is no better
  EXPECT_TRUE(Evaluated(4, true, 1).empty());
}

}  // namespace
}  // namespace luff::rules::non_finite_test

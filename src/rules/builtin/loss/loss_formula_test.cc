#include <gtest/gtest.h>

#include "base/format.h"
#include "rules/testing/recorder.h"

namespace luff::rules::loss_formula_test {
namespace {

using format::EventKind;
using testing::FakeTrial;

std::string Event(const std::string& fault) {
  return fmt::format(R"({{"kind": "loss_formula", "fault": "{}"}})", fault);
}

struct Story {
  std::string event;
  int steps = 24, optimizers = 1, taken_back = -1;
};

std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  for (int step = 0; step < story.steps; ++step) {
    trial.Step().Loss(2).Event(EventKind::kOptimizerStep,
                               static_cast<std::uint32_t>(step % story.optimizers));
    if (step == 0) trial.EventJson(story.event);
    if (step == story.taken_back) trial.EventJson(Event(""));
  }
  return testing::FindingsOf(trial, "LossFormula", ParameterSet::kLuff);
}

TEST(LossFormula, EachFault_IsToldOnceAfterSixteenUpdates) {
  for (const char* fault : {"softmax_axis", "half_of_bce", "squared_mean", "margin_of_zeros",
                            "squashed_twice", "similarity_minimised", "overlap_of_scores", "moving_gain",
                            "weights_without_effect", "scale_without_cost"}) {
    const auto findings = Told({.event = Event(fault)});
    ASSERT_EQ(findings.size(), 1U) << fault;
    EXPECT_EQ(findings[0].cause, fault);
    EXPECT_EQ(findings[0].step, 15);
    EXPECT_EQ(findings[0].since_step, 0);
    EXPECT_EQ(findings[0].severity, Severity::kWarn);
  }
  for (const char* fault : {"likelihood_minimised", "mean_error", "focal_upside_down", "overlap_minimised",
                            "divergence_maximised", "errors_maximised"}) {
    const auto findings = Told({.event = Event(fault)});
    ASSERT_EQ(findings.size(), 1U) << fault;
    EXPECT_EQ(findings[0].severity, Severity::kStop) << fault;
  }
}

TEST(LossFormula, AFewUpdates_AnotherRootAndAdversaries_AreSilent) {
  EXPECT_TRUE(Told({.event = Event("mean_error"), .steps = 15}).empty());
  EXPECT_TRUE(Told({.event = Event("mean_error"), .taken_back = 8}).empty());
  EXPECT_TRUE(Told({.event = Event("mean_error"), .optimizers = 2}).empty());
}

// The first phase has 20 updates.
std::vector<Finding> OfTwoPhases(const std::string& first, const std::string& second, int steps) {
  FakeTrial trial;
  for (int step = 0; step < 20 + steps; ++step) {
    trial.Step().Loss(2).Event(EventKind::kOptimizerStep, step < 20 ? 0 : 1);
    if (step == 0) trial.EventJson(first);
    if (step == 21) trial.EventJson(second);
  }
  return testing::FindingsOf(trial, "LossFormula", ParameterSet::kLuff);
}

TEST(LossFormula, ASecondPhaseHasALossOfItsOwn) {
  const auto findings = OfTwoPhases(Event(""), Event("squared_mean"), 24);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 36);
  EXPECT_EQ(findings[0].since_step, 21);
  EXPECT_TRUE(OfTwoPhases(Event(""), Event(""), 24).empty());
  EXPECT_TRUE(OfTwoPhases(Event(""), Event("squared_mean"), 12).empty());
  const auto first = OfTwoPhases(Event("mean_error"), Event(""), 24);  // what was told stands
  ASSERT_EQ(first.size(), 1U);
  EXPECT_FALSE(first[0].healed);
}

// Rows that are to be forgotten, patches that are to mislead: a trained model is made worse on purpose.
TEST(LossFormula, ALaterPhaseMayGoTheOtherWay_AndIsNeverStopped) {
  for (const char* fault :
       {"likelihood_minimised", "half_of_bce", "mean_error", "focal_upside_down", "overlap_minimised",
        "similarity_minimised", "divergence_maximised", "errors_maximised"})
    EXPECT_TRUE(OfTwoPhases(Event(""), Event(fault), 24).empty()) << fault;
  for (const char* fault : {"softmax_axis", "squared_mean", "margin_of_zeros", "squashed_twice",
                            "moving_gain", "moving_target"}) {
    const auto other = OfTwoPhases(Event(""), Event(fault), 24);
    ASSERT_EQ(other.size(), 1U) << fault;
    EXPECT_EQ(other[0].severity, Severity::kWarn) << fault;
  }
  // A process that goes on says again what is known.
  FakeTrial trial;
  for (int step = 0; step < 60; ++step) {
    trial.Step().Loss(2).Event(EventKind::kOptimizerStep, 0);
    if (step % 30 == 0) trial.EventJson(Event("mean_error"));
  }
  const auto again = testing::FindingsOf(trial, "LossFormula", ParameterSet::kLuff);
  ASSERT_EQ(again.size(), 1U);
  EXPECT_FALSE(again[0].healed);
}

TEST(LossFormula, AdversariesThatWarmUpAlone_TakeBackWhatWasTold) {
  FakeTrial trial;
  for (int step = 0; step < 60; ++step) {
    trial.Step().Loss(2).Event(EventKind::kOptimizerStep, step < 20 ? 0 : static_cast<unsigned>(step % 2));
    if (step == 0) trial.EventJson(Event("mean_error"));
    if (step == 21) trial.EventJson(Event(""));
  }
  const auto findings = testing::FindingsOf(trial, "LossFormula", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
}

TEST(LossFormula, AGeneratorThatHelpsItsCritic_IsToldOnce) {
  const auto told = [](const std::string& event, int times = 1) {
    FakeTrial trial;
    for (int step = 0; step < 40; ++step) {
      trial.Step().Loss(2).Event(EventKind::kOptimizerStep, static_cast<unsigned>(step % 2));
      if (step >= 10 && step < 10 + times) trial.EventJson(event);
    }
    return testing::FindingsOf(trial, "LossFormula", ParameterSet::kLuff);
  };
  const std::string event = R"({"kind": "critic_helped", "critic": "D", "generator": "G", "updates": 6})";
  for (const int times : {1, 2}) {
    const auto findings = told(event, times);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "critic_helped");
    EXPECT_EQ(findings[0].tensor, "G");
    EXPECT_EQ(findings[0].severity, Severity::kWarn);
    EXPECT_EQ(findings[0].step, 10);
    EXPECT_FALSE(findings[0].healed);
  }
  EXPECT_TRUE(told(R"({"kind": "critic_helped"})").empty());
  EXPECT_TRUE(told(R"({"kind": "critic_helped", "critic": 1, "generator": "G"})").empty());
  EXPECT_TRUE(
      told(R"({"kind": "critic_helped", "critic": ")" + std::string(600, 'x') + R"(", "generator": "G"})")
          .empty());
  EXPECT_EQ(told(R"({"kind": "critic_helped", "critic": "", "generator": ""})").size(), 1U);
}

// A fact of a part stands whatever else is trained: by adversaries, with other losses, before other phases.
TEST(LossFormula, APart_IsToldAtOnceAndOnce) {
  for (const char* fault :
       {"deviation_unlike", "uniform_noise", "category_divergence_maximised", "means_compared",
        "surrogate_upside_down", "ratio_without_exp", "gain_clipped", "clip_without_gain", "clip_around_zero",
        "values_smaller", "signed_error", "summed_and_spread", "loss_cut_off", "one_row_counts"}) {
    FakeTrial trial;
    for (int step = 0; step < 40; ++step) {
      trial.Step().Loss(2).Event(EventKind::kOptimizerStep, static_cast<std::uint32_t>(step % 2));
      if (step == 3 || step == 9)
        trial.EventJson(fmt::format(R"({{"kind": "formula_part", "fault": "{}"}})", fault));
      if (step == 20) trial.EventJson(Event(""));
    }
    const auto findings = testing::FindingsOf(trial, "LossFormula", ParameterSet::kLuff);
    ASSERT_EQ(findings.size(), 1U) << fault;
    EXPECT_EQ(findings[0].cause, fault);
    EXPECT_EQ(findings[0].step, 3);
    EXPECT_EQ(findings[0].severity, Severity::kWarn);
    EXPECT_FALSE(findings[0].healed);
  }
  EXPECT_TRUE(Told({.event = R"({"kind": "formula_part", "fault": "mean_error"})"}).empty());
  EXPECT_TRUE(Told({.event = R"({"kind": "formula_part", "fault": 1})"}).empty());
  EXPECT_TRUE(Told({.event = R"({"kind": "formula_part"})"}).empty());
}

TEST(LossFormula, UnknownAndMalformedEvents_AreLeftOut) {
  EXPECT_TRUE(Told({.event = Event("")}).empty());
  EXPECT_TRUE(Told({.event = Event("another")}).empty());
  EXPECT_TRUE(Told({.event = R"({"kind": "loss_formula"})"}).empty());
  EXPECT_TRUE(Told({.event = R"({"kind": "loss_formula", "fault": 1})"}).empty());
  EXPECT_TRUE(Told({.event = R"({"kind": "loss_formula", "fault": "mean_error")"}).empty());
}

}  // namespace
}  // namespace luff::rules::loss_formula_test

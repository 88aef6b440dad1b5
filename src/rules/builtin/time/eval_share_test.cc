#include <gtest/gtest.h>

#include "rules/builtin/time/pauses_test.h"

namespace luff::rules::eval_share_test {
namespace {

std::vector<Finding> Told(int epochs, int steps, int evaluated, double checkpoint_ms = 0) {
  testing::FakeTrial trial;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (int i = 0; i < steps; ++i) trial.Step().Phases({{format::Phase::kForward, 50}});
    for (int i = 0; i < evaluated; ++i)
      trial.Step(query::Mode::kEval)
          .Phases({{format::Phase::kDataWait, 0.01},
                   {format::Phase::kForward, 50},
                   {format::Phase::kCheckpoint, checkpoint_ms}});
  }
  trial.Step().Phases({{format::Phase::kForward, 50}});
  return testing::FindingsOf(trial, "EvalShare", ParameterSet::kLuff);
}

TEST(EvalShare, EvaluationsAsLongAsTheTrainingAreNamed) {
  const auto findings = Told(20, 40, 40);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find("20 times"), std::string::npos) << findings[0].what;
  EXPECT_NE(findings[0].what.find("takes 50 % of the time"), std::string::npos) << findings[0].what;
  ASSERT_TRUE(findings[0].saving);
  EXPECT_NEAR(findings[0].saving->share, 0.25, 0.01);  // half of it
}

TEST(EvalShare, ManyEvaluationsAreNoTrouble) {
  EXPECT_TRUE(Told(20, 80, 40).empty());  // a third of the time
  EXPECT_TRUE(Told(2, 400, 400).empty());
  EXPECT_TRUE(Told(20, 40, 1, 2000).empty());  // checkpoints are another rule's
}

TEST(EvalShare, AnEvaluationInsideARound_Counts) {
  EXPECT_EQ(
      testing::PausesOf({.phase = format::Phase::kEval, .every = 1, .pause_ms = 50}, "EvalShare").size(), 1U);
}

TEST(EvalShare, AnAgentThatActsEvaluatesNothing) {
  testing::FakeTrial trial;  // rollouts in eval(), without a loader
  for (int i = 0; i < 2000; ++i)
    trial.Step(i % 50 < 30 ? query::Mode::kEval : query::Mode::kTrain)
        .Phases({{format::Phase::kForward, 50}});
  trial.Step().Phases({{format::Phase::kForward, 50}});
  EXPECT_TRUE(testing::FindingsOf(trial, "EvalShare", ParameterSet::kLuff).empty());
}

TEST(EvalShare, PredictionsWithoutTraining_AreSilent) {
  testing::FakeTrial trial;
  for (int i = 0; i < 1000; ++i) trial.Step(query::Mode::kPredict).Phases({{format::Phase::kForward, 50}});
  EXPECT_TRUE(testing::FindingsOf(trial, "EvalShare", ParameterSet::kLuff).empty());
}

}  // namespace
}  // namespace luff::rules::eval_share_test

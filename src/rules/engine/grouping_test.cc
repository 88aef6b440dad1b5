#include "rules/engine/grouping.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::grouping_test {
namespace {

Finding Made(const char* rule, std::int64_t step, const char* leader = "") {
  Finding finding;
  finding.id = std::string(rule) + "@" + std::to_string(step);
  finding.rule = rule;
  finding.step = finding.global_step = finding.since_step = step;
  finding.leader = leader;
  return finding;
}

TEST(Grouping, ASymptomFollowsFromTheMistake_NotFromAnotherSymptom) {
  const std::vector<Finding> known = {Made("GradientNotCleared", 3), Made("DeadRelu", 30)};
  EXPECT_EQ(LeaderOf(Made("LossNotDecreasing", 90), known), "GradientNotCleared@3");
  EXPECT_EQ(LeaderOf(Made("NonFinite", 40), known), "GradientNotCleared@3");
  EXPECT_EQ(LeaderOf(Made("DeadRelu", 2), {}), "");
}

TEST(Grouping, MistakesStandSideBySide_AndWhatSpeaksOfItselfAloneStaysAlone) {
  const std::vector<Finding> known = {Made("InputScale", 3), Made("LossShapeMismatch", 3)};
  EXPECT_EQ(LeaderOf(Made("LossShapeMismatch", 4), known), "");
  EXPECT_EQ(LeaderOf(Made("Overfit", 400), known), "");
  EXPECT_EQ(LeaderOf(Made("MyOwnRule", 400), known), "");
}

TEST(Grouping, WhatStandsStillDoesNotFollowFromWhatBlowsUp_UnlessTheCauseDoesBoth) {
  EXPECT_EQ(LeaderOf(Made("NonFinite", 50), std::vector{Made("HighDropout", 1)}), "");
  EXPECT_EQ(LeaderOf(Made("NoBetterThanConstant", 50), std::vector{Made("HighDropout", 1)}), "HighDropout@1");
  EXPECT_EQ(LeaderOf(Made("DeadRelu", 50), std::vector{Made("NonFinite", 40)}), "NonFinite@40");
}

TEST(Grouping, HealedFindingsForecastsAndFollowersLeadNobody) {
  std::vector<Finding> known = {Made("NonFinite", 1)};
  known[0].healed = true;
  EXPECT_EQ(LeaderOf(Made("DeadRelu", 5), known), "");
  known[0].healed = false;
  known[0].forecast = true;
  EXPECT_EQ(LeaderOf(Made("DeadRelu", 5), known), "");
  EXPECT_EQ(LeaderOf(Made("DeadRelu", 5), std::vector{Made("NonFinite", 1, "InputScale@0")}), "");
}

TEST(Grouping, AMistakeThatIsFoundLateTakesOverWhatBeganAfterIt) {
  Finding mistake = Made("RegularizationDominates", 20);
  mistake.since_step = 0;
  EXPECT_TRUE(TakesOver(mistake, Made("WeightUpdateRatio", 8)));
  EXPECT_FALSE(TakesOver(Made("RegularizationDominates", 20), Made("WeightUpdateRatio", 8)));  // began later
  EXPECT_FALSE(TakesOver(Made("LossNotDecreasing", 20), Made("WeightUpdateRatio", 30)));
}

TEST(Grouping, WhatSpeaksOfItselfAlone_FollowsFromTheOneMistakeThatGivesIt) {
  EXPECT_EQ(LeaderOf(Made("Overfit", 400), std::vector{Made("TrainValSkew", 49)}), "TrainValSkew@49");
  EXPECT_EQ(LeaderOf(Made("DeadEmbeddingRows", 32), std::vector{Made("NLPSequenceRatio", 24)}),
            "NLPSequenceRatio@24");
  EXPECT_EQ(LeaderOf(Made("TrainValSkew", 400), std::vector{Made("Overfit", 49)}), "");
  EXPECT_EQ(LeaderOf(Made("Overfit", 400), std::vector{Made("NLPSequenceRatio", 24)}), "");
  // Reported later but begun no later: it takes over.
  EXPECT_TRUE(TakesOver(Made("TrainValSkew", 49), Made("Overfit", 60)));
  EXPECT_FALSE(TakesOver(Made("Overfit", 49), Made("TrainValSkew", 60)));
}

TEST(Grouping, GradientsOfZero_FollowFromDeadUnits_AndAGraphThatIsCutDoesNot) {
  Finding zero = Made("NoGradient", 47);
  zero.cause = "zero_gradient";
  Finding cut = zero;
  cut.cause = "no_gradient";
  for (const char* units : {"DeadRelu", "SaturatedActivation"}) {
    const std::vector<Finding> known = {Made(units, 3)};
    EXPECT_EQ(LeaderOf(zero, known), known[0].id);
    EXPECT_EQ(LeaderOf(cut, known), "");
  }
  EXPECT_EQ(LeaderOf(zero, std::vector{Made("LossShapeMismatch", 3)}), "");
}

TEST(Grouping, UpdatesThatOutgrowTheWeights_LeadADivergenceThatBeganLater) {
  Finding divergence = Made("ExplodingTensor", 220);
  divergence.cause = "divergence";
  Finding updates = Made("WeightUpdateRatio", 231);
  updates.since_step = 208;
  EXPECT_TRUE(TakesOver(updates, divergence));
  EXPECT_EQ(LeaderOf(updates, std::vector{divergence}), "");
  updates.since_step = 231;  // the loss diverged first
  EXPECT_FALSE(TakesOver(updates, divergence));
  EXPECT_EQ(LeaderOf(updates, std::vector{divergence}), divergence.id);
  divergence.cause = "value";  // of a tensor: not a known consequence
  updates.since_step = 208;
  EXPECT_FALSE(TakesOver(updates, divergence));
}

TEST(Grouping, InARun_TheLeaderIsWrittenIntoTheFollower) {
  testing::FakeTrial trial;
  for (int step = 0; step < 400; ++step) {
    trial.Step().Loss(step < 100 ? 1.0 : 1e6).Tensor("w", format::Role::kWeight, {1, 2});
  }
  EvaluatorOptions options;
  options.choices = ParseChoices("ExplodingTensor,LossNotDecreasing", ParameterSet::kLuff).value();
  auto evaluator = Evaluator::Open(options, nullptr).value();
  ASSERT_TRUE(evaluator->Advance(trial, 1000).ok());
  ASSERT_TRUE(evaluator->Finish(trial).ok());
  const auto& findings = evaluator->findings();
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].rule, "ExplodingTensor");
  EXPECT_EQ(findings[0].leader, "");
  EXPECT_EQ(findings[1].rule, "LossNotDecreasing");
  EXPECT_EQ(findings[1].leader, findings[0].id);
}

}  // namespace
}  // namespace luff::rules::grouping_test

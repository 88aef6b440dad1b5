#include "rules/engine/grouping.h"

#include <algorithm>
#include <limits>
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

TEST(Grouping, ALossThatRises_FollowsFromATermWithoutAGraph) {
  Finding term = Made("NoGradient", 47);
  term.cause = "graphless_term";
  Finding rising = Made("LossNotDecreasing", 200);
  rising.cause = "rising";
  EXPECT_EQ(LeaderOf(rising, std::vector{term}), "NoGradient@47");
  Finding cut = Made("NoGradient", 47);
  cut.cause = "no_gradient";
  EXPECT_EQ(LeaderOf(cut, std::vector{term}), "NoGradient@47");
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

Finding Caused(const char* rule, const char* cause, std::int64_t step) {
  Finding finding = Made(rule, step);
  finding.id += cause;
  finding.cause = cause;
  finding.since_step = 0;
  return finding;
}

TEST(Grouping, OneOfARulesCausesLeadsAnother) {
  const auto leads = [](const Finding& first, const Finding& second) {  // reported in either order
    return LeaderOf(second, std::vector{first}) == first.id && TakesOver(first, second) &&
           !TakesOver(second, first);
  };
  EXPECT_TRUE(leads(Caused("WeightUpdateRatio", "damped", 31), Caused("WeightUpdateRatio", "creeping", 124)));
  EXPECT_TRUE(leads(Caused("WeightUpdateRatio", "faint", 16), Caused("WeightUpdateRatio", "small", 60)));
  EXPECT_TRUE(leads(Caused("TrainValSkew", "absent", 19), Caused("TrainValSkew", "mixed", 19)));
  EXPECT_FALSE(leads(Caused("TrainValSkew", "skew", 19), Caused("TrainValSkew", "mixed", 19)));
}

TEST(Grouping, ALossScaledToNothing_LeadsTheShrinkingThatItLeaves) {
  const Finding faint = Caused("WeightUpdateRatio", "faint", 16);
  const Finding shrinkage = Caused("RegularizationDominates", "shrinkage", 5);
  EXPECT_EQ(LeaderOf(faint, std::vector{shrinkage}), "");
  EXPECT_TRUE(TakesOver(faint, shrinkage));
  // Any other small update follows from the shrinking.
  EXPECT_EQ(LeaderOf(Caused("WeightUpdateRatio", "small", 16), std::vector{shrinkage}), shrinkage.id);
}

TEST(Grouping, WeightsThatOnlyShrink_DoNotGiveNaN) {
  for (const char* cause : {"shrinkage", "coupled_decay"}) {
    const Finding shrinkage = Caused("RegularizationDominates", cause, 5);
    EXPECT_EQ(LeaderOf(Caused("NonFinite", "nonfinite", 20), std::vector{shrinkage}), "");
    EXPECT_FALSE(TakesOver(shrinkage, Caused("NonFinite", "nonfinite", 1)));
  }
}

TEST(Grouping, ARateThatThrowsTheWeights_LeadsTheDecayThatItMakesTooStrong) {
  const Finding shrinkage = Caused("RegularizationDominates", "shrinkage", 8);
  for (const char* cause : {"thrown", "overwritten"}) {
    const Finding rate = Caused("WeightUpdateRatio", cause, 33);
    EXPECT_EQ(LeaderOf(rate, std::vector{shrinkage}), "");
    EXPECT_TRUE(TakesOver(rate, shrinkage));
    EXPECT_EQ(LeaderOf(shrinkage, std::vector{Caused("WeightUpdateRatio", cause, 3)}),
              Caused("WeightUpdateRatio", cause, 3).id);
  }
  EXPECT_EQ(LeaderOf(Caused("WeightUpdateRatio", "large", 33), std::vector{shrinkage}), shrinkage.id);
}

TEST(Grouping, UnitsThatDieAfterARateThatIsFarTooHigh_FollowFromIt) {
  for (const char* cause : {"leaps", "thrown"}) {
    Finding rate = Caused("WeightUpdateRatio", cause, 32);
    rate.since_step = 1;
    EXPECT_EQ(LeaderOf(Caused("DeadRelu", "dead", 40), std::vector{rate}), rate.id);
    Finding dead = Caused("DeadRelu", "dead", 3);
    dead.since_step = 3;
    EXPECT_TRUE(TakesOver(rate, dead));
    dead.since_step = 0;  // they were dead before
    EXPECT_FALSE(TakesOver(rate, dead));
  }
}

TEST(Grouping, WhatSaturatesAfterWeightsWereReplaced_FollowsFromIt) {
  const Finding rate = Caused("WeightUpdateRatio", "replaced", 33);
  for (const char* rule : {"DeadRelu", "SaturatedActivation", "VanishingGradient"})
    EXPECT_EQ(LeaderOf(Caused(rule, "", 56), std::vector{rate}), rate.id) << rule;
  EXPECT_EQ(LeaderOf(Caused("LabelNoise", "unrelated", 56), std::vector{rate}), "");
}

TEST(Grouping, WhatAWeightOfZeroKills_FollowsFromIt) {
  Finding zeros = Caused("SymmetricUnits", "zeros", 3);
  zeros.since_step = 0;
  Finding dead = Caused("DeadRelu", "dead", 2);
  dead.since_step = 0;
  EXPECT_TRUE(TakesOver(zeros, dead));
  EXPECT_EQ(LeaderOf(Caused("ConstantOutput", "", 40), std::vector{zeros}), zeros.id);
}

TEST(Grouping, TargetsThatSeemUnrelated_FollowFromSortedBatchesAndLostColumns) {
  const Finding unrelated = Caused("LabelNoise", "unrelated", 204);
  for (const Finding& cause : {Caused("BatchOrder", "sorted", 152), Caused("TrainValSkew", "absent", 74),
                               Caused("TrainValSkew", "mixed", 74)})
    EXPECT_EQ(LeaderOf(unrelated, std::vector{cause}), cause.id);
  EXPECT_EQ(LeaderOf(unrelated, std::vector{Caused("TrainValSkew", "skew", 74)}), "");
  EXPECT_EQ(LeaderOf(unrelated, std::vector{Caused("BatchOrder", "same_order", 74)}), "");
}

TEST(Grouping, WhatCostsLittle_LeadsNoFailure) {
  for (const auto& [rule, cause] :
       std::vector<std::pair<const char*, const char*>>{{"BatchOrder", "same_order"},
                                                        {"FrozenAtInit", "freeze_without_effect"},
                                                        {"ScheduleCollapse", "other_optimizer"}}) {
    EXPECT_EQ(LeaderOf(Caused("Underfit", "underfit", 90), std::vector{Caused(rule, cause, 5)}), "") << rule;
    EXPECT_FALSE(TakesOver(Caused(rule, cause, 99), Caused("Underfit", "underfit", 90))) << rule;
  }
}

TEST(Grouping, LayersThatStartTooLarge_LeadTheLossThatIsTooHigh) {
  const Finding layers = Caused("PoorWeightInitialization", "scale", 3);
  EXPECT_TRUE(TakesOver(layers, Caused("InitialLoss", "too_high", 2)));
  EXPECT_FALSE(TakesOver(layers, Caused("InitialLoss", "too_low", 2)));
}

TEST(Grouping, WhatOutlastsItsLeader_StandsOnItsOwn) {
  testing::FakeTrial trial;
  for (int step = 0; step < 40; ++step) {
    trial.Step().Tensor("w", format::Role::kWeight, {1, 2});
    if (step > 0 && step < 6) trial.Event(format::EventKind::kGradientKept, 0, 8);
    if (step > 3) trial.Loss(std::numeric_limits<double>::quiet_NaN());
    trial.Event(format::EventKind::kOptimizerStep, 0);
  }
  EvaluatorOptions options;
  options.choices = ParseChoices("GradientNotCleared,NonFinite", ParameterSet::kLuff).value();
  auto evaluator = Evaluator::Open(options, nullptr).value();
  ASSERT_TRUE(evaluator->Advance(trial, 4).ok());
  ASSERT_TRUE(evaluator->Advance(trial, 5).ok());
  ASSERT_EQ(evaluator->findings().size(), 2U);
  EXPECT_EQ(evaluator->findings()[1].leader, evaluator->findings()[0].id);
  ASSERT_TRUE(evaluator->Advance(trial, 1000).ok());
  EXPECT_TRUE(evaluator->findings()[0].healed);
  EXPECT_EQ(evaluator->findings()[1].rule, "NonFinite");
  EXPECT_EQ(evaluator->findings()[1].leader, "");
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

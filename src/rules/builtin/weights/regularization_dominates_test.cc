#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "base/format.h"
#include "rules/testing/recorder.h"

namespace luff::rules::regularization_dominates_test {
namespace {

using format::Role;
using testing::FakeTrial;
using testing::FindingsOf;

// Updates of one weight that multiply its norm by `factor`. Each moves it by `move_factor` times the loss of
// norm.
FakeTrial Shrinking(double factor, double move_factor, double loss_slope) {
  FakeTrial trial;
  double norm = 4;
  for (int step = 0; step < 8; ++step) {
    trial.Step().Loss(2.3 - loss_slope * step);
    if (step > 0) {
      const double before = norm;
      norm *= factor;
      trial.Difference("a.weight", 1, (before - norm) * move_factor, before, 4);
    }
    trial.Tensor("a.weight", Role::kWeight, {norm});
    trial.Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, 0.1)
        .Scalar("optimizer/SGD.group0.weight_decay", Role::kOptimizerSetting, 1);
  }
  return trial;
}

TEST(RegularizationDominates, UpdatesThatOnlyShrink_StopAfterFour) {
  const auto findings = FindingsOf(Shrinking(0.9, 1, 0), "RegularizationDominates", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 4);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_NE(findings[0].why.find("weight decay 1"), std::string::npos);
}

TEST(RegularizationDominates, GradientsThatAreLonger_SlowDecay_AndLearning_AreSilent) {
  for (const FakeTrial& trial : {Shrinking(0.9, 1.7, 0), Shrinking(0.9995, 1, 0), Shrinking(0.9, 1, 0.2)})
    EXPECT_TRUE(FindingsOf(trial, "RegularizationDominates", ParameterSet::kLuff).empty());
}

// A loss that falls once the finding stands: by learning, by one easy batch, or as what the model adds dies
// out.
TEST(RegularizationDominates, HealsOnceTheModelLearns_NotByABatch_NorWithWeightsThatHaveDied) {
  const auto healed = [](double norm_then, int low, int of) {
    FakeTrial trial = Shrinking(0.9, 1, 0);
    for (int step = 8; step < 40; ++step) {
      trial.Step().Loss(step % of < low ? 1.0 : 2.3);
      trial.Difference("a.weight", 1, 0.5, norm_then, 4).Tensor("a.weight", Role::kWeight, {norm_then});
    }
    const auto findings = FindingsOf(trial, "RegularizationDominates", ParameterSet::kLuff);
    EXPECT_EQ(findings.size(), 1U);
    return !findings.empty() && findings[0].healed;
  };
  EXPECT_TRUE(healed(1.5, 1, 1));
  EXPECT_FALSE(healed(1.5, 1, 16));
  EXPECT_FALSE(healed(0.1, 1, 1));
}

TEST(RegularizationDominates, ATableMostOfWhoseRowsAreNotLookedUp_IsSilent_BesideOtherWeights) {
  for (const bool beside : {true, false}) {
    FakeTrial trial;
    double norm = 40;
    for (int step = 0; step < 8; ++step) {
      trial.Step().Loss(2.3);
      if (step > 0) {
        trial.Difference("table.weight", 1, 0.1 * norm, norm, 4);
        norm *= 0.9;
        if (beside) trial.Difference("b.weight", 1, 0.1, 1, 4);
      }
      trial.Tensor("table.weight", Role::kWeight, {norm}).Tensor("b.weight", Role::kWeight, {1});
      trial.Place("table.weight", "table", "Embedding");
      trial.Scalar("optimizer/Adam.group0.lr", Role::kOptimizerSetting, 0.1)
          .Scalar("optimizer/Adam.group0.weight_decay", Role::kOptimizerSetting, 1e-5);
    }
    EXPECT_EQ(FindingsOf(trial, "RegularizationDominates", ParameterSet::kLuff).empty(), beside);
  }
}

TEST(RegularizationDominates, WeightsThatStayWhereTheyWereShrunkTo_AreNotHealed_UnlessTheyGrowBack) {
  for (const double then : {1.0, 1.6}) {
    FakeTrial trial = Shrinking(0.9, 1, 0);
    double norm = 4 * std::pow(0.9, 7);
    for (int step = 8; step < 16; ++step) {
      trial.Step().Loss(2.3);
      const double before = norm;
      norm = std::min(4.0, norm * then);
      trial.Difference("a.weight", 1, 0.5, before, 4).Tensor("a.weight", Role::kWeight, {norm});
    }
    const auto findings = FindingsOf(trial, "RegularizationDominates", ParameterSet::kLuff);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].healed, then > 1);
  }
}

TEST(RegularizationDominates, WithoutWeightDecay_OneWeightThatShrinks_OrALossWithoutOthers_IsNoPenalty) {
  const std::vector<std::tuple<bool, std::string, bool>> cases = {{true, "loss_output_0", false},
                                                                  {false, "loss_output_0", false},
                                                                  {true, "MSELoss_output_0", false},
                                                                  {true, "MSELoss_output_0", true},
                                                                  {false, "MSELoss_output_0", true}};
  for (const auto& [all, loss, others] : cases) {
    FakeTrial trial;
    double norm = 4;
    for (int step = 0; step < 8; ++step) {
      trial.Step().Loss(2.3, loss);
      if (step == 0 && others) trial.EventJson(R"({"kind": "summands", "losses": 1, "others": 1})");
      const double before = norm;
      if (step > 0) norm *= 0.9;
      for (const char* name : {"a.weight", "b.weight", "c.weight", "d.weight"}) {
        const bool shrinks = all || std::string_view(name) == "a.weight";
        const double now = shrinks ? norm : 0.1;
        const double moved = shrinks ? before - norm : 1e-3;
        if (step > 0) trial.Difference(name, 1, moved, shrinks ? before : 0.1, 4);
        trial.Tensor(name, Role::kWeight, {now});
      }
    }
    const auto findings = FindingsOf(trial, "RegularizationDominates", ParameterSet::kLuff);
    const bool penalty = all && (others || loss == "loss_output_0");
    ASSERT_EQ(findings.size(), penalty ? 1U : 0U);
    if (penalty) {
      EXPECT_NE(findings[0].remedy.find("penalty"), std::string::npos);
      EXPECT_EQ(findings[0].severity, Severity::kWarn);
    }
  }
}

// ---- WeightUpdateRatio: the first updates

FakeTrial First(double gradient, double change, double rate_growth, const char* document = "{}") {
  FakeTrial trial;
  trial.SetDocument("model", document);
  for (int step = 0; step < 12; ++step) {
    trial.Step().Loss(1.1);
    trial.Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, 1e-6 * (1 + rate_growth * step));
    trial.Tensor("gradient/a.weight", Role::kGradient, {gradient});
    trial.Tensor("a.weight", Role::kWeight, {1});
    if (step > 0) trial.Difference("a.weight", change, change, 1, 1);
  }
  return trial;
}

TEST(WeightUpdateRatio, UpdatesWithoutHope_WarnAfterSix) {
  const auto findings = FindingsOf(First(0.5, 3e-7, 0), "WeightUpdateRatio", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "small");
  EXPECT_EQ(findings[0].step, 6);
}

TEST(WeightUpdateRatio, AWeightThatBeganAtZero_DoesNotHealWhatMovesNothing) {
  for (const double moved : {1e-11, 1e-3}) {  // by the other optimizer's rate, of weights of size 1
    FakeTrial trial = First(0.5, 3e-12, 0);
    double before = 0;
    for (int step = 12; step < 40; ++step) {
      trial.Step().Loss(moved == 1e-3 ? 0.5 : 1.1);
      trial.Tensor("gradient/a.weight", Role::kGradient, {0.5}).Tensor("a.weight", Role::kWeight, {1});
      trial.Difference("a.weight", 3e-12, 3e-12, 1, 1);
      trial.Tensor("gradient/b.weight", Role::kGradient, {0.5});
      trial.Tensor("b.weight", Role::kWeight, {before + moved});
      trial.Difference("b.weight", moved, moved, before, 1);
      before += moved;
    }
    const auto findings = FindingsOf(trial, "WeightUpdateRatio", ParameterSet::kLuff);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "small");
    EXPECT_EQ(findings[0].healed, moved == 1e-3);
  }
}

// Weights that move by and by, as under a warm-up that is stepped once per epoch, gain nothing by that.
TEST(WeightUpdateRatio, UpdatesWithoutHope_HealOnceTheLossHasGained_OrTheRateIsFarAbove) {
  const auto healed = [](double loss, double raised, double sign) {
    FakeTrial trial = First(0.5, 3e-12, 0);
    for (int step = 12; step < 80; ++step) {
      trial.Step().Loss(loss * (step % 2 == 0 ? sign : 1));
      trial.Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, 1e-6 * raised);
      trial.Tensor("gradient/a.weight", Role::kGradient, {0.5}).Tensor("a.weight", Role::kWeight, {1});
      trial.Difference("a.weight", 1e-4, 1e-4, 1, 1);
    }
    const auto findings = FindingsOf(trial, "WeightUpdateRatio", ParameterSet::kLuff);
    EXPECT_EQ(findings.size(), 1U);
    return !findings.empty() && findings[0].healed;
  };
  EXPECT_FALSE(healed(1.1, 14, 1));
  EXPECT_FALSE(healed(1.05, 14, 1));
  EXPECT_TRUE(healed(0.9, 14, 1));
  EXPECT_TRUE(healed(1.1, 100, 1));
  EXPECT_TRUE(healed(1.1, 14, -1));  // a loss without a level
}

TEST(WeightUpdateRatio, UpdatesWithoutHope_OfAScheduleThatHasNotStepped_SaySo) {
  const char* made = R"({"optimizers": [{"name": "SGD", "number": 0, "type": "SGD", "scheduled": true}]})";
  const auto findings = FindingsOf(First(0.5, 3e-7, 0, made), "WeightUpdateRatio", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].causes.front().find("once per epoch"), std::string::npos);
}

TEST(WeightUpdateRatio, WarmUp_AScheduler_LargeGradients_AndMovingWeights_AreSilent) {
  EXPECT_TRUE(FindingsOf(First(0.5, 3e-7, 1), "WeightUpdateRatio", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(First(0.5, 3e-7, 0, R"({"schedulers": [{"type": "StepLR"}]})"), "WeightUpdateRatio",
                         ParameterSet::kLuff)
                  .empty());
  EXPECT_TRUE(FindingsOf(First(500, 3e-7, 0), "WeightUpdateRatio", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(First(0.01, 3e-5, 0), "WeightUpdateRatio", ParameterSet::kLuff).empty());
}

// Four batches of 32 rows, again and again. Each update moves the weight by `change`.
FakeTrial Passing(double change, double rate_growth = 0, bool fresh_rows = false, bool collected = false,
                  bool measured = false) {
  FakeTrial trial;
  const auto rows = [](int batch) {
    std::vector<double> values;
    for (int i = 0; i < 64; ++i) values.push_back(batch * 1000.0 + i);
    return values;
  };
  for (int pass = 0; collected && pass < 4; ++pass)
    trial.Step(query::Mode::kEval).Sample("sample/Net_input_0", {32, 2}, rows(pass));
  for (int step = 0; step < 48; ++step) {
    for (int pass = 0; measured && step > 0 && step % 4 == 0 && pass < 4; ++pass)
      trial.Step(query::Mode::kEval).Sample("sample/Net_input_0", {32, 2}, rows(pass));
    trial.Step().Loss(1.0);
    trial.Sample("sample/Net_input_0", {32, 2}, rows(fresh_rows ? step : step % 4));
    trial.Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, 1e-4 * (1 + rate_growth * step));
    trial.Tensor("gradient/a.weight", Role::kGradient, {1.0}).Tensor("a.weight", Role::kWeight, {1});
    if (step > 0) trial.Difference("a.weight", change, change, 1, 1);
  }
  return trial;
}

TEST(WeightUpdateRatio, TwoPassesThatCannotHaveGainedAnything_Warn) {
  const auto findings = FindingsOf(Passing(3e-5), "WeightUpdateRatio", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "creeping");
  EXPECT_LT(findings[0].step, 16);
  EXPECT_TRUE(FindingsOf(Passing(3e-3), "WeightUpdateRatio", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(Passing(3e-5, 0.1), "WeightUpdateRatio", ParameterSet::kLuff).empty());  // warm-up
  EXPECT_TRUE(
      FindingsOf(Passing(3e-5, 0, true), "WeightUpdateRatio", ParameterSet::kLuff).empty());  // one pass
  // A policy collects rows, learns them for a few updates, and collects others.
  EXPECT_TRUE(FindingsOf(Passing(3e-5, 0, false, true), "WeightUpdateRatio", ParameterSet::kLuff).empty());
  // A script counts by hand, after each pass, what is right of what was learnt.
  EXPECT_EQ(FindingsOf(Passing(3e-5, 0, false, false, true), "WeightUpdateRatio", ParameterSet::kLuff).size(),
            1U);
  const auto with = [](const std::string& type, double change) {
    FakeTrial trial = Passing(change);
    trial.SetDocument("model", R"({"models": [], "optimizers": [{"number": 0, "name": "One", "type": ")" +
                                   type + R"(", "groups": []}]})");
    return FindingsOf(trial, "WeightUpdateRatio", ParameterSet::kLuff).size();
  };
  EXPECT_EQ(with("Adam", 3e-5), 1U);
  EXPECT_EQ(with("RAdam", 3e-5), 0U);  // it warms up by itself
  EXPECT_EQ(with("RAdam", 1e-7), 1U);  // but not to this
}

std::vector<Finding> WithEps(const std::string& type, const std::string& eps, const std::string& lr,
                             double faint = 0) {
  FakeTrial trial;
  trial.SetDocument(
      "model",
      R"({"models": [{"name": "Net", "type": "Net", "parameters": [{"path": "a", "name": "a.weight",
      "requires_grad": true, "optimizer": "One"}, {"path": "a", "name": "a.bias",
      "requires_grad": true, "optimizer": "One"}]}], "optimizers": [{"number": 0, "name": "One", "type": ")" +
          type + R"(", "groups": [{"parameters": 2, "settings": {"eps": )" + eps + R"(, "lr": )" + lr +
          "}}]}]}");
  std::vector<double> gradient(400, 1e-3);
  for (int step = 0; step < 40; ++step) {
    if (faint > 0 && step == 16)
      trial.EventJson(fmt::format(R"({{"kind": "faint_loss", "weight": {}}})", faint));
    trial.Step()
        .Loss(1.0)
        .Tensor("gradient/a.weight", Role::kGradient, gradient)
        .Tensor("gradient/a.bias", Role::kGradient, {0.3});  // few parameters may have larger ones
  }
  return FindingsOf(trial, "WeightUpdateRatio", ParameterSet::kLuff);
}

TEST(WeightUpdateRatio, AnEpsFarAboveTheGradients_Warns_UnlessTheRateMakesUpForIt) {
  const auto findings = WithEps("Adam", "1.0", "1e-3");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "damped");
  EXPECT_EQ(findings[0].step, 31);
  EXPECT_EQ(WithEps("Adam", "1.0", "0.01").size(), 1U);  // the largest of its usual rates
  EXPECT_TRUE(WithEps("Adam", "1.0", "0.1").empty());
  EXPECT_TRUE(WithEps("Adam", "1e-2", "1e-5").empty());
  EXPECT_TRUE(WithEps("RMSprop", "1.0", "1e-3").empty());
  EXPECT_TRUE(WithEps("AdamW", "1e-8", "1e-3").empty());
}

TEST(WeightUpdateRatio, ALossScaledDownToNothing_Warns_UnlessTheOptimizerMakesUpForIt) {
  const auto findings = WithEps("SGD", "0", "0.1", 1e-6);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "faint");
  EXPECT_NE(findings[0].why.find("a rate of 1e-07"), std::string::npos) << findings[0].why;
  EXPECT_TRUE(WithEps("SGD", "0", "100", 1e-6).empty());
  EXPECT_TRUE(WithEps("SGD", "0", "0.1").empty());
  EXPECT_TRUE(WithEps("Adam", "1e-8", "1e-3", 1e-6).empty());  // Adam's steps are those of the loss
  EXPECT_EQ(WithEps("Adam", "0.1", "1e-2", 1e-6).size(), 1U);  // its eps is larger than the gradients
}

TEST(WeightUpdateRatio, WeightsThrownAwayAndALossThatLeavesItsLevel_Stop) {
  for (const double peak : {400.0, 8.0}) {
    FakeTrial trial;
    for (int step = 0; step < 10; ++step) {
      trial.Step().Loss(step < 3 ? 2.3 : peak).Tensor("a.weight", Role::kWeight, {1});
      if (step > 0) trial.Difference("a.weight", 1, step == 3 ? 9.5 : 0.5, 1, 1);
    }
    const auto findings = FindingsOf(trial, "WeightUpdateRatio", ParameterSet::kLuff);
    ASSERT_EQ(findings.size(), peak > 100 ? 1U : 0U);
    if (peak < 100) continue;
    EXPECT_EQ(findings[0].cause, "thrown");
    EXPECT_EQ(findings[0].step, 4);
  }
}

// Losses of 40 updates; the first update moves all weights by `jolt` times their size, the others by a
// hundredth. The model has `layers`, and one more that begins at zero.
std::vector<Finding> FromTheStart(double jolt, const std::function<double(int)>& loss, int layers = 2) {
  FakeTrial trial;
  for (int step = 0; step < 40; ++step) {
    trial.Step().Loss(loss(step));
    for (int layer = 0; layer < layers; ++layer) {
      const std::string name = std::string(1, static_cast<char>('a' + layer)) + ".weight";
      trial.Tensor(name, Role::kWeight, {1});
      if (step > 0) trial.Difference(name, 1, step == 1 ? jolt : 0.01, 1, 1);
    }
    trial.Tensor("zero.weight", Role::kWeight, {0.001 * step});
    if (step > 0) trial.Difference("zero.weight", 1, 0.001, 0.001 * (step - 1), 1);
  }
  return FindingsOf(trial, "WeightUpdateRatio", ParameterSet::kLuff);
}

TEST(WeightUpdateRatio, FirstUpdatesThatMakeTheLossManyTimesThatOfTheDrawnModel_Warn) {
  const auto comes_back = [](int step) { return step == 0 ? 2.3 : step < 4 ? 9.0 : 2.2 - 0.01 * step; };
  const auto stays = [](int step) { return step == 0 ? 2.3 : step < 4 ? 9.0 : 2.6; };
  for (const auto& loss : std::vector<std::function<double(int)>>{comes_back, stays}) {
    const auto findings = FromTheStart(0.5, loss);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "leaps");
    EXPECT_EQ(findings[0].severity, Severity::kWarn);
    EXPECT_EQ(findings[0].since_step, 1);
    EXPECT_NE(findings[0].what.find("3.9 times"), std::string::npos) << findings[0].what;
    EXPECT_TRUE(FromTheStart(0.1, loss).empty());  // not by an update that was too large
    // One layer has nothing to lose, nor what began at zero.
    EXPECT_TRUE(FromTheStart(0.5, loss, 1).empty());
    EXPECT_TRUE(FromTheStart(0.5, loss, 0).empty());
  }
}

TEST(WeightUpdateRatio, ALeapThatEndsFarBelowTheDrawnModel_Heals) {
  const auto level = [](double last) {
    return [last](int step) { return step == 0 ? 2.3 : step < 4 ? 9.0 : step < 30 ? 2.0 : last; };
  };
  const auto learnt = FromTheStart(0.5, level(0.01));
  ASSERT_EQ(learnt.size(), 1U);
  EXPECT_TRUE(learnt[0].healed);
  EXPECT_FALSE(FromTheStart(0.5, level(0.5)).at(0).healed);
}

TEST(WeightUpdateRatio, LossesThatRiseOtherwise_AreNoLeap) {
  // One batch; losses that vary tenfold between batches; a loss that rises slowly; one below zero.
  EXPECT_TRUE(FromTheStart(0.5, [](int step) { return step == 2 ? 90.0 : 2.0; }).empty());
  EXPECT_TRUE(
      FromTheStart(0.5, [](int step) { return step % 7 < 2 ? 9.0 + step % 3 : 0.5 + 0.1 * step; }).empty());
  EXPECT_TRUE(FromTheStart(0.5, [](int step) { return 1 + 0.1 * step; }).empty());
  EXPECT_TRUE(FromTheStart(0.5, [](int step) { return step == 0 ? 0.1 : step < 4 ? 0.9 : -0.2; }).empty());
}

// Adam with a decay of 0.5: steps of one size for each element, while the norm falls from 4 by `factor` a
// step.
FakeTrial Coupled(const std::string& optimizer, double factor, double gradient, double loss_slope) {
  FakeTrial trial;
  double norm = 4;
  for (int step = 0; step < 16; ++step) {
    trial.Step().Loss(2.3 - loss_slope * step);
    const double before = norm;
    if (step > 0) norm *= factor;
    // The step is longer than what the norm loses: its direction is that of signs.
    if (step > 0) trial.Difference("a.weight", 1, 2 * (before - norm), before, 4);
    trial.Tensor("a.weight", Role::kWeight, {norm});
    trial.Tensor("gradient/a.weight", Role::kGradient, {gradient});
    trial.Scalar("optimizer/" + optimizer + ".group0.lr", Role::kOptimizerSetting, 0.1)
        .Scalar("optimizer/" + optimizer + ".group0.weight_decay", Role::kOptimizerSetting, 0.5);
  }
  return trial;
}

TEST(RegularizationDominates, CoupledDecayThatOutweighsTheGradient_IsTold) {
  const auto findings =
      FindingsOf(Coupled("Adam", 0.95, 0.1, 0), "RegularizationDominates", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "coupled_decay");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].remedy.find("AdamW"), std::string::npos);
}

TEST(RegularizationDominates, DecoupledDecay_ALargerGradient_AndAFallingLoss_AreNoCoupledDecay) {
  for (const FakeTrial& trial : {Coupled("AdamW", 0.95, 0.1, 0), Coupled("Adam", 0.95, 1, 0),
                                 Coupled("Adam", 0.95, 0.1, 0.1), Coupled("Adam", 0.99, 0.1, 0)})
    EXPECT_TRUE(FindingsOf(trial, "RegularizationDominates", ParameterSet::kLuff).empty());
}

// The sum falls with the penalty that it contains; the part that a call of cross_entropy gave does not.
TEST(RegularizationDominates, ASumThatFallsWithItsPenalty_IsNoLearning) {
  for (const double part_slope : {0.0, 0.2}) {
    FakeTrial trial;
    double norm = 4;
    for (int step = 0; step < 8; ++step) {
      const double before = norm;
      if (step > 0) norm *= 0.8;
      trial.Step().Loss(2.3 + 100 * norm, "loss_output_0");
      trial.Scalar("CrossEntropyLoss_part_0", Role::kOther, 2.3 - part_slope * step);
      for (const char* name : {"a.weight", "b.weight"}) {
        if (step > 0) trial.Difference(name, 1, before - norm, before, 4);
        trial.Tensor(name, Role::kWeight, {norm});
      }
    }
    const auto findings = FindingsOf(trial, "RegularizationDominates", ParameterSet::kLuff);
    EXPECT_EQ(findings.size(), part_slope > 0 ? 0U : 1U);
  }
}

TEST(RegularizationDominates, ScalesOfNormalisations_HideNothing) {
  for (const char* type : {"BatchNorm1d", "Linear"}) {
    FakeTrial both;
    double norm = 4;
    for (int step = 0; step < 8; ++step) {
      both.Step().Loss(2.3);
      const double before = norm;
      if (step > 0) norm *= 0.9;
      if (step > 0)
        both.Difference("a.weight", 1, before - norm, before, 4).Difference("n.weight", 1, 1, 40, 4);
      both.Tensor("a.weight", Role::kWeight, {norm}).Tensor("n.weight", Role::kWeight, {40});
      both.Place("n.weight", "n", type);
      both.Scalar("optimizer/SGD.group0.weight_decay", Role::kOptimizerSetting, 1);
    }
    EXPECT_EQ(FindingsOf(both, "RegularizationDominates", ParameterSet::kLuff).size(),
              std::string_view(type) == "Linear" ? 0U : 1U);
  }
}

}  // namespace
}  // namespace luff::rules::regularization_dominates_test

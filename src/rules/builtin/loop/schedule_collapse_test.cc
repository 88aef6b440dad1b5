#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::schedule_collapse_test {
namespace {

using format::EventKind;
using format::Role;
using testing::FakeTrial;
using testing::FindingsOf;

FakeTrial Rates(int steps, double (*rate)(int)) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step)
    trial.Step().Loss(2.3).Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, rate(step));
  return trial;
}

TEST(ScheduleCollapse, DecayPerBatch_IsForecast_AndStopsWhenItHasCome) {
  const FakeTrial trial = Rates(100, [](int step) { return 0.05 * std::pow(0.8, step); });
  const auto findings = FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 16);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_FALSE(findings[0].forecast);
  FakeTrial early = Rates(30, [](int step) { return 0.05 * std::pow(0.8, step); });
  const auto forecast = FindingsOf(early, "ScheduleCollapse", ParameterSet::kLuff);
  ASSERT_EQ(forecast.size(), 1U);
  EXPECT_TRUE(forecast[0].forecast);
  EXPECT_EQ(forecast[0].lead_steps, 15);  // 0.8^31 is the first power below 1e-3
}

TEST(ScheduleCollapse, CosineWarmUpRestartAndSlowDecay_AreSilent) {
  const FakeTrial cosine = Rates(400, [](int step) { return 0.5 * (1 + std::cos(3.14159265 * step / 400)); });
  const FakeTrial warm_up = Rates(400, [](int step) { return step < 300 ? step / 300.0 : 1; });
  const FakeTrial restart =
      Rates(400, [](int step) { return 0.5001 * (1 + std::cos(3.14159265 * (step % 50) / 50)); });
  const FakeTrial slow = Rates(400, [](int step) { return std::pow(0.99, step); });
  for (const FakeTrial* trial : {&cosine, &warm_up, &restart, &slow})
    EXPECT_TRUE(FindingsOf(*trial, "ScheduleCollapse", ParameterSet::kLuff).empty());
}

TEST(ScheduleCollapse, OneGroupOfTwo_IsSilent) {
  FakeTrial trial;
  for (int step = 0; step < 200; ++step) {
    trial.Step()
        .Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, step < 20 ? 1 : 0)
        .Scalar("optimizer/SGD.group1.lr", Role::kOptimizerSetting, 1);
  }
  EXPECT_TRUE(FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff).empty());
}

TEST(ScheduleCollapse, ASchedulePlannedForUpdatesAndSteppedPerEpoch_IsNamedAtTheEnd) {
  const auto told = [](int planned, int every, int updates) {
    FakeTrial trial;
    trial.SetDocument("model", R"({"schedulers": [{"type": "OneCycleLR", "settings": {"total_steps": )" +
                                   std::to_string(planned) + "}}]}");
    for (int step = 0; step < updates; ++step) {
      trial.Step().Event(format::EventKind::kOptimizerStep, 0, 0);
      if (step % every == every - 1) trial.Event(format::EventKind::kSchedulerStep, 0, 0);
    }
    return FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff);
  };
  const auto findings = told(100, 20, 100);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "hardly_begun");
  EXPECT_EQ(findings[0].step, 99);
  EXPECT_TRUE(told(100, 1, 100).empty());    // as planned
  EXPECT_TRUE(told(5, 20, 100).empty());     // planned for epochs
  EXPECT_TRUE(told(1000, 20, 100).empty());  // stopped early
}

TEST(ScheduleCollapse, ACosineOfEpochsSteppedPerBatch_IsNamedAtTheEnd) {
  const auto told = [](int planned, int step_every, const char* type) {
    FakeTrial trial;
    trial.SetDocument("model", std::string(R"({"schedulers": [{"type": ")") + type +
                                   R"(", "settings": {"T_max": )" + std::to_string(planned) + "}}]}");
    for (int step = 0; step < 200; ++step) {
      trial.Step().Event(format::EventKind::kOptimizerStep, 0, 0);
      if (step % step_every == step_every - 1) trial.Event(format::EventKind::kSchedulerStep, 0, 0);
      if (step % 20 == 19) trial.Step(query::Mode::kEval);
    }
    return FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff);
  };
  const auto findings = told(10, 1, "CosineAnnealingLR");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "overrun");
  EXPECT_TRUE(told(10, 20, "CosineAnnealingLR").empty());  // once per epoch, as planned
  EXPECT_TRUE(told(200, 1, "CosineAnnealingLR").empty());  // planned for updates
  EXPECT_TRUE(told(40, 1, "CosineAnnealingLR").empty());   // cycles of another length: meant so
  EXPECT_TRUE(told(10, 1, "CosineAnnealingWarmRestarts").empty());
  EXPECT_TRUE(told(5, 1, "CosineAnnealingLR").empty());  // it swings on purpose
}

/// A scheduler was made for the optimizer of two groups; `rate` of the first one.
template <typename Rate>
std::vector<Finding> Unstepped(int updates, int evaluate_every, int step_every, Rate rate,
                               double other = 1e-3, bool loads = false, bool scheduled = true) {
  FakeTrial trial;
  trial.SetDocument("model",
                    R"({"optimizers": [{"name": "Adam", "number": 0, "type": "Adam", "scheduled": )" +
                        std::string(scheduled ? "true" : "false") + R"(, "groups": [
      {"settings": {"lr": 0.001, "initial_lr": 0.001}, "parameters": 2}]}]})");
  for (int step = 0; step < updates; ++step) {
    trial.Step().Event(format::EventKind::kOptimizerStep, 0, 0);
    if (loads && step == 0) trial.EventJson(R"({"kind": "load_state_dict", "matched": 2})");
    if (step_every > 0 && step % step_every == step_every - 1)
      trial.Event(format::EventKind::kSchedulerStep, 0, 0);
    trial.Scalar("optimizer/Adam.group0.lr", Role::kOptimizerSetting, rate(step));
    trial.Scalar("optimizer/Adam.group1.lr", Role::kOptimizerSetting, other);
    if (step % evaluate_every == evaluate_every - 1) trial.Step(query::Mode::kEval);
  }
  return FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff);
}

TEST(ScheduleCollapse, ASchedulerThatNeverSteps_IsNamedAtTheEnd) {
  const auto constant = [](int) { return 1e-3; };
  const auto findings = Unstepped(100, 30, 0, constant);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "never_stepped");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].remedy.find("scheduler.step()"), std::string::npos);
  EXPECT_TRUE(Unstepped(100, 30, 30, constant).empty());  // stepped; its milestones are later
  // Another library's schedule, or an optimizer's state that a checkpoint gave, leaves initial rates, too.
  EXPECT_TRUE(Unstepped(100, 30, 0, constant, 1e-3, false, false).empty());
  EXPECT_TRUE(Unstepped(100, 70, 0, constant).empty());  // ended in its second epoch
  EXPECT_TRUE(
      Unstepped(100, 30, 0, [](int step) { return 1e-3 / (1 + step); }).empty());  // another's schedule
}

TEST(ScheduleCollapse, AWarmUpThatOutlastsTheTraining_IsNamedAtTheEnd) {
  const auto told = [](int updates, const auto& rate, int evaluate_every = 30) {
    FakeTrial trial;
    trial.SetDocument("model", R"({"optimizers": [{"name": "Adam", "number": 0, "type": "Adam", "groups": [
      {"settings": {"lr": 1e-6, "initial_lr": 0.001}, "parameters": 2}]}]})");
    for (int step = 0; step < updates; ++step) {
      trial.Step()
          .Event(format::EventKind::kOptimizerStep, 0, 0)
          .Event(format::EventKind::kSchedulerStep, 0, 0);
      trial.Scalar("optimizer/Adam.group0.lr", Role::kOptimizerSetting, rate(step));
      if (step % evaluate_every == evaluate_every - 1) trial.Step(query::Mode::kEval);
    }
    return FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff);
  };
  const auto over = [](int steps) {
    return [steps](int step) { return 1e-3 * std::min(1.0, (step + 1.0) / steps); };
  };
  const auto findings = told(200, over(1000));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "warm_up_unfinished");
  EXPECT_TRUE(told(200, over(100)).empty());
  EXPECT_TRUE(told(200, over(210)).empty());        // it has all but ended
  EXPECT_TRUE(told(80, over(1000)).empty());        // too short to say
  EXPECT_TRUE(told(200, over(1000), 300).empty());  // ended in its first epoch
  EXPECT_TRUE(told(200, [](int step) { return 1e-7 * std::pow(1.04, step); }).empty());  // a range test
  EXPECT_TRUE(told(200, [](int step) { return 1e-3 * (step + 1); }).empty());  // one that goes beyond
  EXPECT_TRUE(told(200, [](int) { return 1e-4; }).empty());
}

// The rates of one group, given 1e-3: `rate` of the number of the epoch, each of `every` updates.
template <typename Rate>
std::vector<Finding> OfEpochs(int updates, int every, const Rate& rate, bool evaluates_last = true,
                              const char* outcome = "completed") {
  FakeTrial trial;
  trial.Ends(outcome);
  trial.SetDocument("model", R"({"optimizers": [{"name": "Adam", "number": 0, "type": "Adam", "groups": [
    {"settings": {"lr": 1e-6, "initial_lr": 0.001}, "parameters": 2}]}]})");
  for (int step = 0; step < updates; ++step) {
    trial.Step().Event(format::EventKind::kOptimizerStep, 0, 0);
    trial.Scalar("optimizer/Adam.group0.lr", Role::kOptimizerSetting, rate(step / every));
    if (step % every == every - 1) trial.Event(format::EventKind::kSchedulerStep, 0, 0);
    if (step == updates - 1 && evaluates_last) trial.Step(query::Mode::kEval);
  }
  return FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff);
}

TEST(ScheduleCollapse, AWarmUpOfUpdatesSteppedPerEpoch_IsNamedAtTheEnd) {
  const auto noam = [](int epoch) { return 1e-3 * std::max(epoch, 1) / 4000; };  // as many make the start
  const auto findings = OfEpochs(700, 50, noam);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "warm_up_per_epoch");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  const auto linear = [](int steps) {
    return [steps](int k) { return 1e-3 * std::min(1.0, (k + 1.0) / steps); };
  };
  EXPECT_EQ(OfEpochs(500, 50, linear(500)).size(), 1U);
  EXPECT_TRUE(OfEpochs(500, 50, linear(5)).empty());     // meant so
  EXPECT_TRUE(OfEpochs(150, 50, linear(40)).empty());    // a long one, tried for three epochs
  EXPECT_TRUE(OfEpochs(5000, 50, linear(100)).empty());  // and carried through
  EXPECT_TRUE(OfEpochs(100, 50, linear(500)).empty());   // too short to say
  EXPECT_TRUE(OfEpochs(60, 4, linear(500)).empty());     // steps of a few updates: accumulation, rounds
  EXPECT_TRUE(OfEpochs(500, 50, linear(500), true, "failed").empty());
  EXPECT_TRUE(OfEpochs(500, 50, [](int k) { return 1e-3 * (1 + k); }).empty());
  EXPECT_TRUE(OfEpochs(500, 50, [](int k) { return 1e-3 * std::pow(0.9, k); }).empty());
}

TEST(ScheduleCollapse, ADecayOfAllUpdatesSteppedPerEpoch_IsNamedByItsSlope) {
  const auto falls = [](double steps) { return [steps](int k) { return 1e-3 * (1 - k / steps); }; };
  const auto findings = OfEpochs(500, 50, falls(500));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "hardly_begun");
  EXPECT_TRUE(OfEpochs(500, 50, falls(10)).empty());
  EXPECT_TRUE(OfEpochs(500, 50, falls(100)).empty());   // stopped early
  EXPECT_TRUE(OfEpochs(500, 50, falls(1000)).empty());  // another length: nothing is known of it
}

TEST(ScheduleCollapse, ARateThatGrowsAndGrows_IsNamedAtTheEnd) {
  const auto grows = [](double times) { return [times](int k) { return 1e-3 * std::pow(times, k); }; };
  const auto findings = OfEpochs(150, 1, grows(1.02));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "grows");
  EXPECT_EQ(OfEpochs(500, 50, grows(2)).size(), 1U);
  EXPECT_TRUE(OfEpochs(150, 1, grows(1.02), false).empty());  // a test of rates evaluates nothing
  EXPECT_TRUE(OfEpochs(150, 1, grows(1.005)).empty());        // twice the given rate
  EXPECT_TRUE(OfEpochs(150, 1, grows(1.1)).empty());          // a test of rates goes through all of them
  EXPECT_TRUE(OfEpochs(500, 20, grows(2)).empty());
  EXPECT_TRUE(OfEpochs(150, 1, [](int k) { return 1e-7 * std::pow(1.05, k); }).empty());  // a warm-up
  EXPECT_TRUE(OfEpochs(150, 1, [](int k) { return 1e-3 * (1 + std::sin(k)); }).empty());
}

TEST(ScheduleCollapse, AGroupThatWasGivenZero_BesideTheLeastRateOfACosine_IsNamed) {
  const auto told = [](double given, double reached) {
    FakeTrial trial;
    trial.SetDocument("model", R"({"optimizers": [{"name": "Adam", "number": 0, "type": "Adam", "groups": [
      {"settings": {"lr": 0.1, "initial_lr": )" +
                                   std::to_string(given) + R"(}, "parameters": 2},
      {"settings": {"lr": 0.1, "initial_lr": 0.1}, "parameters": 2}]}],
      "schedulers": [{"type": "CosineAnnealingLR"}]})");
    for (int step = 0; step < 200; ++step) {
      trial.Step().Event(format::EventKind::kOptimizerStep, 0, 0);
      trial.Scalar("optimizer/Adam.group0.lr", Role::kOptimizerSetting, step * reached / 199);
      trial.Scalar("optimizer/Adam.group1.lr", Role::kOptimizerSetting, 0.1);
    }
    return FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff);
  };
  const auto findings = told(0, 1e-3);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "zero_rate");
  EXPECT_TRUE(told(0.001, 1e-3).empty());  // a warm-up
  EXPECT_TRUE(told(0, 0.05).empty());      // a stage that thaws
}

TEST(ScheduleCollapse, AGroupOfRateZero_IsNamedAtTheEnd) {
  const auto zero = [](int) { return 0.0; };
  const auto findings = Unstepped(200, 30, 10, zero);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "zero_rate");
  EXPECT_EQ(findings[0].tensor, "optimizer/Adam.group0.lr");
  EXPECT_TRUE(Unstepped(50, 30, 10, zero).empty());
  EXPECT_TRUE(Unstepped(200, 30, 10, zero, 1e-3, true).empty());  // weights that were loaded
  EXPECT_TRUE(
      Unstepped(200, 30, 10, [](int step) { return step < 150 ? 0.0 : 1e-3; }).empty());  // thawed later
}

// ---- ClipSaturated, which reads settings as well

FakeTrial Clips(double norm, double slope) {
  FakeTrial trial;
  for (int step = 0; step < 100; ++step) {
    trial.Step().Loss(2.3 - slope * step + 0.001 * (step % 3));
    trial.Scalar("clip/norm", Role::kOptimizerSetting, norm).Scalar("clip/limit", Role::kOptimizerSetting, 1);
  }
  return trial;
}

TEST(ClipSaturated, EveryStepCutByMuchAndNothingLearnt_Warns) {
  const auto findings = FindingsOf(Clips(51, 0), "ClipSaturated", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 63);
  EXPECT_EQ(findings[0].since_step, 0);
}

TEST(ClipSaturated, CutByLess_OrALossThatFalls_IsSilent) {
  EXPECT_TRUE(FindingsOf(Clips(50, 0), "ClipSaturated", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(Clips(500, 0.02), "ClipSaturated", ParameterSet::kLuff).empty());
}

// Gradients of three weights, of 32 elements each; `cut` sets what is below zero to zero, `ends` at that
// step.
FakeTrial OneSided(bool cut, double zeros, int tensors, int steps, int ends) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step) {
    trial.Step().Loss(2.3);
    for (int k = 0; k < tensors; ++k) {
      std::vector<double> values;
      for (int i = 0; i < 32; ++i) {
        const double value = std::sin(1.0 + step * 7 + k * 13 + i);
        values.push_back(i < 32 * zeros ? 0 : cut && step < ends ? std::max(value, 0.0) : value);
      }
      trial.Tensor("gradient/w" + std::to_string(k), Role::kGradient, values);
    }
  }
  return trial;
}

TEST(ClipSaturated, GradientsCutOffAtZero_AreTold) {
  const auto findings = FindingsOf(OneSided(true, 0, 3, 40, 40), "ClipSaturated", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "one_sided");
  EXPECT_EQ(findings[0].step, 23);
  EXPECT_EQ(findings[0].since_step, 0);
  EXPECT_NE(findings[0].what.find("below zero"), std::string::npos);
  EXPECT_TRUE(FindingsOf(OneSided(true, 0, 3, 60, 40), "ClipSaturated", ParameterSet::kLuff).at(0).healed);
}

TEST(ClipSaturated, BothSigns_DeadUnits_OneFactorOrTwo_AndGradientsOfOneSignWithoutZeros_AreSilent) {
  EXPECT_TRUE(FindingsOf(OneSided(false, 0, 3, 60, 0), "ClipSaturated", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(OneSided(false, 0.5, 3, 60, 0), "ClipSaturated", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(OneSided(true, 0, 2, 60, 60), "ClipSaturated", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(OneSided(true, 0, 3, 60, 20), "ClipSaturated", ParameterSet::kLuff).empty());
  FakeTrial factors;  // a factorisation far from its target: every element asks for more
  for (int step = 0; step < 60; ++step) {
    factors.Step().Loss(2.3);
    for (const char* name : {"gradient/a", "gradient/b", "gradient/c"})
      factors.Tensor(name, Role::kGradient, std::vector<double>(32, -1.0 - step));
  }
  EXPECT_TRUE(FindingsOf(factors, "ClipSaturated", ParameterSet::kLuff).empty());
}

enum class Place { kBefore, kBetween, kBehind };

// Updates of one optimizer or of two in turn, each with a call that clips to `limit`.
FakeTrial ClipsAt(Place place, double limit = 1, double norm = 5, std::uint32_t optimizers = 1, int calls = 1,
                  bool backward = true) {
  FakeTrial trial;
  const auto clip = [&] {
    for (int i = 0; i < calls; ++i)
      trial.Event(EventKind::kClipGrad, format::kNoId, std::bit_cast<std::uint64_t>(limit));
  };
  for (int step = 0; step < 40; ++step) {
    trial.Step().Loss(2.3 - 0.01 * step);
    trial.Tensor("gradient/w", Role::kGradient, {norm});
    trial.Event(EventKind::kZeroGrad, 0);
    if (place == Place::kBefore) clip();
    if (backward) trial.Event(EventKind::kBackward);
    if (place == Place::kBetween) clip();
    trial.Event(EventKind::kOptimizerStep, static_cast<std::uint32_t>(step) % optimizers);
    if (place == Place::kBehind) clip();
  }
  return trial;
}

TEST(ClipSaturated, ClippedBeforeBackwardOrBehindTheUpdate_IsTold) {
  for (const Place place : {Place::kBefore, Place::kBehind}) {
    const auto findings = FindingsOf(ClipsAt(place), "ClipSaturated", ParameterSet::kLuff);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "misplaced");
    EXPECT_EQ(findings[0].step, 15);
    EXPECT_NE(findings[0].what.find(place == Place::kBehind ? "after optimizer" : "before loss"),
              std::string::npos);
  }
}

TEST(ClipSaturated, ClippedInBetween_NormsThatAreLookedAt_HooksAndSeveralOptimizersAreSilent) {
  EXPECT_TRUE(FindingsOf(ClipsAt(Place::kBetween), "ClipSaturated", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(ClipsAt(Place::kBehind, 1e9), "ClipSaturated", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(ClipsAt(Place::kBehind, 1, 0.5), "ClipSaturated", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(ClipsAt(Place::kBefore, 1, 5, 1, 3), "ClipSaturated", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(ClipsAt(Place::kBehind, 1, 5, 2), "ClipSaturated", ParameterSet::kLuff).empty());
  for (const Place place : {Place::kBefore, Place::kBehind})  // gradients that are set by hand
    EXPECT_TRUE(FindingsOf(ClipsAt(place, 1, 5, 1, 1, false), "ClipSaturated", ParameterSet::kLuff).empty());
}

// A ReduceLROnPlateau, which gets `metric` after each evaluation, whose losses are `loss`, one for each of
// its `batches`, of whose 80 rows the share `right` is answered rightly; the rate falls from the fourth
// evaluation on.
std::vector<Finding> Plateau(const char* mode, double (*metric)(int), double (*loss)(int),
                             double (*right)(int) = nullptr, bool lowers = true, int batches = 1) {
  FakeTrial trial;
  trial.SetDocument(
      "model", std::string(R"({"schedulers": [{"type": "ReduceLROnPlateau", "settings": {"mode": ")") + mode +
                   R"("}}]})");
  for (int epoch = 0; epoch < 8; ++epoch) {
    for (int step = 0; step < 10; ++step) {
      trial.Step().Loss(2.0 / (1 + epoch)).Event(EventKind::kOptimizerStep, 0);
      trial.Scalar("optimizer/Adam.group0.lr", Role::kOptimizerSetting, lowers && epoch > 3 ? 0.01 : 0.1);
      if (step == 0 && epoch > 0)
        trial.Event(EventKind::kSchedulerStep, 0, std::bit_cast<std::uint64_t>(metric(epoch - 1)));
    }
    for (int batch = 0; batch < batches; ++batch) {
      trial.Step(query::Mode::kEval);
      if (loss != nullptr) trial.Loss(loss(epoch));
      if (right == nullptr) continue;
      std::vector<double> scores;
      for (int row = 0; row < 80; ++row) {
        scores.push_back(row < 80 * right(epoch) ? 1 : 0);
        scores.push_back(0.5);
      }
      trial.Sample("sample/CrossEntropyLoss_input_0", {80, 2}, scores);
      trial.Sample("sample/CrossEntropyLoss_input_1", {80}, std::vector<double>(80), DType::kInt64);
    }
  }
  return FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff);
}

double Accuracy(int epoch) { return 0.5 + 0.0625 * epoch; }
double Falling(int epoch) { return 2.1 / (1 + epoch); }
double Rising(int epoch) { return 1 + 0.2 * epoch; }
double Worse(int epoch) { return 0.9375 - 0.0625 * epoch; }

TEST(ScheduleCollapse, AnAccuracyThatIsToFall_OrALossThatIsToRise_IsNamed) {
  const auto accuracy = Plateau("min", Accuracy, Falling, Accuracy);
  ASSERT_EQ(accuracy.size(), 1U);
  EXPECT_EQ(accuracy[0].cause, "plateau_mode");
  EXPECT_NE(accuracy[0].remedy.find("mode='max'"), std::string::npos);
  EXPECT_EQ(accuracy[0].step, 40);
  ASSERT_EQ(
      Plateau("min", [](int epoch) { return 100 * Accuracy(epoch); }, Falling, Accuracy, true, 2).size(), 1U);
  ASSERT_EQ(Plateau("min", Accuracy, nullptr, Accuracy).size(), 1U);  // no loss
  const auto itself = Plateau("max", [](int epoch) { return 2.0 / (1 + epoch); }, nullptr);
  ASSERT_EQ(itself.size(), 1U);
  EXPECT_NE(itself[0].why.find("loss of the training"), std::string::npos);
  const auto loss = Plateau("max", Falling, Falling);
  ASSERT_EQ(loss.size(), 1U);
  EXPECT_NE(loss[0].remedy.find("mode='min'"), std::string::npos);
}

TEST(ScheduleCollapse, AnEpochInThePlaceOfAMetric_IsNamed) {
  const auto from = [](double (*metric)(int), const char* mode, bool lowers) {
    return Plateau(mode, metric, Falling, nullptr, lowers);
  };
  const auto epoch = [](int number) { return 1.0 * number; };
  for (const char* mode : {"min", "max"}) {
    const auto findings = from(epoch, mode, false);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "plateau_counter");
  }
  EXPECT_TRUE(from([](int number) { return 0.5 + number; }, "max", false).empty());
  EXPECT_TRUE(from([](int number) { return 2.0 * number; }, "max", false).empty());
  EXPECT_TRUE(
      from([](int number) { return number < 6 ? 1.0 * number : 5; }, "max", false).empty());  // levels
  EXPECT_TRUE(from([](int number) { return number < 3 ? 1.0 * number : 2; }, "max", false).empty());
  EXPECT_TRUE(
      from([](int number) { return number < 5 ? 1.0 * number : 4; }, "max", false).empty());  // levels
}

TEST(ScheduleCollapse, MetricsThatGoTheirWay_OverfittingAndRatesThatStay_AreSilent) {
  EXPECT_TRUE(Plateau("max", Accuracy, Falling, Accuracy).empty());
  EXPECT_TRUE(Plateau("min", Falling, Falling).empty());
  EXPECT_TRUE(
      Plateau("min", Rising, Rising).empty());  // the validation loss rises from the first evaluation on
  // So it does beside losses of rows of the training.
  EXPECT_TRUE(Plateau("min", Rising, Falling, Accuracy, true, 2).empty());
  EXPECT_TRUE(Plateau("min", Accuracy, Falling, Accuracy, false).empty());
  // With weights of classes the loss falls while fewer of the frequent one are right, and more answers are
  // wrong.
  EXPECT_TRUE(Plateau("max", Worse, Falling, Worse).empty());
  EXPECT_TRUE(Plateau("min", [](int epoch) { return 1 - Worse(epoch); }, Falling, Worse).empty());
  EXPECT_TRUE(Plateau("min", [](int epoch) { return 1 - Worse(epoch); }, nullptr, Worse).empty());
  EXPECT_TRUE(Plateau("max", [](int epoch) { return 1.0 / (1 + epoch); }, nullptr).empty());  // some score
  EXPECT_TRUE(Plateau("min", Rising, nullptr).empty());  // no share of rows, and no loss to compare with
  EXPECT_TRUE(Plateau(
                  "min", [](int epoch) { return epoch == 3 ? 0.1 : Accuracy(epoch); }, Falling, Accuracy)
                  .empty());
}

TEST(ScheduleCollapse, ARateWhereAFactorIsExpected_IsNamedAtTheEnd) {
  const auto told = [](const std::string& type, double given, const auto& rate) {
    FakeTrial trial;
    trial.SetDocument("model", R"({"schedulers": [{"type": ")" + type + R"(", "settings": {}}],
      "optimizers": [{"name": "Adam", "number": 0, "type": "Adam", "groups": [
      {"settings": {"lr": 1e-6, "initial_lr": )" +
                                   std::to_string(given) + R"(}, "parameters": 2}]}]})");
    for (int step = 0; step < 60; ++step)
      trial.Step().Scalar("optimizer/Adam.group0.lr", Role::kOptimizerSetting, rate(step));
    return FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff);
  };
  const auto findings = told("LambdaLR", 1e-3, [](int step) { return 1e-6 * std::pow(0.95, step / 10); });
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "rate_for_factor");
  EXPECT_TRUE(told("StepLR", 1e-3, [](int) { return 1e-6; }).empty());
  EXPECT_TRUE(told("LambdaLR", 1e-3, [](int step) { return 1e-6 * (1 + step); }).empty());  // a warm-up
  EXPECT_TRUE(told("LambdaLR", 1e-3, [](int) { return 1e-4; }).empty());
  EXPECT_TRUE(told("LambdaLR", 1.0, [](int) { return 1.0; }).empty());
}

}  // namespace
}  // namespace luff::rules::schedule_collapse_test

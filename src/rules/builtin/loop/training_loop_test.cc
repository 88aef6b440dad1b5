#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// Rules about the training loop: gradients that are kept, skipped updates, modes, optimizers made again and
// again.
namespace luff::rules::training_loop_test {
namespace {

using format::EventKind;
using format::Role;
using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial, const std::string& rule) {
  return testing::FindingsOf(trial, rule, ParameterSet::kLuff);
}

constexpr std::uint64_t kTraining = 1U << 8, kSomeTrain = 1U << 9, kSomeEval = 1U << 10,
                        kGradients = 1U << 11, kTold = 1U << 12;

TEST(GradientNotCleared, ThreeUpdatesInARow_Stop) {
  FakeTrial trial;
  for (int step = 0; step < 6; ++step) {
    trial.Step();
    if (step > 0) trial.Event(EventKind::kGradientKept, 0, 8);
    trial.Event(EventKind::kOptimizerStep, 0);
  }
  const auto findings = FindingsOf(trial, "GradientNotCleared");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 3);
  EXPECT_EQ(findings[0].since_step, 1);
  EXPECT_EQ(findings[0].last_step, 5);
}

TEST(GradientNotCleared, NowAndThen_IsSilent_AndACleanUpdateHeals) {
  FakeTrial trial;
  for (int step = 0; step < 60; ++step) {
    trial.Step();
    if (step % 3 != 0) trial.Event(EventKind::kGradientKept, 0, 8);
    trial.Event(EventKind::kOptimizerStep, 0);
  }
  EXPECT_TRUE(FindingsOf(trial, "GradientNotCleared").empty());
  FakeTrial healed;
  for (int step = 0; step < 10; ++step) {
    healed.Step();
    if (step > 0 && step < 5) healed.Event(EventKind::kGradientKept, 0, 8);
    healed.Event(EventKind::kOptimizerStep, 0);
  }
  EXPECT_TRUE(FindingsOf(healed, "GradientNotCleared").at(0).healed);
}

TEST(GradientNotCleared, ClearedOnceAnEpoch_IsOneFindingThatStands) {
  FakeTrial trial;
  for (int step = 0; step < 400; ++step) {
    trial.Step();
    const bool looked = step < 64 || step % 16 == 0;  // as the hook does
    if (step % 20 > 0 && looked) trial.Event(EventKind::kGradientKept, 0, 8);
    trial.Event(EventKind::kOptimizerStep, 0);
  }
  const auto findings = FindingsOf(trial, "GradientNotCleared");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_FALSE(findings[0].healed);
  EXPECT_EQ(findings[0].since_step, 1);
}

TEST(GradientNotCleared, OptimizersThatAreMadeAgainAndAgain_AreOneFault_TwoAtOnceAreTwo) {
  FakeTrial again;
  FakeTrial at_once;
  for (std::uint32_t step = 0; step < 100; ++step) {
    again.Step();
    if (step % 10 > 0) again.Event(EventKind::kGradientKept, step / 10, 8);
    again.Event(EventKind::kOptimizerStep, step / 10);
    at_once.Step();
    for (std::uint32_t number = 0; number < 2; ++number) {
      if (step > 0) at_once.Event(EventKind::kGradientKept, number, 8);
      at_once.Event(EventKind::kOptimizerStep, number);
    }
  }
  const auto findings = FindingsOf(again, "GradientNotCleared");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].since_step, 1);
  EXPECT_EQ(findings[0].last_step, 99);
  EXPECT_EQ(FindingsOf(at_once, "GradientNotCleared").size(), 2U);
}

TEST(GradientNotCleared, LookedAtEvery16thUpdate_StaysOpen) {
  FakeTrial trial;
  for (int step = 0; step < 200; ++step) {
    trial.Step();
    const int number = step + 1;
    if (step > 0 && (number <= 65 || number % 16 == 1)) trial.Event(EventKind::kGradientKept, 0, 8);
    trial.Event(EventKind::kOptimizerStep, 0);
  }
  const auto findings = FindingsOf(trial, "GradientNotCleared");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_FALSE(findings[0].healed);
}

FakeTrial Skipping(int skipped_until, bool with_gradients = false) {
  FakeTrial trial;
  for (int step = 0; step < 60; ++step) {
    trial.Step().Event(EventKind::kBackward);
    if (with_gradients) trial.Tensor("gradient/w", Role::kGradient, {1});
    if (step >= skipped_until) trial.Event(EventKind::kOptimizerStep, 0);
    trial.Event(EventKind::kZeroGrad, 0);
  }
  return trial;
}

TEST(StepSkipped, GradientsMadeAndCleared_Stop_AScaleThatAdaptsAndClosuresAreSilent) {
  const auto findings = FindingsOf(Skipping(100), "StepSkipped");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 23);
  EXPECT_EQ(findings[0].since_step, 0);
  EXPECT_TRUE(FindingsOf(Skipping(20), "StepSkipped").empty());
  EXPECT_TRUE(FindingsOf(Skipping(100, true), "StepSkipped").empty());
}

TEST(StepSkipped, PassesAfterMoreUpdates_MayBeLookedAt_AsManyAreTold) {
  const auto trained_first = [](int updates, int passes, int rows = 16, int looked_at = 16) {
    FakeTrial trial;
    for (int step = 0; step < updates + passes; ++step) {
      trial.Step().Event(EventKind::kZeroGrad, 0).Event(EventKind::kBackward);
      const bool trains = step < updates;
      if (trains) trial.Event(EventKind::kOptimizerStep, 0);
      const std::int64_t count = trains ? rows : looked_at;
      if (step < 16 || step % 4 == 0)
        trial.Sample("sample/Net_input_0", {count, 1},
                     std::vector<double>(static_cast<std::size_t>(count), step));
    }
    return trial;
  };
  EXPECT_TRUE(FindingsOf(trained_first(128, 32), "StepSkipped").empty());  // a Fisher information
  EXPECT_TRUE(FindingsOf(trained_first(40, 40), "StepSkipped").empty());
  EXPECT_TRUE(FindingsOf(trained_first(40, 300, 16, 1), "StepSkipped").empty());  // of single samples
  EXPECT_EQ(FindingsOf(trained_first(40, 300, 16, 8), "StepSkipped").size(), 1U);
  const auto findings = FindingsOf(trained_first(40, 60), "StepSkipped");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_GE(findings[0].step, 79);
}

TEST(StepSkipped, AccumulationOverManyBatches_IsSilent_AScalersWordCounts) {
  FakeTrial accumulation;
  FakeTrial scaler;
  for (int step = 0; step < 200; ++step) {
    accumulation.Step().Event(EventKind::kBackward);
    if (step % 64 == 63) accumulation.Event(EventKind::kOptimizerStep, 0).Event(EventKind::kZeroGrad, 0);
    scaler.Step()
        .Event(EventKind::kBackward)
        .Event(EventKind::kStepSkipped, 0)
        .Event(EventKind::kZeroGrad, 0);
  }
  EXPECT_TRUE(FindingsOf(accumulation, "StepSkipped").empty());
  EXPECT_EQ(FindingsOf(scaler, "StepSkipped").at(0).step, 23);
}

// Passes over ten batches; `batches` of them are worked through, and cleared, before each update.
FakeTrial OneUpdateOf(int batches, int passes) {
  FakeTrial trial;
  for (int step = 0; step < 10 * passes; ++step) {
    std::vector<double> rows;
    for (int i = 0; i < 8; ++i) rows.push_back(std::sin(1.0 + 8 * (step % 10) + i));
    trial.Step().Sample("sample/Net_input_0", {4, 2}, rows);
    trial.Event(EventKind::kZeroGrad, 0).Event(EventKind::kBackward);
    if (step % batches == batches - 1)
      trial.Event(EventKind::kOptimizerStep, 0).Event(EventKind::kOptimizerStep, 1);
  }
  return trial;
}

TEST(StepSkipped, OneUpdateInAPass_IsTold_OneOfSomeBatchesIsSilent) {
  const auto findings = FindingsOf(OneUpdateOf(10, 8), "StepSkipped");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "rarely");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 29);
  EXPECT_EQ(findings[0].since_step, 1);
  EXPECT_FALSE(findings[0].healed);
  EXPECT_TRUE(FindingsOf(OneUpdateOf(5, 8), "StepSkipped").empty());  // gradients gathered by hand, attacks
  EXPECT_TRUE(FindingsOf(OneUpdateOf(1, 8), "StepSkipped").empty());
}

// Before each update so many losses were made, of as many batches or of one, from a step on.
FakeTrial LastOfSeveral(int losses, bool other_batches, int from = 0, int steps = 12) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step) {
    trial.Step();
    for (int i = 0; i < losses; ++i) {
      trial.Event(EventKind::kForward, 0);
      if (step == 0 && i + 1 < losses) continue;  // not there any more when the run was opened
      trial.Event(EventKind::kBatch, 0, static_cast<std::uint64_t>(other_batches ? 100 * step + i : step));
    }
    if (step >= from && step < 32)  // as many as the hook tells
      trial.EventJson(R"({"kind": "unused_losses", "loss": "CrossEntropyLoss", "used": 1, "made": )" +
                      std::to_string(losses) + "}");
    trial.Event(EventKind::kZeroGrad, 0).Event(EventKind::kBackward).Event(EventKind::kOptimizerStep, 0);
  }
  return trial;
}

TEST(StepSkipped, OnlyTheLastLossOfAPassIsUsed_IsTold_SearchesAndLateEvaluationsAreSilent) {
  const auto findings = FindingsOf(LastOfSeveral(10, true), "StepSkipped");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "unused");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 3);
  EXPECT_EQ(findings[0].since_step, 0);
  EXPECT_NE(findings[0].remedy.find("inside the loop over batches"), std::string::npos);
  EXPECT_FALSE(FindingsOf(LastOfSeveral(10, true, 0, 50), "StepSkipped").at(0).healed);
  EXPECT_TRUE(FindingsOf(LastOfSeveral(10, false), "StepSkipped").empty());
  EXPECT_TRUE(FindingsOf(LastOfSeveral(10, true, 1), "StepSkipped").empty());
  EXPECT_TRUE(FindingsOf(LastOfSeveral(3, true), "StepSkipped").empty());
}

TEST(StepSkipped, BatchThatIsChosenByItsLoss_IsSilent) {
  FakeTrial trial;
  for (int step = 0; step < 12; ++step) {
    trial.Step();
    for (const int batch : {0, 1, 2, 3, 4, step % 5}) {  // the last pass is the one that is used
      trial.Event(EventKind::kForward, 0);
      trial.Event(EventKind::kBatch, 0, static_cast<std::uint64_t>(100 * step + batch));
    }
    trial.EventJson(R"({"kind": "unused_losses", "loss": "CrossEntropyLoss", "used": 1, "made": 6})");
    trial.Event(EventKind::kZeroGrad, 0).Event(EventKind::kBackward).Event(EventKind::kOptimizerStep, 0);
  }
  EXPECT_TRUE(FindingsOf(trial, "StepSkipped").empty());
}

// Before each update so many passes were made; `rows_again`: their rows come again in later steps; a loader
// was started for each of so many updates.
FakeTrial LastPassOfSeveral(int passes, int loader, bool rows_again = false, int from = 1, int until = 12,
                            int started = 1) {
  FakeTrial trial;
  trial.SetDocument("loaders",
                    R"({"loaders": [{"number": 0, "type": "DataLoader", "batch_size": 10, "samples": )" +
                        std::to_string(10 * loader) + "}]}");
  for (int step = 0; step < 30; ++step) {
    const int made = step < until ? passes : 1;
    std::vector<double> rows;
    for (int i = 0; i < 8; ++i) rows.push_back(std::sin(1.0 + 8 * (rows_again ? step % 2 : step) + i));
    trial.Step().Sample("sample/Net_input_0", {4, 2}, rows);
    if (step > 0 && step % started == 0)
      trial.Phases({{format::Phase::kDataStart, 1}, {format::Phase::kForward, 1}});
    for (int i = 0; i < made; ++i) {
      trial.Event(EventKind::kForward, 0);
      if (step > 0 || i + 1 == made)
        trial.Event(EventKind::kBatch, 0, static_cast<std::uint64_t>(100 * step + i));
    }
    if (step >= from && step < std::min(until, 16))
      trial.EventJson(R"({"kind": "unused_passes", "model": "Net", "used": 1, "made": )" +
                      std::to_string(made) + "}");
    trial.Event(EventKind::kBackward).Event(EventKind::kOptimizerStep, 0);
  }
  return trial;
}

TEST(StepSkipped, OnlyTheLastForwardPassIsUsed_IsToldWhereTheyAreAPassOverTheData) {
  const auto findings = FindingsOf(LastPassOfSeveral(10, 10, false, 1, 30), "StepSkipped");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "unused");
  EXPECT_EQ(findings[0].step, 3);
  EXPECT_FALSE(findings[0].healed);  // after the last word of the hook, too
  EXPECT_NE(findings[0].what.find("4 of 40 forward passes"), std::string::npos);
  EXPECT_EQ(FindingsOf(LastPassOfSeveral(9, 10), "StepSkipped").size(), 1U);  // drop_last
  EXPECT_EQ(FindingsOf(LastPassOfSeveral(10, 0, true), "StepSkipped").size(), 1U);
  EXPECT_TRUE(FindingsOf(LastPassOfSeveral(10, 10, false, 1, 20), "StepSkipped").at(0).healed);
}

TEST(StepSkipped, PassesOfOtherNumbers_FewOnes_AndLateOnesAreSilent) {
  EXPECT_TRUE(FindingsOf(LastPassOfSeveral(10, 10, false, 1, 30, 10), "StepSkipped").empty());  // unrolled
  for (const FakeTrial& trial : {LastPassOfSeveral(10, 40), LastPassOfSeveral(10, 0), LastPassOfSeveral(3, 3),
                                 LastPassOfSeveral(10, 10, false, 2), LastPassOfSeveral(10, 10, false, 1, 3)})
    EXPECT_TRUE(FindingsOf(trial, "StepSkipped").empty());
}

// Two optimizers, of `a` and of `b`: the second steps at each `every`-th step, if at all.
FakeTrial TwoOptimizers(int every, bool clears, const char* holder = "Adam_2", int shared = 0) {
  FakeTrial trial;
  trial.SetDocument("model",
                    std::string(R"({"models": [{"name": "Net", "type": "Net", "modules": [], "parameters": [
      {"path": "a", "name": "Net_a", "shape": [4], "requires_grad": true, "optimizer": "Adam", "group": 0},
      {"path": "b", "name": "Net_b", "shape": [4], "requires_grad": true, "optimizer": ")") +
                        holder +
                        R"(", "group": 0}]}], "optimizers": [
      {"number": 0, "name": "Adam", "type": "Adam", "groups": [{"settings": {}, "parameters": 1}], "foreign": 0},
      {"number": 1, "name": "Adam_2", "type": "Adam", "groups": [{"settings": {}, "parameters": 1}], "foreign": 0, "shared": )" +
                        std::to_string(shared) + "}]}");
  for (int step = 0; step < 60; ++step) {
    trial.Step()
        .Event(EventKind::kZeroGrad, 0)
        .Event(EventKind::kBackward)
        .Event(EventKind::kOptimizerStep, 0);
    if (clears) trial.Event(EventKind::kZeroGrad, 1);
    trial.Event(EventKind::kBackward);
    if (every > 0 && step % every == every - 1) trial.Event(EventKind::kOptimizerStep, 1);
  }
  return trial;
}

TEST(StepSkipped, OneOfSeveralOptimizersNeverSteps_IsTold_RareOnesWrappersAndUntouchedOnesAreSilent) {
  const auto findings = FindingsOf(TwoOptimizers(0, true), "StepSkipped");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "never");
  EXPECT_NE(findings[0].what.find("Adam_2"), std::string::npos);
  EXPECT_TRUE(FindingsOf(TwoOptimizers(40, true), "StepSkipped").empty());
  EXPECT_TRUE(FindingsOf(TwoOptimizers(0, false), "StepSkipped").empty());
  EXPECT_TRUE(FindingsOf(TwoOptimizers(0, true, "Adam"), "StepSkipped").empty());
  EXPECT_TRUE(FindingsOf(TwoOptimizers(0, true, "Adam_2", 1), "StepSkipped").empty());
}

// Backward passes of a model that an optimizer holds. `rows`: batches after which the data comes again; 0:
// never.
struct Unstepped {
  int steps = 60, rows = 0, moves_at = -1, step_at = -1;
  bool training = true, of_input = false, optimizer = true;
  const char* outcome = "completed";
};
FakeTrial WithoutStep(const Unstepped& how) {
  FakeTrial trial;
  trial.SetDocument("model",
                    std::string(R"({"models": [{"name": "Net", "type": "Net", "modules": [], "parameters": [
      {"path": "a", "name": "Net_a", "shape": [2], "requires_grad": true, "optimizer": )") +
                        (how.optimizer ? R"("Adam", "group": 0}]}], "optimizers": [
      {"number": 0, "name": "Adam", "type": "Adam", "groups": [{"settings": {}, "parameters": 1}], "foreign": 0}]})"
                                       : R"(null}]}], "optimizers": []})"));
  for (int step = 0; step < how.steps; ++step) {
    std::vector<double> rows;
    const int batch = how.rows > 0 ? step % how.rows : step;
    for (int i = 0; i < 8; ++i) rows.push_back(std::sin(1.0 + 8 * batch + i));
    trial.Step()
        .Sample("sample/Net_input_0", {4, 2}, rows)
        .Tensor("Net_a", Role::kWeight, {1, how.moves_at >= 0 && step >= how.moves_at ? 3.0 : 2.0})
        .Event(EventKind::kForward, 0,
               (how.training ? kTraining | kSomeTrain : kSomeEval) | kGradients | kTold)
        .Event(EventKind::kBackward);
    if (step == 2)
      trial.EventJson(std::string(R"({"kind": "reach", "without_gradient": [], "without_gradient_count": 0,
          "reached_count": 1, "foreign": [)") +
                      (how.of_input ? R"({"shape": [4, 2], "optimizer": null})" : "") + "]}");
    if (step == how.step_at) trial.Event(EventKind::kOptimizerStep, 0);
  }
  return trial.Ends(how.outcome);
}

TEST(StepSkipped, NoUpdateAtAll_IsToldAtTheEnd_AfterTwoPassesAtOnce) {
  const auto at_end = FindingsOf(WithoutStep({}), "StepSkipped");
  ASSERT_EQ(at_end.size(), 1U);
  EXPECT_EQ(at_end[0].cause, "none");
  EXPECT_EQ(at_end[0].severity, Severity::kWarn);
  EXPECT_NE(at_end[0].what.find("60 backward passes"), std::string::npos);
  const auto passes = FindingsOf(WithoutStep({.rows = 15, .outcome = "failed"}), "StepSkipped");
  ASSERT_EQ(passes.size(), 1U);
  EXPECT_EQ(passes[0].severity, Severity::kStop);
  EXPECT_LT(passes[0].step, 50);
  EXPECT_FALSE(passes[0].healed);
  const auto late = FindingsOf(WithoutStep({.steps = 120, .rows = 15, .step_at = 80}), "StepSkipped");
  ASSERT_EQ(late.size(), 1U);
  EXPECT_TRUE(late[0].healed);
}

TEST(StepSkipped, AccumulationThatWasCutShort_UpdatesByHand_AndGradientsToLookAt_AreSilent) {
  for (const Unstepped& how :
       {Unstepped{.outcome = "failed"}, Unstepped{.outcome = "stopped"}, Unstepped{.steps = 23},
        Unstepped{.rows = 15, .moves_at = 10}, Unstepped{.rows = 15, .training = false},
        Unstepped{.rows = 15, .of_input = true}, Unstepped{.rows = 15, .optimizer = false},
        Unstepped{.step_at = 59}, Unstepped{.rows = 40, .outcome = "failed"}})
    EXPECT_TRUE(FindingsOf(WithoutStep(how), "StepSkipped").empty());
}

TEST(StepSkipped, UpdatesWithoutAGradient_Stop_ThoseByHandAndOfOtherOptimizersAreSilent) {
  FakeTrial between;
  FakeTrial before;
  FakeTrial by_hand;
  FakeTrial other;
  for (int step = 0; step < 60; ++step) {
    for (FakeTrial* trial : {&between, &before, &by_hand, &other})
      trial->Step().Tensor("w", Role::kWeight, {1});
    between.Event(EventKind::kBackward).Event(EventKind::kZeroGrad, 0).Event(EventKind::kOptimizerStep, 0);
    before.Event(EventKind::kZeroGrad, 0).Event(EventKind::kOptimizerStep, 0).Event(EventKind::kBackward);
    by_hand.Event(EventKind::kZeroGrad, 0)
        .Tensor("gradient/w", Role::kGradient, {1})
        .Event(EventKind::kOptimizerStep, 0);
    other.Event(EventKind::kBackward).Event(EventKind::kZeroGrad, 1).Event(EventKind::kOptimizerStep, 0);
  }
  for (const FakeTrial* trial : {&between, &before}) {
    const auto findings = FindingsOf(*trial, "StepSkipped");
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "empty");
    EXPECT_EQ(findings[0].severity, Severity::kStop);
    EXPECT_EQ(findings[0].step, 7);
    EXPECT_EQ(findings[0].since_step, 0);
  }
  EXPECT_TRUE(FindingsOf(by_hand, "StepSkipped").empty());
  EXPECT_TRUE(FindingsOf(other, "StepSkipped").empty());
}

void TrainStep(FakeTrial& trial, std::uint64_t bits, std::uint32_t optimizer = 0, std::uint32_t model = 7) {
  trial.Step()
      .Event(EventKind::kForward, model, bits | kGradients | kTold)
      .Event(EventKind::kOptimizerStep, optimizer);
}
void EvalStep(FakeTrial& trial, std::uint64_t bits, bool loss = true, std::uint64_t batch = 1,
              std::uint32_t model = 7) {
  trial.Step(query::Mode::kEval)
      .Event(EventKind::kForward, model, bits | kTold)
      .Event(EventKind::kBatch, model, batch);
  if (loss) trial.Loss(1);
}

TEST(ModeMismatch, TrainingGoesOnInEvaluationMode_Warns_OtherwiseSilent) {
  FakeTrial wrong;
  FakeTrial right;
  FakeTrial phase;
  for (int step = 0; step < 60; ++step) {
    const bool later = step >= 20;
    TrainStep(wrong, later ? kSomeEval : kTraining | kSomeTrain);
    TrainStep(right, kTraining | kSomeTrain);
    TrainStep(phase, later ? kSomeEval : kTraining | kSomeTrain, later ? 1 : 0);
    if (step % 20 != 19) continue;
    EvalStep(wrong, kSomeEval);
    EvalStep(right, kSomeEval);
    EvalStep(phase, kSomeEval);
  }
  const auto findings = FindingsOf(wrong, "ModeMismatch");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "training");
  EXPECT_EQ(findings[0].since_step, 20);
  EXPECT_EQ(findings[0].step, 31);
  EXPECT_TRUE(FindingsOf(right, "ModeMismatch").empty());
  EXPECT_TRUE(FindingsOf(phase, "ModeMismatch").empty());
}

TEST(ModeMismatch, FrozenBatchNorm_IsSilent_TrainingInEvaluationModeFromTheStart_Warns) {
  FakeTrial frozen;
  FakeTrial never;
  FakeTrial loaded;
  for (int step = 0; step < 60; ++step) {
    TrainStep(frozen, kTraining | kSomeEval);
    TrainStep(never, kSomeEval);
    TrainStep(loaded, kSomeEval);
    if (step == 0) loaded.EventJson(R"({"kind": "load_state_dict", "model": "Net", "matched": 9})");
    if (step % 20 == 19) EvalStep(frozen, kSomeEval);
  }
  EXPECT_TRUE(FindingsOf(frozen, "ModeMismatch").empty());
  EXPECT_EQ(FindingsOf(never, "ModeMismatch").at(0).step, 31);
  EXPECT_TRUE(FindingsOf(loaded, "ModeMismatch").empty());
}

TEST(ModeMismatch, SecondEvaluationInTrainingMode_Warns) {
  FakeTrial wrong;
  FakeTrial teacher;
  FakeTrial masks;
  FakeTrial statistics;
  for (int step = 0; step < 150; ++step) {
    TrainStep(wrong, kTraining | kSomeTrain);
    TrainStep(teacher, kTraining | kSomeTrain);
    EvalStep(teacher, kTraining | kSomeTrain);
    TrainStep(masks, kTraining | kSomeTrain);
    TrainStep(statistics, kTraining | kSomeTrain);
    if (step % 50 != 49) continue;
    EvalStep(wrong, kTraining | kSomeTrain, false, 1);
    EvalStep(wrong, kTraining | kSomeTrain, true, 2);
    for (int pass = 0; pass < 8; ++pass) EvalStep(masks, kTraining | kSomeTrain, pass == 7);
    EvalStep(statistics, kTraining | kSomeTrain, false);
    EvalStep(statistics, kSomeEval, false);
  }
  const auto findings = FindingsOf(wrong, "ModeMismatch");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "evaluation");
  EXPECT_EQ(findings[0].step, 99);
  EXPECT_EQ(findings[0].since_step, 49);
  EXPECT_TRUE(FindingsOf(teacher, "ModeMismatch").empty());
  EXPECT_TRUE(FindingsOf(masks, "ModeMismatch").empty());
  EXPECT_TRUE(FindingsOf(statistics, "ModeMismatch").empty());
}

// Three models, one after the other, each trained for 20 steps and evaluated once; `again`: all are trained
// in between, `passes` of the evaluation see one batch, `good`: that fold is evaluated in evaluation mode.
std::vector<Finding> Folds(bool again = false, int passes = 1, std::uint32_t good = 9,
                           std::uint32_t folds = 3) {
  FakeTrial trial;
  for (std::uint32_t fold = 0; fold < folds; ++fold) {
    for (int step = 0; step < 20; ++step) {
      TrainStep(trial, kTraining | kSomeTrain, fold, 10 + fold);
      for (std::uint32_t other = 10; again && other < 13; ++other)
        TrainStep(trial, kTraining | kSomeTrain, 0, other);
    }
    for (int pass = 0; pass < passes; ++pass)
      EvalStep(trial, fold == good ? kSomeEval : kTraining | kSomeTrain, true, 3, 10 + fold);
  }
  return FindingsOf(trial, "ModeMismatch");
}

TEST(ModeMismatch, ModelsThatAreMadeAnew_CountTogether) {
  const auto findings = Folds();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "evaluation");
  EXPECT_EQ(findings[0].step, 59);
  EXPECT_TRUE(Folds(false, 1, 9, 2).empty());
  EXPECT_TRUE(Folds(true).empty());         // partners, of which each is looked at
  EXPECT_TRUE(Folds(false, 6).empty());     // a mean over masks
  EXPECT_TRUE(Folds(false, 1, 1).empty());  // who looks at statistics of one of them
}

TEST(ModeMismatch, ModelsThatAreMadeAnew_HealWithAnEvaluationInEvaluationMode) {
  // Three trials of rates, then the training itself.
  const auto findings = Folds(false, 1, 3, 4);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
  EXPECT_FALSE(Folds(false, 1, 9, 4).at(0).healed);
}

TEST(ModeMismatch, EvaluationsWithoutALoss_NeverInEvaluationMode_Warn) {
  FakeTrial accuracy;
  FakeTrial same_batch;
  FakeTrial adversary;
  for (int step = 0; step < 150; ++step) {
    TrainStep(accuracy, kTraining | kSomeTrain);
    TrainStep(same_batch, kTraining | kSomeTrain);
    same_batch.Event(EventKind::kBatch, 7, 5);
    TrainStep(adversary, kTraining | kSomeTrain, step % 2 == 0 ? 0 : 1);
    if (step % 40 != 39) continue;
    for (std::uint64_t batch = 1; batch < 4; ++batch)
      EvalStep(accuracy, kTraining | kSomeTrain, false, batch);
    EvalStep(same_batch, kTraining | kSomeTrain, false, 5);
    EvalStep(adversary, kTraining | kSomeTrain, false, 9);
  }
  const auto findings = FindingsOf(accuracy, "ModeMismatch");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "evaluation");
  EXPECT_EQ(findings[0].step, 79);
  EXPECT_TRUE(FindingsOf(same_batch, "ModeMismatch").empty());
  EXPECT_TRUE(FindingsOf(adversary, "ModeMismatch").empty());
}

FakeTrial Anew(int every, double momentum, bool other_parameters = false, const std::string& kind = "SGD",
               bool loads = false, int longer = 0) {
  FakeTrial trial;
  for (int step = 0; step < 60; ++step) {
    const auto number = static_cast<std::uint32_t>(std::max(step - longer, 0) / every);
    trial.Step();
    if (loads && step % every == 0)
      trial.EventJson(R"({"kind": "load_state_dict", "model": "Net", "matched": 9})");
    trial.Event(EventKind::kOptimizerStep, number).Tensor("gradient/a", Role::kGradient, {1});
    if (other_parameters) trial.Tensor("gradient/b" + std::to_string(number), Role::kGradient, {1});
    const std::string group = "optimizer/" + kind + "_" + std::to_string(number) + ".group0";
    trial.Scalar(group + ".lr", Role::kOptimizerSetting, 0.1);
    trial.Scalar(group + ".momentum", Role::kOptimizerSetting, momentum);
  }
  return trial;
}

TEST(OptimizerStateReset, ThreeTimesOverTheSameParameters_Warns) {
  const auto findings = FindingsOf(Anew(10, 0.9), "OptimizerStateReset");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 30);
  EXPECT_EQ(findings[0].since_step, 10);
  EXPECT_TRUE(FindingsOf(Anew(10, 0), "OptimizerStateReset").empty());  // no state to lose
  EXPECT_EQ(FindingsOf(Anew(10, 0, false, "Adagrad"), "OptimizerStateReset").size(), 1U);
  EXPECT_TRUE(FindingsOf(Anew(20, 0.9), "OptimizerStateReset").empty());                      // three phases
  EXPECT_TRUE(FindingsOf(Anew(10, 0.9, true), "OptimizerStateReset").empty());                // unfreezing
  EXPECT_TRUE(FindingsOf(Anew(10, 0.9, false, "SGD", true), "OptimizerStateReset").empty());  // folds
  // A first stage that is longer, and rounds of pruning and fine-tuning; an epoch's last batch is dropped.
  EXPECT_TRUE(FindingsOf(Anew(10, 0.9, false, "SGD", false, 8), "OptimizerStateReset").empty());
  EXPECT_EQ(FindingsOf(Anew(10, 0.9, false, "SGD", false, 1), "OptimizerStateReset").size(), 1U);
}

TEST(OptimizerStateReset, OptimizersThatTakeTurns_AreSilent) {
  FakeTrial trial;
  for (int step = 0; step < 60; ++step) {
    trial.Step().Event(EventKind::kOptimizerStep, static_cast<std::uint32_t>(step % 2));
    trial.Tensor("gradient/a", Role::kGradient, {1});
    trial.Scalar("optimizer/Adam.group0.beta1", Role::kOptimizerSetting, 0.9);
  }
  EXPECT_TRUE(FindingsOf(trial, "OptimizerStateReset").empty());
}

TEST(ModeMismatch, DropoutByAFunctionInEvaluations_Warns_WantedMasksAreSilent) {
  FakeTrial wrong;
  FakeTrial masks;
  for (int step = 0; step < 150; ++step) {
    TrainStep(wrong, kTraining | kSomeTrain);
    TrainStep(masks, kTraining | kSomeTrain);
    if (step % 50 != 49) continue;
    for (std::uint64_t pass = 0; pass < 4; ++pass) {
      EvalStep(wrong, kSomeEval, true, 10 + pass);
      wrong.EventJson(R"({"kind": "dropout_in_evaluation", "p": 0.5})");
      EvalStep(masks, kSomeEval, true, 10);
      masks.EventJson(R"({"kind": "dropout_in_evaluation", "p": 0.5})");
    }
  }
  const auto findings = FindingsOf(wrong, "ModeMismatch");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "dropout");
  EXPECT_EQ(findings[0].step, 99);
  EXPECT_TRUE(FindingsOf(masks, "ModeMismatch").empty());
}

std::vector<Finding> OfCalls(const char* rule, const std::vector<std::string>& events) {
  FakeTrial trial;
  for (const std::string& event : events) trial.Step().Loss(1).EventJson(event);
  return testing::FindingsOf(trial, rule, ParameterSet::kLuff);
}

// A call with this fault is told with this cause, once, and is healed when the fault is over.
void ExpectFaultOfCalls(const std::string& fault, const char* cause) {
  const auto call = [](const std::string& what, const char* over) {
    return R"({"kind": "training_call", "function": "train_step", "fault": ")" + what +
           R"(", "calls": 64, "over": )" + over + "}";
  };
  const auto findings = OfCalls("OptimizerStateReset", {call(fault, "false")});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, cause);
  EXPECT_EQ(findings[0].tensor, "train_step");
  EXPECT_TRUE(OfCalls("OptimizerStateReset", {call("other", "false")}).empty());
  const std::string broken = R"({"kind": "training_call", "fault": ")" + fault + R"(", "calls": "many"})";
  EXPECT_TRUE(OfCalls("OptimizerStateReset", {broken, "[3]"}).empty());
  const auto over = OfCalls("OptimizerStateReset", {call(fault, "false"), call(fault, "true")});
  ASSERT_EQ(over.size(), 1U);
  EXPECT_TRUE(over[0].healed);
}

TEST(OptimizerStateReset, AStateThatTheLoopDrops) { ExpectFaultOfCalls("state_dropped", "state_dropped"); }

TEST(OptimizerStateReset, AStateThatAFunctionMakesInEachCall) {
  ExpectFaultOfCalls("state_anew", "made_anew");
}

}  // namespace
}  // namespace luff::rules::training_loop_test

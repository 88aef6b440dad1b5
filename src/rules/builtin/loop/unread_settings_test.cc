#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// What a program sets and nobody reads: rates of another optimizer, names of settings, flags of modules,
// clipped gradients of nothing. Facts of the document "model" and of the loop.
namespace luff::rules::unread_settings_test {
namespace {

using format::EventKind;
using format::Role;
using testing::FakeTrial;
using testing::FindingsOf;

std::vector<std::string> CausesOf(const std::vector<Finding>& findings) {
  std::vector<std::string> causes;
  for (const Finding& one : findings) causes.push_back(one.cause);
  return causes;
}
const std::vector<std::string> kNone;

// ScheduleCollapse ------------------------------------------------------------------------------------------

struct Schedule {
  std::string scheduler = R"({"type": "StepLR", "settings": {"gamma": 0.5}, "optimizer": 0, "moved": true})";
  std::function<double(int)> rate = [](int) { return 1e-2; };
  std::uint32_t steps_of = 0;  // the optimizer of which the scheduler moves the rates
  int updates = 200, evaluate_every = 20, step_every = 20;
};

std::vector<std::string> Told(const Schedule& story) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"optimizers": [
      {"name": "Adam", "number": 0, "type": "Adam", "scheduled": true, "groups": []},
      {"name": "Adam_2", "number": 1, "type": "Adam", "groups": [{"settings": {"lr": 0.01}, "parameters": 2}]}],
      "schedulers": [)" + story.scheduler +
                                 "]}");
  for (int step = 0; step < story.updates; ++step) {
    trial.Step().Event(EventKind::kOptimizerStep, 1);
    if (step % story.step_every == story.step_every - 1)
      trial.Event(EventKind::kSchedulerStep, story.steps_of);
    trial.Scalar("optimizer/Adam_2.group0.lr", Role::kOptimizerSetting, story.rate(step))
        .Scalar("optimizer/Adam.group0.lr", Role::kOptimizerSetting, 0.01 * std::pow(0.99, step));
    if (step % story.evaluate_every == story.evaluate_every - 1) trial.Step(query::Mode::kEval);
  }
  return CausesOf(FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff));
}

TEST(ScheduleCollapse, ASchedulerOfAnOptimizerThatMakesNoUpdates_IsToldAtTheEnd) {
  const std::vector<std::string> told{"other_optimizer"};
  EXPECT_EQ(Told({}), told);
  // The run never heard of that optimizer.
  EXPECT_EQ(Told({.scheduler = R"({"type": "StepLR", "settings": {}, "optimizer": -1, "moved": true})",
                  .steps_of = format::kNoId}),
            told);
}

TEST(ScheduleCollapse, SchedulersThatMoveTheRatesOfUpdates_AreSilent) {
  // Its own optimizer updates; its first milestone is still to come; a wrapper shares the groups; nothing is
  // said.
  EXPECT_EQ(Told({.scheduler = R"({"type": "StepLR", "settings": {}, "optimizer": 1, "moved": true})"}),
            kNone);
  EXPECT_EQ(Told({.scheduler = R"({"type": "StepLR", "settings": {}, "optimizer": 0, "moved": false})"}),
            kNone);
  EXPECT_EQ(Told({.rate = [](int step) { return step < 100 ? 1e-2 : 5e-3; }}), kNone);
  EXPECT_EQ(Told({.scheduler = R"({"type": "StepLR", "settings": {}})"}), kNone);
  EXPECT_EQ(Told({.updates = 19}), kNone);
}

// One scheduler, whose function makes the rates, of a training that may go on from a file.
std::vector<std::string> Factors(const std::function<double(int)>& rate, double given, bool resumed) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"optimizers": [{"name": "SGD", "number": 0, "type": "SGD", "scheduled": true,
      "groups": [{"settings": {"lr": 0.001, "initial_lr": )" +
                                 std::to_string(given) + R"(}, "parameters": 2}]}],
      "schedulers": [{"type": "LambdaLR", "settings": {}, "optimizer": 0, "moved": true}]})");
  for (int step = 0; step < 60; ++step) {
    trial.Step();
    if (resumed && step == 0) trial.EventJson(R"({"kind": "load_state_dict", "model": "Net", "matched": 9})");
    trial.Event(EventKind::kOptimizerStep, 0)
        .Event(EventKind::kSchedulerStep, 0)
        .Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, rate(step));
  }
  return CausesOf(FindingsOf(trial, "ScheduleCollapse", ParameterSet::kLuff));
}

TEST(ScheduleCollapse, ARateWhereAFactorIsExpected_IsTold_TheEndOfAScheduleThatWasResumedIsNot) {
  const auto squares = [](int step) { return 1e-4 * std::pow(0.99, step); };
  EXPECT_EQ(Factors(squares, 0.01, false), std::vector<std::string>{"rate_for_factor"});
  const auto end = [](int step) { return 0.05 * (0.08 - 0.001 * step); };
  EXPECT_EQ(Factors(end, 0.05, true), kNone);
  EXPECT_EQ(Factors([](int step) { return 0.01 * std::pow(0.99, step); }, 0.01, false), kNone);
}

TEST(ScheduleCollapse, MilestonesOfEpochsThatArePassedInUpdates_AreTold) {
  const auto rate = [](int step) { return step < 4 ? 1e-2 : step < 8 ? 1e-3 : 1e-4; };
  const std::string scheduler =
      R"({"type": "MultiStepLR", "settings": {"gamma": 0.1}, "milestones": [4, 8], "optimizer": 1, "moved": true})";
  EXPECT_EQ(Told({.scheduler = scheduler, .rate = rate, .step_every = 1}),
            std::vector<std::string>{"milestones"});
  EXPECT_EQ(Told({.scheduler = scheduler, .step_every = 20}), kNone);  // once per epoch
  EXPECT_EQ(Told({.scheduler = scheduler, .evaluate_every = 4, .step_every = 1}),
            kNone);  // few updates an epoch
  const std::string planned =
      R"({"type": "MultiStepLR", "settings": {"gamma": 0.1}, "milestones": [80, 160], "optimizer": 1})";
  EXPECT_EQ(Told({.scheduler = planned, .step_every = 1}), kNone);  // in updates
  const std::string rises =
      R"({"type": "MultiStepLR", "settings": {"gamma": 10}, "milestones": [4], "optimizer": 1, "moved": true})";
  EXPECT_EQ(Told({.scheduler = rises, .step_every = 1}), kNone);  // a warm-up
}

// OptimizerSettings -----------------------------------------------------------------------------------------

std::vector<Finding> Sgd(double rate, double momentum, const std::string& groups = "", double later = -1) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"optimizers": [{"name": "SGD", "number": 0, "type": "SGD",
      "defaults": {"lr": 0.01, "momentum": 0, "weight_decay": 0}, "groups": [)" +
                                 groups + "]}]}");
  for (int step = 0; step < 40; ++step)
    trial.Step()
        .Loss(2 * std::exp(-0.02 * step))
        .Event(EventKind::kOptimizerStep, 0)
        .Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, step > 0 && later >= 0 ? later : rate)
        .Scalar("optimizer/SGD.group0.momentum", Role::kOptimizerSetting, momentum);
  return FindingsOf(trial, "OptimizerSettings", ParameterSet::kLuff);
}

TEST(OptimizerSettings, RateAndMomentumInTheWrongOrder_AreTold) {
  const auto findings = Sgd(0.9, 0.01);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "exchanged");
  EXPECT_NE(findings[0].remedy.find("lr=0.01, momentum=0.9"), std::string::npos);
  for (const auto& [rate, momentum] : std::vector<std::pair<double, double>>{
           {0.01, 0.9}, {0.9, 0.0}, {0.9, 0.9}, {1.0, 0.1}, {0.1, 0.1}, {0.7, 0.01}, {0.9, 0.5}})
    EXPECT_TRUE(Sgd(rate, momentum).empty()) << rate << " " << momentum;
}

TEST(OptimizerSettings, ANameThatTheOptimizerDoesNotRead_IsTold) {
  const auto told = [](const std::string& settings) {
    return CausesOf(Sgd(0.01, 0.0, R"({"settings": )" + settings + "}"));
  };
  const std::vector<std::string> unread{"unread"};
  EXPECT_EQ(told(R"({"lr": 0.01, "learning_rate": 0.001})"), unread);
  EXPECT_EQ(told(R"({"lr": 0.002, "initial_lr": 0.01, "learning_rate": 0.001})"),
            unread);  // under a schedule
  EXPECT_EQ(told(R"({"lr": 0.01, "weight_decay": 0, "wd": 0.1})"), unread);
  EXPECT_EQ(told(R"({"lr": 0.01, "weight_decay": 0, "weight-decay": 0.1})"), unread);
  EXPECT_EQ(told(R"({"lr": 0.001, "learning_rate": 0.001})"), kNone);  // both
  EXPECT_EQ(told(R"({"lr": 0.004, "learning_rate": 0.01})"), kNone);   // rates are worked out from it
  EXPECT_EQ(told(R"({"lr": 0.01, "learning_rate": 0.01})"), kNone);    // the same
  EXPECT_EQ(told(R"({"lr": 0.01, "lr_scale": 0.1, "name": 1, "depth": 3, "initial_lr": 0.01})"), kNone);
  EXPECT_EQ(told(R"({"lr": 0.01, "epsilon": 0.1})"), kNone);  // SGD has no eps
  // The program works rates out from it after the first update, when the group was described.
  EXPECT_EQ(CausesOf(Sgd(0.01, 0.0, R"({"settings": {"lr": 0.01, "learning_rate": 0.1}})", 0.02)), kNone);
}

// FrozenAtInit ----------------------------------------------------------------------------------------------

std::vector<std::string> Frozen(const std::string& modules, const std::string& parameters, int updates = 20,
                                bool learns = true) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [{"name": "Net", "type": "Net", "modules": [)" + modules +
                                 R"(], "parameters": [)" + parameters +
                                 R"(]}], "optimizers": [{"name": "Adam", "number": 0, "type": "Adam"}]})");
  for (int step = 0; step < updates; ++step)
    trial.Step()
        .Loss(1)
        .Event(EventKind::kOptimizerStep, 0)
        .Tensor("gradient/Net_head.a", Role::kGradient, {0.1, -0.2})
        .Tensor("gradient/Net_body.a", Role::kGradient, {learns ? 0.1 : 0, learns ? -0.2 : 0});
  return CausesOf(FindingsOf(trial, "FrozenAtInit", ParameterSet::kLuff));
}

std::string Parameter(const std::string& path, bool trained, const std::string& more = "") {
  return R"({"path": ")" + path + R"(", "name": "Net_)" + path + R"(", "shape": [4, 4], "requires_grad": )" +
         (trained ? R"(true, "optimizer": "Adam")" : "false") + more + "}";
}

TEST(FrozenAtInit, AFlagOfAModuleThatFreezesNothing_IsTold) {
  const std::string flagged = R"({"path": "body", "type": "Body", "settings": {"requires_grad": false}})";
  const std::string typo = R"({"path": "body", "type": "Body", "settings": {"require_grad": false}})";
  const std::string trained =
      Parameter("body.a", true) + "," + Parameter("body.b", true) + "," + Parameter("head.a", true);
  const std::vector<std::string> told{"freeze_without_effect"};
  EXPECT_EQ(Frozen(flagged, trained), told);
  EXPECT_EQ(Frozen(typo, trained), told);
  EXPECT_EQ(Frozen(flagged, trained, 15), kNone);
  // A flag that the module heeds itself, of one part or of all; one that is true; no parameters beneath it.
  EXPECT_EQ(Frozen(flagged, Parameter("body.a", false) + "," + Parameter("head.a", true)), kNone);
  EXPECT_EQ(Frozen(flagged, Parameter("body.a", false) + "," + Parameter("body.b", true)), kNone);
  EXPECT_EQ(Frozen(R"({"path": "body", "type": "Body", "settings": {"requires_grad": true}})", trained),
            kNone);
  EXPECT_EQ(Frozen(R"({"path": "body", "type": "Body", "settings": {"frozen": false}})", trained), kNone);
  EXPECT_EQ(Frozen(flagged, Parameter("bodywork.a", true)), kNone);
  EXPECT_EQ(Frozen(flagged, trained, 20, false), kNone);  // its forward computes without gradients
}

TEST(FrozenAtInit, AMisspeltFlagOfAParameter_IsTold) {
  const std::string more = R"(, "misspelt": "require_grad")";
  EXPECT_EQ(Frozen("", Parameter("a", true, more) + "," + Parameter("b", true)),
            std::vector<std::string>{"freeze_without_effect"});
  EXPECT_EQ(Frozen("", Parameter("a", false, more) + "," + Parameter("b", true)), kNone);  // frozen otherwise
}

// ClipSaturated ---------------------------------------------------------------------------------------------

struct Clip {
  double measured = 0, limit = 1, norm = 3;
  bool after = true;  // backward
  int late = 1000;    // from then on clipping measures a norm
  int steps = 40, calls = 1;
  std::string frozen{};  // path of a parameter
};

std::vector<std::string> Told(const Clip& story) {
  FakeTrial trial;
  if (!story.frozen.empty())
    trial.SetDocument("model", R"({"models": [{"name": "Net", "type": "Net", "parameters": [)" +
                                   std::string(R"({"path": ")") + story.frozen +
                                   R"(", "name": "Net_a", "shape": [4, 4], "requires_grad": false}]}]})");
  for (int step = 0; step < story.steps; ++step) {
    trial.Step().Loss(2);
    if (story.after) trial.Event(EventKind::kBackward);
    for (int call = 0; call < story.calls; ++call)
      trial.Event(EventKind::kClipGrad, format::kNoId, std::bit_cast<std::uint64_t>(story.limit));
    if (!story.after) trial.Event(EventKind::kBackward);
    trial.Event(EventKind::kOptimizerStep, 0)
        .Event(EventKind::kZeroGrad, 0)
        .Scalar("clip/norm", Role::kOptimizerSetting, step >= story.late ? 2 : story.measured)
        .Scalar("clip/limit", Role::kOptimizerSetting, story.limit)
        .Tensor("gradient/a", Role::kGradient, {0.6 * story.norm, 0})
        .Tensor("gradient/b", Role::kGradient, {0, -0.8 * story.norm});
  }
  std::vector<std::string> open;
  for (const Finding& one : FindingsOf(trial, "ClipSaturated", ParameterSet::kLuff))
    if (!one.healed) open.push_back(one.cause);
  return open;
}

TEST(ClipSaturated, ClippingThatGetsNoGradients_IsTold) {
  EXPECT_EQ(Told(Clip{}), std::vector<std::string>{"nothing"});
  EXPECT_EQ(Told(Clip{.steps = 15}), kNone);
  EXPECT_EQ(Told(Clip{.measured = 3}), kNone);  // as it should be
  EXPECT_EQ(Told(Clip{.norm = 0.5}), kNone);    // there was nothing to cut off
  EXPECT_EQ(Told(Clip{.limit = 1e9}), kNone);   // it only measures
  EXPECT_EQ(Told(Clip{.calls = 2}), kNone);     // of several networks
  EXPECT_EQ(Told(Clip{.late = 30}), kNone);     // a part that had no gradient at first
  EXPECT_EQ(Told(Clip{.after = false}), std::vector<std::string>{"misplaced"});
  // Of a part that a setting of the program has frozen; a table of places is none.
  EXPECT_EQ(Told(Clip{.frozen = "body.0.weight"}), kNone);
  EXPECT_EQ(Told(Clip{.frozen = "weight"}), kNone);
  EXPECT_EQ(Told(Clip{.frozen = "weights.places"}), std::vector<std::string>{"nothing"});
}

// ParamNotOptimized -----------------------------------------------------------------------------------------

std::vector<std::string> Made(const std::string& first, const std::string& second,
                              const std::string& input = "") {
  FakeTrial trial;
  trial.SetDocument("model",
                    R"({"models": [{"name": "Net", "type": "Net", "parameters": [)" +
                        std::string(R"({"path": "a", "name": "Net_a", "shape": [8, 8], "requires_grad": true,
      "optimizer": "Adam", "group": 0})") +
                        R"(]}], "optimizers": [{"name": "Adam", "number": 0, "type": "Adam"}]})");
  for (int step = 0; step < 12; ++step) {
    trial.Step().Loss(1).Event(EventKind::kOptimizerStep, 0);
    if (!input.empty()) trial.Sample("sample/Net_input_0", {10, 32}, std::vector<double>(320, 1.0));
    const std::string& made = step == 8 ? second : first;
    if (step == 4 || step == 8)
      trial.EventJson(R"({"kind": "reach", "without_gradient": [], "reached_count": 1, "made": )" + made +
                      "}");
  }
  return CausesOf(FindingsOf(trial, "ParamNotOptimized", ParameterSet::kLuff));
}

TEST(ParamNotOptimized, ALayerThatIsMadeInForward_IsTold) {
  const std::string layer = "[[10, 32], [10]]";
  EXPECT_EQ(Made(layer, layer), std::vector<std::string>{"made_in_forward"});
  EXPECT_EQ(Made(layer, "[]"), kNone);
  EXPECT_EQ(Made(layer, "[[12, 32], [12]]"), kNone);
  EXPECT_EQ(Made("[[10, 32]]", "[[10, 32]]"), kNone);  // one tensor: a perturbation, a code
  EXPECT_EQ(Made("[[10, 32], [32]]", "[[10, 32], [32]]"), kNone);
  EXPECT_EQ(Made(layer, layer, "input"), kNone);
  EXPECT_EQ(Made("[[8, 8], [8]]", "[[8, 8], [8]]"), kNone);  // a copy of the model's, as in an inner step
  EXPECT_EQ(Made(R"("text")", R"([1, [2]])"), kNone);
}

// UnchangedTensor -------------------------------------------------------------------------------------------

struct Average {
  double share = 0.03, steady = 0.95;
  int updates = 200;
  std::uint32_t evaluated = 2;  // number of the module
  std::string optimized = "Net";
  int every = 20;  // updates
};

std::vector<std::string> Told(const Average& story) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [
      {"name": "Net", "type": "Net", "modules": [{"path": "", "type": "Net", "number": 1}],
       "parameters": [{"path": "a", "name": "Net_a", "shape": [64, 4], "optimizer": )" +
                                 std::string(story.optimized == "Net" ? "\"Adam\"" : "null") + R"(}]},
      {"name": "Mean", "type": "Mean", "modules": [{"path": "", "type": "Mean", "number": 2}],
       "parameters": [{"path": "module.a", "name": "Mean_a", "shape": [64, 4], "optimizer": )" +
                                 std::string(story.optimized == "Mean" ? "\"Adam\"" : "null") + R"(}]}],
      "optimizers": [{"name": "Adam", "number": 0, "type": "Adam"}]})");
  for (int step = 0; step < story.updates; ++step) {
    trial.Step().Loss(1).Event(EventKind::kForward, 1).Event(EventKind::kOptimizerStep, 0);
    if (step % story.every != story.every - 1) continue;
    trial.Step(query::Mode::kEval).Event(EventKind::kForward, story.evaluated);
    if (story.evaluated != 2) trial.Event(EventKind::kForward, 2);
    if (step > 60)
      trial.EventJson(R"({"kind": "average", "model": "Mean", "of": "Net", "share": )" +
                      std::to_string(story.share) + R"(, "steady": )" + std::to_string(story.steady) + "}");
  }
  return CausesOf(FindingsOf(trial, "UnchangedTensor", ParameterSet::kLuff));
}

TEST(UnchangedTensor, AnAverageThatHasHardlyMoved_IsTold) {
  EXPECT_EQ(Told(Average{}), std::vector<std::string>{"slow_average"});
  EXPECT_EQ(Told(Average{.share = 0.6}), kNone);
  EXPECT_EQ(Told(Average{.steady = 0.2}), kNone);   // the weights wander around a minimum
  EXPECT_EQ(Told(Average{.updates = 100}), kNone);  // 80 updates since its first evaluation
  EXPECT_EQ(Told(Average{.evaluated = 1}), kNone);  // the trained one is evaluated, too
  EXPECT_EQ(Told(Average{.optimized = "Mean"}), kNone);
  EXPECT_EQ(Told(Average{.every = 2}), kNone);  // a target network
  EXPECT_EQ(Told(Average{.share = 0}), kNone);  // another cause
}

}  // namespace
}  // namespace luff::rules::unread_settings_test

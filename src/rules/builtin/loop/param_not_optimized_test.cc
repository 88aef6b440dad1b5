#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::param_not_optimized_test {
namespace {

using format::EventKind;
using format::Role;
using testing::FakeTrial;

// A model of Keras with two layers, and what its compiled step updates.
struct Story {
  std::vector<std::string> updated = {"head"};         // from step 40 on
  std::vector<std::string> events = {};                // at step 40
  bool first_event = false;                            // they come at step 0
  std::string late = {};                               // an event at step 70
  std::vector<std::string> before = {"body", "head"};  // updated before step 40
};

std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  trial.SetDocument("model",
                    R"({"framework": "keras", "models": [{"name": "net", "type": "Sequential", "parameters": [
    {"path": "body.kernel", "name": "body/weights/kernel"}, {"path": "head.kernel", "name": "head/weights/kernel"}]}]})");
  for (int step = 0; step < 90; ++step) {
    trial.Step().Loss(1);
    trial.Sample("sample/net_input_0", {2, 2}, {0.1, 0.2, 0.3, 0.1 * step});
    const auto updated = step >= 40 || story.first_event ? story.updated : story.before;
    if (!updated.empty()) trial.Event(EventKind::kOptimizerStep, 0);
    for (const std::string& layer : updated)
      trial.Tensor("gradient/" + layer + "/weights/kernel", Role::kGradient, {0.1});
    if (step == (story.first_event ? 0 : 40)) {
      for (const std::string& event : story.events) trial.EventJson(event);
    }
    if (step == 70 && !story.late.empty()) trial.EventJson(story.late);
  }
  return testing::FindingsOf(trial, "ParamNotOptimized", ParameterSet::kLuff);
}

std::string Event(int trainable, int frozen, const std::string& added, const std::string& removed) {
  return R"({"kind": "trainable_set", "model": "net", "trainable": )" + std::to_string(trainable) +
         R"(, "frozen": )" + std::to_string(frozen) + R"(, "added": [)" + added + R"(], "removed": [)" +
         removed + "]}";
}
const std::string kBody = R"("body/weights/kernel")";

TEST(ParamNotOptimized, AModelOfKerasThatIsFrozenAsAWhole_Stops) {
  const auto findings = Told({.updated = {}, .events = {Event(0, 2, "", "")}, .first_event = true});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "nothing_trainable");
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 15);
  // Updates by a step of its own, and a model without parameters.
  EXPECT_TRUE(Told({.events = {Event(0, 2, "", "")}, .first_event = true}).empty());
  EXPECT_TRUE(Told({.updated = {}, .events = {Event(0, 0, "", "")}, .first_event = true}).empty());
}

TEST(ParamNotOptimized, LayersThatAreUnfrozenWithoutCompile_AreNamed_UntilTheyAreTrained) {
  const std::vector<std::string> head = {"head"};
  const auto findings = Told({.events = {Event(2, 0, kBody, "")}, .before = head});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "unfrozen_late");
  EXPECT_EQ(findings[0].tensor, "body/weights/kernel");
  EXPECT_EQ(findings[0].step, 55);
  EXPECT_FALSE(findings[0].healed);
  EXPECT_TRUE(
      Told({.events = {Event(2, 0, kBody, "")}, .late = Event(2, 0, "", ""), .before = head}).at(0).healed);
  EXPECT_TRUE(
      Told({.updated = {"body", "head"}, .events = {Event(2, 0, kBody, "")}, .before = head}).empty());
  EXPECT_TRUE(Told({.events = {Event(2, 0, kBody, "")}}).empty());  // another model's turn trains them
}

TEST(ParamNotOptimized, LayersThatAreFrozenWithoutCompile_AreNamed_IfTheyAreTrained) {
  const auto findings = Told({.updated = {"body", "head"}, .events = {Event(1, 1, "", kBody)}});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "frozen_late");
  EXPECT_TRUE(Told({.events = {Event(1, 1, "", kBody)}}).empty());  // the step was compiled again
  // All of it: a discriminator that is frozen for the generator's turn trains by the step that was compiled
  // before.
  EXPECT_TRUE(Told({.updated = {"body", "head"}, .events = {Event(0, 2, "", kBody)}}).empty());
}

TEST(ParamNotOptimized, TwoModelsWithTheSameFault_HaveAFindingEach_AndHealByUpdates) {
  FakeTrial trial;
  trial.SetDocument("model",
                    R"({"framework": "keras", "models": [
    {"name": "one", "type": "Sequential", "parameters": [{"path": "a.kernel", "name": "a/weights/kernel"}]},
    {"name": "two", "type": "Sequential", "parameters": [{"path": "b.kernel", "name": "b/weights/kernel"}]}]})");
  for (int step = 0; step < 90; ++step) {
    trial.Step().Loss(1);
    if (step == 0) {
      for (const char* model : {"one", "two"})
        trial.EventJson(std::string(R"({"kind": "trainable_set", "model": ")") + model +
                        R"(", "trainable": 0, "frozen": 1, "added": [], "removed": []})");
    }
    trial.Sample("sample/one_input_0", {2, 2}, {0.1, 0.2, 0.3, 0.1 * step});
    trial.Sample("sample/two_input_0", {2, 2}, {0.1, 0.2, 0.3, 0.1 * step});
    if (step < 50) continue;
    trial.Event(EventKind::kOptimizerStep, 0);  // of a loop of `train_on_batch`, after `compile`
    trial.Tensor("gradient/a/weights/kernel", Role::kGradient, {0.1});
  }
  const auto findings = testing::FindingsOf(trial, "ParamNotOptimized", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].tensor, "one");
  EXPECT_EQ(findings[1].tensor, "two");
  EXPECT_TRUE(findings[0].healed);
  EXPECT_FALSE(findings[1].healed);
}

// A model that is trained, and another one beside it, which gives `output` and is in no optimizer.
std::vector<Finding> Beside(const std::vector<double>& values, Role output,
                            const std::string& requires_grad = "true",
                            const std::string& optimizer = "null") {
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [
    {"name": "Net", "type": "Net", "parameters": [{"path": "w", "name": "Net_w", "shape": [2],
      "requires_grad": true, "optimizer": "SGD"}]},
    {"name": "Split", "type": "Split", "parameters": [{"path": "tail", "name": "Split_tail", "shape": [)" +
                                 std::to_string(values.size()) + R"(], "requires_grad": )" + requires_grad +
                                 R"(, "optimizer": )" + optimizer + R"(}]}],
    "optimizers": [{"name": "SGD", "type": "SGD", "number": 0, "parameters": 1, "foreign": 0}]})");
  for (int step = 0; step < 70; ++step) {
    trial.Step().Event(EventKind::kOptimizerStep, 0);
    if (output == Role::kLoss) {
      trial.Loss(1, "Split_output_0");
    } else {
      trial.Loss(1).Tensor("Split_output_0", output, {1, 2});
    }
    if ((step & (step - 1)) == 0)
      trial.EventJson(R"({"kind": "reach", "without_gradient": [], "without_gradient_count": 0,
        "foreign": [], "reached_count": 2})");
    trial.Tensor("Net_w", Role::kWeight, {1, 2}).Tensor("Split_tail", Role::kWeight, values);
    trial.Tensor("gradient/Net_w", Role::kGradient, {1, 1});
  }
  return testing::FindingsOf(trial, "ParamNotOptimized", ParameterSet::kLuff);
}

TEST(ParamNotOptimized, ParametersOfALossThatAreAllZero_AreNamed) {
  const auto findings = Beside({0, 0}, Role::kLoss);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "not_in_optimizer");
  EXPECT_EQ(findings[0].tensor, "Split_tail");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].remedy.find("criterion.parameters()"), std::string::npos);
  EXPECT_LE(findings[0].step, 8);
}

TEST(ParamNotOptimized, WhatMeasuresADistanceOrTeaches_IsSilent) {
  EXPECT_TRUE(Beside({0.1, 0}, Role::kLoss).empty());         // a network that gives a distance
  EXPECT_TRUE(Beside({0, 0}, Role::kOutput).empty());         // gives no loss
  EXPECT_TRUE(Beside({0}, Role::kLoss).empty());              // one number: a constant of the loss
  EXPECT_TRUE(Beside({0, 0}, Role::kLoss, "false").empty());  // frozen
  EXPECT_TRUE(Beside({0, 0}, Role::kLoss, "true", "\"SGD\"").empty());
}

TEST(ParamNotOptimized, BrokenEvents_AreSilent) {
  for (
      const char* broken :
      {R"({"kind": "trainable_set"})", R"({"kind": "trainable_set", "model": 1, "frozen": 2})",
       R"({"kind": "trainable_set", "model": "net", "trainable": -3, "frozen": "a", "added": 3, "removed": [1]})"})
    EXPECT_TRUE(Told({.updated = {}, .events = {broken}, .first_event = true}).empty());
}

}  // namespace
}  // namespace luff::rules::param_not_optimized_test

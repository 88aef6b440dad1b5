#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/format.h"
#include "rules/testing/recorder.h"

namespace luff::rules::missing_activation_test {
namespace {

using testing::FakeTrial;

// Two layers of a model, by path, and how the second gets what the first gives.
struct Story {
  std::string first = "0", second = "2", parent = "Sequential";
  int in = 8, inner = 16, out = 4;
  bool bias = true, linear = false, trained = true;
  std::string type = "Linear";
  int steps = 24, taken_back = -1;
  bool keras = false;
};

std::string Layer(const std::string& path, int out, int in, const Story& story) {
  if (story.keras) std::swap(in, out);
  return fmt::format(
      R"({{"path": "{0}.weight", "name": "Net_{0}.weight", "shape": [{1}, {2}], "requires_grad": {3}, "optimizer": {4}}})",
      path, out, in, story.trained, story.trained ? R"("SGD_0")" : "null");
}

std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  std::string bias;
  if (story.bias)
    bias = fmt::format(R"(, {{"path": "{0}.bias", "name": "Net_{0}.bias", "shape": [{1}]}})", story.first,
                       story.inner);
  trial.SetDocument(
      "model",
      fmt::format(R"({{{}"models": [{{"name": "Net", "type": "Net", "modules": [{{"path": "", "type": "{}"}},
                      {{"path": "{}", "type": "{}"}}, {{"path": "{}", "type": "Linear"}}],
                      "parameters": [{}, {}{}]}}], "optimizers": [{{"number": 0, "name": "SGD_0"}}]}})",
                  story.keras ? R"("framework": "keras", )" : "", story.parent, story.first, story.type,
                  story.second, Layer(story.first, story.inner, story.in, story),
                  Layer(story.second, story.out, story.inner, story), bias));
  for (int step = 0; step < story.steps; ++step) {
    trial.Step().Loss(2).Event(format::EventKind::kOptimizerStep, 0);
    if (step == 0)
      trial.EventJson(fmt::format(
          R"({{"kind": "linear_layers", "linear": {}, "pairs": [["Net_{}.weight", "Net_{}.weight"]]}})",
          story.linear, story.first, story.second));
    if (step == story.taken_back)
      trial.EventJson(R"({"kind": "linear_layers", "linear": false, "pairs": []})");
  }
  return testing::FindingsOf(trial, "MissingActivation", ParameterSet::kLuff);
}

TEST(MissingActivation, TwoLayersOfASequentialModel_AreToldOnce) {
  const auto findings = Told({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "linear_pair");
  EXPECT_EQ(findings[0].tensor, "0");
  EXPECT_EQ(findings[0].other_tensors, std::vector<std::string>{"2"});
  EXPECT_EQ(findings[0].step, 15);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
}

TEST(MissingActivation, NumberedLayersOfAnyModel_AreTold_AndAModelWithoutAnyActivation) {
  EXPECT_EQ(Told({.first = "fc1", .second = "fc2", .parent = "Net"}).size(), 1U);
  const auto findings = Told({.first = "hidden", .second = "output", .parent = "Net", .linear = true});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "linear_model");
}

TEST(MissingActivation, LayersOfKeras_HaveTheirWeightsTheOtherWayRound_AndNamesWithoutANumber) {
  EXPECT_EQ(Told({.keras = true}).size(), 1U);
  EXPECT_EQ(Told({.first = "dense", .second = "dense_1", .parent = "Functional", .keras = true}).size(), 1U);
  EXPECT_TRUE(Told({.first = "code", .second = "dense", .parent = "Functional", .keras = true}).empty());
  EXPECT_TRUE(Told({.in = 16, .inner = 2, .out = 16, .keras = true}).empty());
}

TEST(MissingActivation, WhatMayBeMeant_IsSilent) {
  EXPECT_TRUE(Told({.first = "embed", .second = "classifier", .parent = "Net"}).empty());
  EXPECT_TRUE(Told({.first = "a.fc1", .second = "b.fc2", .parent = "Net"}).empty());
  EXPECT_TRUE(Told({.in = 16, .inner = 2, .out = 16}).empty());  // a product of low rank
  EXPECT_TRUE(Told({.bias = false}).empty());
  EXPECT_TRUE(Told({.linear = true, .trained = false}).empty());
  EXPECT_TRUE(Told({.type = "NonDynamicallyQuantizableLinear"}).empty());
}

TEST(MissingActivation, AFewUpdates_AndPairsThatAreTakenBack_AreSilent) {
  EXPECT_TRUE(Told({.steps = 15}).empty());
  EXPECT_TRUE(Told({.taken_back = 8}).empty());
  const auto findings = Told({.taken_back = 20});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
}

TEST(MissingActivation, MalformedEvents_AreLeftOut) {
  for (const char* event : {R"({"kind": "linear_layers"})", R"({"kind": "linear_layers", "pairs": 3})",
                            R"({"kind": "linear_layers", "pairs": [["a"], 4, [1, 2], ["x", "y"]]})"}) {
    FakeTrial trial;
    for (int step = 0; step < 24; ++step)
      trial.Step().Loss(2).Event(format::EventKind::kOptimizerStep, 0).EventJson(event);
    EXPECT_TRUE(testing::FindingsOf(trial, "MissingActivation", ParameterSet::kLuff).empty());
  }
}

// Layers "0", "2", ... of a model, each of 8 numbers or `width`.
std::vector<Finding> OfSoftmaxes(int layers, int width = 8, bool bias = true, int taken_back = -1) {
  FakeTrial trial;
  std::string parameters, chain;
  for (int i = 0; i < layers; ++i) {
    const std::string path = std::to_string(2 * i);
    parameters += (i == 0 ? "" : ", ") + Layer(path, width, width, {});
    if (bias || i + 1 < layers)
      parameters +=
          fmt::format(R"(, {{"path": "{0}.bias", "name": "Net_{0}.bias", "shape": [{1}]}})", path, width);
    chain += fmt::format(R"({}"Net_{}.weight")", i == 0 ? "" : ", ", path);
  }
  trial.SetDocument(
      "model",
      fmt::format(R"({{"models": [{{"name": "Net", "type": "Net", "modules": [{{"path": "", "type": "Net"}}],
                           "parameters": [{}]}}], "optimizers": [{{"number": 0, "name": "SGD_0"}}]}})",
                  parameters));
  for (int step = 0; step < 24; ++step) {
    trial.Step().Loss(2).Event(format::EventKind::kOptimizerStep, 0);
    if (step == 0) trial.EventJson(fmt::format(R"({{"kind": "softmax_layers", "layers": [{}]}})", chain));
    if (step == taken_back) trial.EventJson(R"({"kind": "softmax_layers", "layers": []})");
  }
  return testing::FindingsOf(trial, "MissingActivation", ParameterSet::kLuff);
}

TEST(MissingActivation, SoftmaxesInThePlacesOfActivations_AreTold) {
  auto findings = OfSoftmaxes(3);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "softmax_between");
  EXPECT_EQ(findings[0].tensor, "0");
  EXPECT_EQ(findings[0].other_tensors, (std::vector<std::string>{"2", "4"}));
  EXPECT_EQ(findings[0].step, 15);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  findings = OfSoftmaxes(3, 8, true, 20);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
  EXPECT_TRUE(OfSoftmaxes(2).empty());            // shares of something
  EXPECT_TRUE(OfSoftmaxes(3, 4).empty());         // of few classes
  EXPECT_TRUE(OfSoftmaxes(3, 8, false).empty());  // topics and their words
  EXPECT_TRUE(OfSoftmaxes(3, 8, true, 12).empty());
}

}  // namespace
}  // namespace luff::rules::missing_activation_test

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// Losses and heads with parameters of their own that no optimizer holds, beside what looks like them.
namespace luff::rules::untrained_criteria_test {
namespace {

using format::EventKind;
using format::Role;
using testing::FakeTrial;

// A model that is trained, and a criterion beside it.
struct Story {
  std::string type = "CenterLoss";
  std::string caller = "CenterLoss";  // as samples name it
  std::vector<std::string> paths = {"centers"};
  std::vector<std::string> shapes = {"[4, 2]"};
  std::string optimizer = "null", requires_grad = "true";
  bool labels = true;        // ids beside the features
  int rows_of_labels = 3;    // of 3 rows of features
  bool losses_only = false;  // it gets nothing but numbers
  bool updated = false;      // before
  double moves = 0;          // of its values, each step
  std::string event = {};    // at the first step
};

std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  std::string parameters;
  for (std::size_t i = 0; i < story.paths.size(); ++i)
    parameters += std::string(i == 0 ? "" : ", ") + R"({"path": ")" + story.paths[i] + R"(", "name": "C_)" +
                  story.paths[i] + R"(", "shape": )" + story.shapes[i] +
                  R"(, "elements": 8, "requires_grad": )" + story.requires_grad + R"(, "optimizer": )" +
                  story.optimizer + (story.updated ? R"(, "updated": true})" : "}");
  trial.SetDocument("model", R"({"models": [
    {"name": "Net", "type": "Net", "parameters": [{"path": "w", "name": "Net_w", "shape": [2],
      "requires_grad": true, "optimizer": "SGD"}]},
    {"name": "C", "type": ")" + story.type +
                                 R"(", "modules": [{"path": "", "type": ")" + story.type +
                                 R"("}], "parameters": [)" + parameters + R"(]}],
    "optimizers": [{"name": "SGD", "type": "SGD", "number": 0, "parameters": 1, "foreign": 0}]})");
  for (int step = 0; step < 70; ++step) {
    trial.Step().Event(EventKind::kOptimizerStep, 0).Loss(1);
    if (step == 0 && !story.event.empty()) trial.EventJson(story.event);
    if ((step & (step - 1)) == 0)
      trial.EventJson(R"({"kind": "reach", "without_gradient": [], "without_gradient_count": 0,
        "foreign": [], "reached_count": )" +
                      std::to_string(1 + story.paths.size()) + "}");
    const std::string sample = "sample/" + story.caller + "_input_";
    if (story.losses_only) {
      trial.Sample(sample + "0", {}, {0.4}).Sample(sample + "1", {}, {0.7});
    } else {
      trial.Sample(sample + "0", {3, 2}, {0.1, 0.2, 0.3, 0.4, 0.5, 0.6});
      std::vector<double> second(static_cast<std::size_t>(story.rows_of_labels), 1);
      trial.Sample(sample + "1", {story.rows_of_labels}, second,
                   story.labels ? DType::kInt64 : DType::kFloat32);
    }
    trial.Tensor("Net_w", Role::kWeight, {1, 2.0 + step});
    for (const std::string& path : story.paths)
      trial.Tensor("C_" + path, Role::kWeight, {0.3, -0.2, 0.7, story.moves * step});
    trial.Tensor("gradient/Net_w", Role::kGradient, {1, 1});
  }
  return testing::FindingsOf(trial, "ParamNotOptimized", ParameterSet::kLuff);
}

TEST(UntrainedCriteria, CentresOfALossThatNoOptimizerHolds_AreNamed) {
  const auto findings = Told({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "not_in_optimizer");
  EXPECT_EQ(findings[0].tensor, "C_centers");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].remedy.find("criterion.parameters()"), std::string::npos);
  EXPECT_NE(findings[0].why.find("as they were drawn"), std::string::npos);
  EXPECT_LE(findings[0].step, 8);
}

TEST(UntrainedCriteria, AHeadWithLabels_OneLayer_AndWeightsOfSeveralLosses_AreNamed) {
  EXPECT_EQ(Told({.type = "ArcMargin", .caller = "C", .paths = {"weight"}}).size(), 1U);
  EXPECT_EQ(
      Told({.type = "CosFace", .caller = "C", .paths = {"fc.weight", "fc.bias"}, .shapes = {"[4, 2]", "[4]"}})
          .size(),
      1U);
  EXPECT_EQ(Told({.type = "AdaptiveLogSoftmaxWithLoss",
                  .caller = "Net",
                  .paths = {"head.weight", "tail.0.0.weight", "tail.0.1.weight"},
                  .shapes = {"[4, 2]", "[2, 2]", "[8, 2]"}})
                .size(),
            1U);
  EXPECT_EQ(
      Told(
          {.type = "MultiTask", .caller = "C", .paths = {"log_vars"}, .shapes = {"[2]"}, .losses_only = true})
          .size(),
      1U);
}

TEST(UntrainedCriteria, WhatIsTrainedFrozenLoadedOrMovedByHand_IsSilent) {
  EXPECT_TRUE(Told({.optimizer = "\"SGD\""}).empty());
  EXPECT_TRUE(Told({.requires_grad = "false"}).empty());
  EXPECT_TRUE(
      Told({.updated = true}).empty());  // a classifier of an earlier training, to which another is held
  EXPECT_TRUE(Told({.moves = 1e-3}).empty());  // centres that the script moves
  EXPECT_TRUE(
      Told({.event = R"({"kind": "load_state_dict", "model": "CenterLoss", "strict": true, "matched": 1,
    "missing": [], "missing_count": 0, "unexpected": [], "unexpected_count": 0})"})
          .empty());
}

TEST(UntrainedCriteria, NetworksThatMeasureOrTeach_AreSilent) {
  // A network drawn at random that compares two images, and one that is a critic.
  EXPECT_TRUE(Told({.type = "PerceptualLoss", .caller = "PerceptualLoss", .labels = false}).empty());
  // One that judges images with their classes, or noise with its time: several layers.
  EXPECT_TRUE(Told({.type = "Critic",
                    .caller = "C",
                    .paths = {"body.0.weight", "body.2.weight"},
                    .shapes = {"[4, 2]", "[4, 4]"}})
                  .empty());
  // Ids that are no labels of the rows: edges of a graph, tokens of another length.
  EXPECT_TRUE(Told({.type = "Graph", .caller = "C", .rows_of_labels = 2}).empty());
  // A learnt temperature that is kept.
  EXPECT_TRUE(Told({.paths = {"scale"}, .shapes = {"[]"}, .labels = false}).empty());
  // What is never sampled.
  EXPECT_TRUE(Told({.caller = "Other"}).empty());
}

}  // namespace
}  // namespace luff::rules::untrained_criteria_test

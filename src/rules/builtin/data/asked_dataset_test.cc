#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// Datasets that a child has asked (LabelNoise, moved_apart; TrainValSkew, in_place and drawn_in_evaluations),
// and evaluations whose targets belong to other rows (TrainValSkew, other_rows).
namespace luff::rules::asked_dataset_test {
namespace {

using testing::FakeTrial;

std::vector<Finding> Told(const std::string& event) {
  FakeTrial trial;
  for (int step = 0; step < 20; ++step) {
    trial.Step().Loss(1);
    if (step == 5) trial.EventJson(event);
  }
  return testing::FindingsOf(trial, "LabelNoise,TrainValSkew", ParameterSet::kLuff);
}

TEST(AskedDataset, WhatTheChildFound_IsNamedOnce) {
  const std::vector<std::pair<std::string, std::string>> events = {
      {R"({"kind": "dataset", "dataset": "Shapes", "apart": 12, "moved": 20, "picture": "mirrored", "mask": "as it was"})",
       "moved_apart"},
      {R"({"kind": "dataset", "dataset": "Shapes", "boxes": 9, "moved": 9})", "moved_apart"},
      {R"({"kind": "dataset", "dataset": "Shapes", "changed": 4, "distance": 0.5})", "in_place"},
      {R"({"kind": "dataset", "dataset": "Shapes", "evaluations_drawn": 8, "asked": 8})",
       "drawn_in_evaluations"}};
  for (const auto& [event, cause] : events) {
    const auto findings = Told(event);
    ASSERT_EQ(findings.size(), 1U) << event;
    EXPECT_EQ(findings[0].cause, cause);
    EXPECT_EQ(findings[0].severity, Severity::kWarn);
    EXPECT_EQ(findings[0].step, 5);
  }
}

TEST(AskedDataset, BrokenEvents_AreSilent) {
  for (const char* event :
       {R"({"kind": "dataset"})", R"({"kind": "dataset", "no_replay": "memory is short"})",
        R"({"kind": "dataset", "apart": 0, "moved": 3})", R"({"kind": "dataset", "apart": "a", "moved": []})",
        R"({"kind": "dataset", "changed": 4})", R"({"kind": "dataset", "evaluations_drawn": 9, "asked": 8})"})
    EXPECT_TRUE(Told(event).empty()) << event;
}

// A training on classes that the model learns to tell, and evaluations.
struct Story {
  double other = 1;          // share of the evaluation's targets that are those of other rows
  double sure = 6;           // score of the right class of training rows, from step 8 on
  bool always_same = false;  // the training has 32 rows, which it learns by heart
  bool one_answer = false;   // evaluations are all given one answer
  bool near = false;         // wrong classes of evaluations are the next to the right ones
  int evaluations = 4;
  int classes = 5;
  int stride = 0;  // of windows of one series, which overlap unless it is 24
};

std::vector<Finding> Evaluated(const Story& story) {
  constexpr int kRows = 32;
  FakeTrial trial;
  std::mt19937 random(3);
  std::normal_distribution<double> normal(0, 1);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<double> series(static_cast<std::size_t>(story.stride) * kRows * 8 * 8 + 24);
  for (double& value : series) value = normal(random);
  const int width = story.stride > 0 ? 24 : 2;
  const auto step = [&](bool train, int n) {
    std::vector<double> x;
    std::vector<double> labels;
    std::vector<double> scores;
    for (int row = 0; row < kRows; ++row) {
      const int truth = story.always_same && train
                            ? row % story.classes
                            : static_cast<int>(random() % static_cast<unsigned>(story.classes));
      const int from = story.stride * (kRows * n + row);
      for (int k = 0; k < width; ++k)
        if (story.stride > 0)
          x.push_back(train ? series[static_cast<std::size_t>(from + k)] : normal(random));
        else
          x.push_back(k == 1 ? truth : story.always_same && train ? 0.37 * row : normal(random));
      int label = truth;
      if (!train && uniform(random) < story.other)
        label = story.near ? (truth + 1) % story.classes
                           : static_cast<int>(random() % static_cast<unsigned>(story.classes));
      labels.push_back(label);
      for (int c = 0; c < story.classes; ++c) {
        const int answer = !train && story.one_answer ? 1 : truth;
        const double known = !train || n >= 8 ? story.sure : 0;
        const double next = story.near && c == (truth + 1) % story.classes ? 2 : 0;
        scores.push_back((c == answer ? known : 0) + next + 0.5 * normal(random));
      }
    }
    double loss = 0;
    for (int i = 0; i < kRows; ++i) {
      double sum = 0;
      for (int c = 0; c < story.classes; ++c)
        sum += std::exp(scores[static_cast<std::size_t>(i * story.classes + c)]);
      loss += (std::log(sum) - scores[static_cast<std::size_t>(i * story.classes) +
                                      static_cast<std::size_t>(labels[static_cast<std::size_t>(i)])]) /
              kRows;
    }
    trial.Step(train ? query::Mode::kTrain : query::Mode::kEval)
        .Sample("sample/Net_input_0", {kRows, width}, x)
        .Sample("sample/CrossEntropyLoss_input_0", {kRows, story.classes}, scores)
        .Sample("sample/CrossEntropyLoss_input_1", {kRows}, labels, DType::kInt64)
        .Loss(loss, "CrossEntropyLoss_output_0");
  };
  for (int e = 0; e < story.evaluations; ++e) {
    for (int n = 0; n < 8; ++n) step(true, 8 * e + n);
    if (e > 0)
      for (int n = 0; n < 4; ++n) step(false, n);
  }
  auto findings = testing::FindingsOf(trial, "TrainValSkew", ParameterSet::kLuff);
  std::erase_if(findings, [](const Finding& one) { return one.cause != "other_rows"; });
  return findings;
}

TEST(ForeignEvaluations, TargetsOfOtherRows_AreNamed) {
  const auto findings = Evaluated({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].why.find("as by chance"), std::string::npos);
  EXPECT_EQ(Evaluated({.evaluations = 2}).size(), 1U);  // the only one, at the end
  EXPECT_EQ(Evaluated({.classes = 2}).size(), 1U);
  EXPECT_EQ(Evaluated({.stride = 24}).size(), 1U);
}

TEST(ForeignEvaluations, EvaluationsThatAreHarder_LearntByHeart_OrOfAnotherKind_AreSilent) {
  EXPECT_TRUE(Evaluated({.other = 0}).empty());
  EXPECT_TRUE(Evaluated({.other = 0.5}).empty());
  EXPECT_TRUE(Evaluated({.sure = 0}).empty());
  EXPECT_TRUE(Evaluated({.always_same = true}).empty());
  EXPECT_TRUE(Evaluated({.one_answer = true}).empty());
  EXPECT_TRUE(Evaluated({.near = true}).empty());
  EXPECT_TRUE(Evaluated({.stride = 1}).empty());  // it has seen most of each window before
}

}  // namespace
}  // namespace luff::rules::asked_dataset_test

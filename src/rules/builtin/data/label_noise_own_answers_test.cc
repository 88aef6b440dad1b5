#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// The cause "own_answers" of LabelNoise: targets that the model has made itself.
namespace luff::rules::own_answers_test {
namespace {

using testing::FakeTrial;

struct Training {
  double scale = 0.3;  // of the scores: a model that has learnt has large ones
  int right = 32;      // rows of 32 whose target is the model's answer, from the third step on
  bool one_class = false;
  bool second_loss = false;
  bool sum = false;   // the loss is a sum
  bool even = false;  // as many answers of each class
  int since = 0;      // steps before the first of them
  int steps = 24;
};
std::vector<Finding> Told(const Training& how) {
  constexpr int kClasses = 4;
  constexpr int kRows = 32;
  FakeTrial trial;
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  for (int step = 0; step < how.steps; ++step) {
    std::vector<double> scores;
    std::vector<double> labels;
    double loss = 0;
    for (int row = 0; row < kRows; ++row) {
      std::vector<double> own(kClasses);
      for (double& score : own) score = how.scale * normal(random);
      if (how.one_class) own[1] = *std::max_element(own.begin(), own.end()) + 0.01;
      if (how.even)
        own[static_cast<std::size_t>(row % kClasses)] = *std::max_element(own.begin(), own.end()) + 0.01;
      auto label = std::max_element(own.begin(), own.end()) - own.begin();
      if (step < how.since || (step >= 2 && row >= how.right)) label = (label + 1) % kClasses;
      double sum = 0;
      for (const double score : own) sum += std::exp(score);
      loss += (std::log(sum) - own[static_cast<std::size_t>(label)]) / (how.sum ? 1 : kRows);
      scores.insert(scores.end(), own.begin(), own.end());
      labels.push_back(static_cast<double>(label));
    }
    trial.Step()
        .Sample("sample/CrossEntropyLoss_input_0", {kRows, kClasses}, scores)
        .Sample("sample/CrossEntropyLoss_input_1", {kRows}, labels, DType::kInt64)
        .Loss(loss, "CrossEntropyLoss_output_0");
    if (how.second_loss)
      trial.Sample("sample/MSELoss_input_0", {2}, {1, 2})
          .Sample("sample/MSELoss_input_1", {2}, {1, 1})
          .Loss(0.5, "MSELoss_output_0");
  }
  return testing::FindingsOf(trial, "LabelNoise", ParameterSet::kLuff);
}

TEST(LabelNoise, TargetsThatAreTheModelsOwnAnswers_AreTold) {
  const auto findings = Told({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "own_answers");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_LE(findings[0].step, 12);
  EXPECT_NE(findings[0].remedy.find("labels of the data"), std::string::npos);
}

TEST(LabelNoise, OwnAnswersUnderASum_AreTold) { EXPECT_EQ(Told({.sum = true}).size(), 1U); }

TEST(LabelNoise, WhatAModelKnowsOrGetsWrong_IsNotItsOwnAnswer) {
  EXPECT_TRUE(Told({.scale = 6}).empty());           // it has learnt these rows before
  EXPECT_TRUE(Told({.right = 31}).empty());          // one row in a batch is wrong
  EXPECT_TRUE(Told({.one_class = true}).empty());    // sorted rows, and a model that always says the same
  EXPECT_TRUE(Told({.second_loss = true}).empty());  // own answers beside labels
  EXPECT_TRUE(Told({.since = 9}).empty());           // later: it may have learnt
  EXPECT_TRUE(Told({.steps = 6}).empty());
  EXPECT_TRUE(Told({.scale = 12, .sum = true}).empty());  // it is sure, though the sum is large
  EXPECT_TRUE(Told({.even = true}).empty());              // episodes of classes that lie apart from the start
}

}  // namespace
}  // namespace luff::rules::own_answers_test

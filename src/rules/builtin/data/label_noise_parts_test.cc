#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

/// LabelNoise, part_of_other_rows.
namespace luff::rules::label_noise_parts_test {
namespace {

using testing::FakeTrial;
constexpr int kBatch = 32, kBatches = 24, kEpochs = 5, kClasses = 6;

struct Story {
  double other = 0;         // share of the training's targets that are drawn from other rows
  bool next = false;        // they are the next class instead
  bool there_too = false;   // and those of evaluations
  double noise = 0.5;       // of scores in training, as under dropout or augmentation
  double lost = 0;          // share of training rows of which nothing is left to see
  double pushed = 0;        // how far scores of training rows are moved against their class
  double noisy = 0;         // deviation of noise on the training's targets
  double gone_wild = 0;     // share of training targets that are outliers
  bool one_side = false;    // only targets of class 1 are drawn from others
  bool two_losses = false;  // of the same answers
  double dropout = -1;      // a module of this probability
  int classes = kClasses;
};

void Add(FakeTrial* trial, const std::vector<double>& scores, const std::vector<double>& labels, int classes,
         bool twice) {
  double loss = 0;
  const std::size_t rows = labels.size();
  for (std::size_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (int c = 0; c < classes; ++c)
      sum += std::exp(scores[i * static_cast<std::size_t>(classes) + static_cast<std::size_t>(c)]);
    loss += (std::log(sum) -
             scores[i * static_cast<std::size_t>(classes) + static_cast<std::size_t>(labels[i])]) /
            static_cast<double>(rows);
  }
  const auto n = static_cast<std::int64_t>(rows);
  trial->Sample("sample/CrossEntropyLoss_input_0", {n, classes}, scores)
      .Sample("sample/CrossEntropyLoss_input_1", {n}, labels, DType::kInt64)
      .Loss(loss, "CrossEntropyLoss_output_0");
  if (twice)
    trial->Sample("sample/CrossEntropyLoss_input_2", {n, classes}, scores)
        .Sample("sample/CrossEntropyLoss_input_3", {n}, labels, DType::kInt64)
        .Loss(loss, "CrossEntropyLoss_output_1");
}

FakeTrial Begin(double dropout) {
  FakeTrial trial;
  trial.SetDocument(
      "model",
      R"({"models": [{"name": "Net", "type": "Net", "parameters": [], "modules": [{"path": "a", "name": "a",
      "type": ")" +
          std::string(dropout >= 0 ? "Dropout" : "Linear") + R"(", "settings": {"p": )" +
          std::to_string(dropout) + R"(}}]}], "optimizers": []})");
  return trial;
}

// Classes lie on a circle: the model takes neighbours for each other where it is not sure.
std::vector<Finding> OfClasses(const Story& story) {
  FakeTrial trial = Begin(story.dropout);
  std::mt19937 random(11);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::normal_distribution<double> normal(0, 1);
  const auto step = [&](bool train) {
    std::vector<double> scores;
    std::vector<double> labels;
    for (int row = 0; row < kBatch; ++row) {
      const int truth = static_cast<int>(random() % static_cast<unsigned>(story.classes));
      int label = truth;
      const bool may = (train || story.there_too) && (!story.one_side || truth == 1);
      if (may && uniform(random) < story.other)
        label = story.next ? (truth + 1) % story.classes
                           : static_cast<int>(random() % static_cast<unsigned>(story.classes));
      const bool lost = train && uniform(random) < story.lost;
      for (int c = 0; c < story.classes; ++c) {
        const int apart = std::min(std::abs(truth - c), story.classes - std::abs(truth - c));
        double score = lost ? 0 : -2.0 * apart - (train && c == truth ? story.pushed : 0);
        score += normal(random) * (lost ? 0.3 : train ? story.noise : 0.5);
        scores.push_back(score);
      }
      labels.push_back(label);
    }
    trial.Step(train ? query::Mode::kTrain : query::Mode::kEval);
    Add(&trial, scores, labels, story.classes, story.two_losses && train);
  };
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (int batch = 0; batch < kBatches; ++batch) step(true);
    for (int batch = 0; batch < 8; ++batch) step(false);
  }
  return testing::FindingsOf(trial, "LabelNoise", ParameterSet::kLuff);
}

std::vector<Finding> OfNumbers(const Story& story, int width = 1) {
  FakeTrial trial = Begin(story.dropout);
  std::mt19937 random(12);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::normal_distribution<double> normal(0, 1);
  const auto drawn = [&] {
    std::vector<double> row(static_cast<std::size_t>(width));
    for (double& value : row) value = normal(random);
    return row;
  };
  const auto step = [&](bool train) {
    std::vector<double> answers;
    std::vector<double> targets;
    double loss = 0;
    for (int row = 0; row < kBatch; ++row) {
      const std::vector<double> truth = drawn();
      std::vector<double> target = truth;
      if ((train || story.there_too) && uniform(random) < story.other) target = drawn();
      if (train && uniform(random) < story.gone_wild) target.assign(target.size(), 8);
      for (double& value : target) value += train ? story.noisy * normal(random) : 0;
      const bool lost = train && uniform(random) < story.lost;
      for (std::size_t k = 0; k < truth.size(); ++k) {
        const double answer = (lost ? 0 : truth[k]) + normal(random) * (train ? story.noise : 0.5) * 0.4;
        answers.push_back(answer);
        loss += (answer - target[k]) * (answer - target[k]) / (kBatch * width);
      }
      targets.insert(targets.end(), target.begin(), target.end());
    }
    trial.Step(train ? query::Mode::kTrain : query::Mode::kEval)
        .Sample("sample/MSELoss_input_0", {kBatch, width}, answers)
        .Sample("sample/MSELoss_input_1", {kBatch, width}, targets)
        .Loss(loss, "MSELoss_output_0");
  };
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (int batch = 0; batch < kBatches; ++batch) step(true);
    for (int batch = 0; batch < 8; ++batch) step(false);
  }
  return testing::FindingsOf(trial, "LabelNoise", ParameterSet::kLuff);
}

double Evidence(const Finding& finding, std::string_view name) {
  for (const auto& one : finding.evidence)
    if (one.name == name) return one.value;
  return -1;
}

TEST(LabelNoiseParts, APartOfTheLabelsOfOtherRows_IsNamed_WithItsShare) {
  for (const double share : {0.25, 0.5}) {
    for (const int classes : {2, 3, 6}) {
      const auto findings = OfClasses({.other = share, .classes = classes});
      ASSERT_EQ(findings.size(), 1U) << share << " " << classes;
      EXPECT_EQ(findings[0].cause, "part_of_other_rows");
      EXPECT_NEAR(Evidence(findings[0], "share"), share, 0.12);
    }
  }
  // Dropout hides nothing of it, unless hardly anything is left of the model.
  EXPECT_EQ(OfClasses({.other = 0.5, .noise = 1, .dropout = 0.5}).size(), 1U);
  EXPECT_TRUE(OfClasses({.other = 0.5, .noise = 1, .dropout = 0.9}).empty());
}

TEST(LabelNoiseParts, APartOfTheNumbersOfOtherRows_IsNamed) {
  for (const int width : {1, 5}) {
    const auto findings = OfNumbers({.other = 0.5}, width);
    ASSERT_EQ(findings.size(), 1U) << width;
    EXPECT_EQ(findings[0].cause, "part_of_other_rows");
    EXPECT_NEAR(Evidence(findings[0], "share"), 0.5, 0.12);
  }
}

TEST(LabelNoiseParts, RowsThatAreOnlyHard_AreSilent) {
  for (const int classes : {2, 3, 6}) {
    for (const double noise : {1.0, 2.0, 4.0, 8.0})
      EXPECT_TRUE(OfClasses({.noise = noise, .classes = classes}).empty()) << classes << " " << noise;
    for (const double lost : {0.2, 0.5})
      EXPECT_TRUE(OfClasses({.lost = lost, .classes = classes}).empty()) << classes;
    for (const double pushed : {1.0, 2.0, 3.0})
      EXPECT_TRUE(OfClasses({.pushed = pushed, .classes = classes}).empty()) << classes << " " << pushed;
  }
  for (const double noise : {1.0, 2.0, 4.0, 8.0}) {
    EXPECT_TRUE(OfNumbers({.noise = noise}).empty()) << noise;
    EXPECT_TRUE(OfNumbers({.noise = noise}, 5).empty()) << noise;
  }
  for (const double lost : {0.2, 0.5}) EXPECT_TRUE(OfNumbers({.lost = lost}).empty());
  EXPECT_TRUE(OfNumbers({.gone_wild = 0.3}).empty());
  for (const double noisy : {0.5, 1.0, 2.0, 4.0}) EXPECT_TRUE(OfNumbers({.noisy = noisy}).empty()) << noisy;
}

TEST(LabelNoiseParts, WrongLabelsOfAnotherKind_EvaluationsThatAreAlike_AndMixedBatches_AreSilent) {
  for (const auto& finding : OfClasses({.other = 0.5, .next = true}))
    EXPECT_NE(finding.cause, "part_of_other_rows");
  EXPECT_TRUE(OfClasses({.other = 0.5, .there_too = true}).empty());
  EXPECT_TRUE(OfNumbers({.other = 0.5, .there_too = true}).empty());
  EXPECT_TRUE(OfClasses({.other = 0.6, .one_side = true, .classes = 2}).empty());
  EXPECT_TRUE(OfClasses({.other = 0.5, .two_losses = true}).empty());
  EXPECT_TRUE(OfClasses({.other = 0.03}).empty());
}

}  // namespace
}  // namespace luff::rules::label_noise_parts_test

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules::class_imbalance_test {
namespace {

using testing::Batch;
using testing::FakeTrial;

using format::Role;

std::vector<Finding> FindingsOf(const FakeTrial& trial, const std::string& rule = "ClassImbalance",
                                ParameterSet set = ParameterSet::kLuff) {
  return testing::FindingsOf(trial, rule, set);
}

// `share` of the samples are positive. The model answers "no" to all, or finds them.
FakeTrial Story(double share, double pos_weight, bool finds_them, int steps = 240) {
  FakeTrial trial;
  std::mt19937 random(4);
  std::uniform_real_distribution<double> uniform;
  for (int step = 0; step < steps; ++step) {
    std::vector<double> scores;
    std::vector<double> targets;
    for (int i = 0; i < 64; ++i) {
      const double y = uniform(random) < share ? 1 : 0;
      targets.push_back(y);
      scores.push_back((finds_them && y == 1 ? 1 : -3) + uniform(random));
    }
    testing::TellPairs(&trial, "WeightedBCE", testing::BceWithLogits(scores, targets, pos_weight), scores,
                       targets, DType::kInt64);
  }
  return trial;
}

TEST(ClassImbalance, RarePositivesThatNothingWeights_AreTold) {
  const auto findings = FindingsOf(Story(0.03, 1, false));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "unweighted");
  EXPECT_GE(findings[0].step, 96);
}

TEST(ClassImbalance, WeightedFoundOrCommonPositives_AreSilent) {
  EXPECT_TRUE(FindingsOf(Story(0.03, 25, false)).empty());
  EXPECT_TRUE(FindingsOf(Story(0.03, 1, true)).empty());
  EXPECT_TRUE(FindingsOf(Story(0.3, 1, false)).empty());
  EXPECT_TRUE(FindingsOf(Story(0.03, 1, false, 90)).empty());  // too early
}

// As Story, of a loss that tells its pos_weight.
std::string WeighedPositives(double share, double pos_weight) {
  FakeTrial trial;
  std::mt19937 random(4);
  std::uniform_real_distribution<double> uniform;
  for (int step = 0; step < 100; ++step) {
    std::vector<double> scores;
    std::vector<double> targets;
    for (int i = 0; i < 64; ++i) {
      targets.push_back(uniform(random) < share ? 1 : 0);
      scores.push_back(uniform(random) - 0.5);
    }
    testing::TellPairs(&trial, "BCEWithLogitsLoss", testing::BceWithLogits(scores, targets, pos_weight),
                       scores, targets);
    if (step == 0)
      trial.EventJson(R"({"kind": "loss_weights", "loss": "BCEWithLogitsLoss", "call": 0, "pos_weight": [)" +
                      std::to_string(pos_weight) + "]}");
  }
  const auto findings = FindingsOf(trial);
  return findings.empty() ? "" : findings[0].cause;
}

TEST(ClassImbalance, AWeightThatIsTheShareOfPositives_IsNamed_AndOthersAreSilent) {
  EXPECT_EQ(WeighedPositives(0.1, 0.1), "weights_upside_down");
  EXPECT_EQ(WeighedPositives(0.1, 0.1 / 0.9), "weights_upside_down");
  EXPECT_EQ(WeighedPositives(0.1, 9), "");
  EXPECT_EQ(WeighedPositives(0.1, 3), "");
  EXPECT_EQ(WeighedPositives(0.9, 1 / 9.0), "");  // many positives, weighed down
  EXPECT_EQ(WeighedPositives(0.3, 1), "");
  EXPECT_EQ(WeighedPositives(0.5, 0.5), "");
}

TEST(ClassImbalance, PositivesThatOutweighAllNegatives_AreNamed) {
  EXPECT_EQ(WeighedPositives(0.2, 200), "positives_outweigh");
  EXPECT_EQ(WeighedPositives(0.5, 99), "positives_outweigh");  // drawn evenly, and weighed up once more
  EXPECT_EQ(WeighedPositives(0.02, 49), "");
  EXPECT_EQ(WeighedPositives(0.2, 20), "");    // what is rare costs more, on purpose
  EXPECT_EQ(WeighedPositives(0.95, 2), "");    // frequent positives
  EXPECT_EQ(WeighedPositives(0.001, 99), "");  // fewer than 30 were seen
}

// Targets of pixels: of classes, and of one mask.
std::string WeighedPixels(double share, const std::string& kind, const std::string& weights, int third = 0) {
  FakeTrial trial;
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform;
  for (int step = 0; step < 40; ++step) {
    const bool binary = kind == "BCEWithLogitsLoss";
    std::vector<double> scores(binary ? 2 * 64 : 2 * 2 * 64), targets(2 * 64);
    for (double& score : scores) score = uniform(random) - 0.5;
    for (double& target : targets) target = uniform(random) < share ? 1 : 0;
    if (third != 0) targets[0] = third;
    trial.Step()
        .Sample("sample/" + kind + "_input_0",
                binary ? std::vector<std::int64_t>{2, 1, 8, 8} : std::vector<std::int64_t>{2, 2, 8, 8},
                scores)
        .Sample("sample/" + kind + "_input_1",
                binary ? std::vector<std::int64_t>{2, 1, 8, 8} : std::vector<std::int64_t>{2, 8, 8}, targets,
                binary ? DType::kFloat32 : DType::kInt64)
        .Loss(0.7, kind + "_output_0");
    if (step == 0)
      trial.EventJson(R"({"kind": "loss_weights", "loss": ")" + kind + R"(", "call": 0, )" + weights + "}");
  }
  const auto findings = FindingsOf(trial);
  return findings.empty() ? "" : findings[0].cause;
}

TEST(ClassImbalance, WeightsOfPixels_AreComparedToo) {
  const std::string classes = "CrossEntropyLoss", mask = "BCEWithLogitsLoss";
  EXPECT_EQ(WeighedPixels(0.05, classes, R"("weight": [0.95, 0.05])"), "weights_upside_down");
  EXPECT_EQ(WeighedPixels(0.05, classes, R"("weight": [0.05, 0.95])"), "");
  EXPECT_EQ(WeighedPixels(0.05, classes, R"("weight": [1, 0.3])"), "");
  EXPECT_EQ(WeighedPixels(0.5, classes, R"("weight": [0.5, 0.5])"), "");
  EXPECT_EQ(WeighedPixels(0.2, mask, R"("pos_weight": [200])"), "positives_outweigh");
  EXPECT_EQ(WeighedPixels(0.2, mask, R"("pos_weight": [4])"), "");
  EXPECT_EQ(WeighedPixels(0.1, mask, R"("pos_weight": [0.111])"), "weights_upside_down");
  EXPECT_EQ(WeighedPixels(0.2, mask, R"("pos_weight": [200])", 2), "");  // no mask
}

std::string WeighedClasses(const std::vector<double>& shares, const std::string& weights) {
  FakeTrial trial;
  std::mt19937 random(4);
  std::discrete_distribution<int> drawn(shares.begin(), shares.end());
  std::uniform_real_distribution<double> uniform;
  for (int step = 0; step < 100; ++step) {
    Batch batch;
    for (int i = 0; i < 32; ++i) {
      batch.ids.push_back(drawn(random));
      for (std::size_t c = 0; c < shares.size(); ++c) batch.scores.push_back(uniform(random));
    }
    testing::TellClasses(&trial, batch, shares.size(), query::Mode::kTrain, 0.37);
    if (step == 0)
      trial.EventJson(R"({"kind": "loss_weights", "loss": "CrossEntropyLoss", "call": 0, "weight": )" +
                      weights + "}");
  }
  const auto findings = FindingsOf(trial);
  return findings.empty() ? "" : findings[0].cause;
}

TEST(ClassImbalance, WeightsInProportionToTheCounts_AreNamed_AndOthersAreSilent) {
  const std::vector<double> shares = {0.7, 0.2, 0.1};
  EXPECT_EQ(WeighedClasses(shares, "[0.7, 0.2, 0.1]"), "weights_upside_down");
  EXPECT_EQ(WeighedClasses(shares, "[1400, 400, 200]"), "weights_upside_down");
  EXPECT_EQ(WeighedClasses(shares, "[1.43, 5, 10]"), "");
  EXPECT_EQ(WeighedClasses(shares, "[1, 1, 1]"), "");
  EXPECT_EQ(WeighedClasses(shares, "[1, 0.5, 0.5]"), "");
  EXPECT_EQ(WeighedClasses({0.34, 0.33, 0.33}, "[0.34, 0.33, 0.33]"), "");  // about even
  EXPECT_EQ(WeighedClasses(shares, "[0.7, 0.2]"), "");
  EXPECT_EQ(WeighedClasses(shares, "\"many\""), "");
}

TEST(ClassImbalance, WeightsOfOtherClasses_AreNamed_AndThoseThatFollowTheCountsAreSilent) {
  const std::string other = "weights_of_other_classes";
  const std::vector<double> shares = {0.1, 0.5, 0.25, 0.15};     // inverse: 10, 2, 4, 6.67
  EXPECT_EQ(WeighedClasses(shares, "[2, 4, 6.67, 10]"), other);  // by frequency, as value_counts has them
  EXPECT_EQ(WeighedClasses(shares, "[6.67, 4, 2, 10]"), other);
  EXPECT_EQ(WeighedClasses(shares, "[10, 2, 4, 6.67]"), "");
  EXPECT_EQ(WeighedClasses(shares, "[3.16, 1.41, 2, 2.58]"), "");  // square roots
  EXPECT_EQ(WeighedClasses(shares, "[1, 2, 1, 1]"), "");
  EXPECT_EQ(WeighedClasses(shares, "[1, 1, 1, 5]"), "");
  const std::vector<double> even = {0.25, 0.25, 0.25, 0.25};
  EXPECT_EQ(WeighedClasses(even, "[1, 0.002, 0.002, 0.002]"), other);
  EXPECT_EQ(WeighedClasses(even, "[1, 0.1, 0.1, 0.1]"), "");  // costs
  EXPECT_EQ(WeighedClasses(even, "[1, 1, 1, 0.01]"), "");     // one class that hardly matters
  EXPECT_EQ(WeighedClasses(even, "[1, 0, 0, 0]"), "");        // on purpose
  EXPECT_EQ(WeighedClasses({0.5, 0.5}, "[1, 0.01]"), "");     // costs of one side
  // A rare class that costs much, and a background that costs little.
  EXPECT_EQ(WeighedClasses({0.03, 0.49, 0.48}, "[100, 1, 1]"), "");
  EXPECT_EQ(WeighedClasses({0.9, 0.03, 0.03, 0.04}, "[0.01, 1, 1, 1]"), "");
}

// Two epochs over the same rows, whose classes are `trained`, with evaluations on all three classes.
FakeTrial Epochs(const std::vector<std::int64_t>& trained, bool sorted = false) {
  FakeTrial trial;
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform;
  const auto tell = [&](query::Mode mode, int first_row, const auto& label_of) {
    Batch batch;
    for (int i = 0; i < 32; ++i) {
      batch.inputs.push_back(first_row + i + 0.5);
      batch.ids.push_back(static_cast<double>(label_of(i)));
      for (int c = 0; c < 3; ++c) batch.scores.push_back(uniform(random));
    }
    testing::TellClasses(&trial, batch, 3, mode);
  };
  constexpr std::size_t kSteps = 24;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (std::size_t step = 0; step < kSteps; ++step) {
      const std::size_t part = step * trained.size() / kSteps;
      tell(query::Mode::kTrain, static_cast<int>(step) * 32,
           [&](int) { return trained[sorted ? part : random() % trained.size()]; });
      if (step % 6 == 5) tell(query::Mode::kEval, 10000, [](int i) { return i % 3; });
    }
  }
  return trial;
}

TEST(ClassImbalance, AClassThatOnlyEvaluationsHave_IsTold) {
  const auto findings = FindingsOf(Epochs({0, 1}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "absent");
  EXPECT_NE(findings[0].what.find("class 2 is 31 % of the targets"), std::string::npos) << findings[0].what;
}

TEST(ClassImbalance, AClassThatComesLaterInTheEpoch_IsSilent) {
  EXPECT_TRUE(FindingsOf(Epochs({0, 1, 2})).empty());
  EXPECT_TRUE(FindingsOf(Epochs({0, 1, 2}, true)).empty());
}

TEST(ClassImbalance, Original_TenOfAThousand) {
  std::vector<double> labels(1000);
  for (std::size_t i = 0; i < 10; ++i) labels[i * 100] = 1;
  FakeTrial trial;
  for (int step = 0; step < 3; ++step) trial.Step();
  trial.Step().Tensor("labels", Role::kLabel, labels).Tensor("predictions", Role::kOutput, labels);
  const auto findings = FindingsOf(trial, "ClassImbalance", ParameterSet::kOriginal);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 3);
  EXPECT_EQ(findings[0].cause, "imbalance");
  EXPECT_EQ(findings[0].evidence[0].value, 99);
}

TEST(ClassImbalance, Original_AtTheThresholds) {
  const auto story = [](std::size_t ones, std::size_t missed) {
    std::vector<double> labels(1100, 0);
    std::vector<double> predictions(1100, 0);
    for (std::size_t i = 0; i < ones; ++i) {
      labels[i] = 1;
      predictions[i] = i < missed ? 0 : 1;
    }
    FakeTrial trial;
    trial.Step().Tensor("y_labels", Role::kLabel, labels).Tensor("y_predictions", Role::kOutput, predictions);
    return FindingsOf(trial, "ClassImbalance", ParameterSet::kOriginal).size();
  };
  EXPECT_EQ(story(100, 0), 0U);  // ratio 10 is not above 10
  EXPECT_EQ(story(99, 0), 1U);
  EXPECT_EQ(story(100, 70), 0U);  // 0.7 is not above 0.7
  EXPECT_EQ(story(100, 71), 1U);
}

// Three classes, of which the loss leaves the first out; the model answers one of the others, or all.
struct ZeroStory {
  std::string weights = "[0, 1, 1]";
  std::vector<double> shares = {0.3, 0.4, 0.3}, tested = {0.3, 0.4, 0.3};
  bool counted = true;     // the evaluation counts all answers
  bool answered = false;   // the model answers the class all the same
  std::int64_t rows = 32;  // of the model's input
};

std::string WeighedWithZero(const ZeroStory& story) {
  FakeTrial trial;
  std::mt19937 random(4);
  std::uniform_real_distribution<double> uniform;
  const auto tell = [&](query::Mode mode, const std::vector<double>& shares) {
    std::discrete_distribution<int> drawn(shares.begin(), shares.end());
    Batch batch;
    for (int i = 0; i < 32; ++i) {
      const int label = drawn(random);
      batch.ids.push_back(label);
      for (int c = 0; c < 3; ++c)
        batch.scores.push_back((c == 0 && !story.answered ? -4 : c == label ? 2 : 0) + uniform(random));
    }
    testing::TellClasses(&trial, batch, 3, mode, 0.37);
    const std::vector<double> input(static_cast<std::size_t>(story.rows) * 2, 0.5);
    trial.Sample("sample/Net_input_0", {story.rows, 2}, input);
  };
  for (int step = 0; step < 60; ++step) {
    tell(query::Mode::kTrain, story.shares);
    if (step == 0)
      trial.EventJson(R"({"kind": "loss_weights", "loss": "CrossEntropyLoss", "call": 0, "weight": )" +
                      story.weights + "}");
    if (step % 20 != 19) continue;
    for (int i = 0; i < 4; ++i) {
      tell(query::Mode::kEval, story.tested);
      if (story.counted)
        trial.EventJson(R"({"kind": "answers_counted", "loss": "CrossEntropyLoss", "call": 0})");
    }
  }
  std::string causes;
  for (const Finding& one : FindingsOf(trial)) causes += one.cause;
  return causes;
}

TEST(ClassImbalance, AClassOfWeightZeroThatTheEvaluationCounts_IsNamed) {
  EXPECT_EQ(WeighedWithZero({}), "weight_of_zero");
}

TEST(ClassImbalance, ClassesThatAreLeftOutOnPurpose_AreSilent) {
  EXPECT_EQ(WeighedWithZero({.weights = "[1, 1, 1]"}), "");
  EXPECT_EQ(WeighedWithZero({.weights = "[0.01, 1, 1]"}), "");
  EXPECT_EQ(WeighedWithZero({.counted = false}), "");             // the evaluation may mask them
  EXPECT_EQ(WeighedWithZero({.tested = {0, 0.6, 0.4}}), "");      // it has no rows of the class
  EXPECT_EQ(WeighedWithZero({.shares = {0.02, 0.58, 0.4}}), "");  // hardly any in the training
  EXPECT_EQ(WeighedWithZero({.answered = true}), "");             // another loss trains it
  EXPECT_EQ(WeighedWithZero({.rows = 8}), "");                    // labels of places, with padding
}

}  // namespace
}  // namespace luff::rules::class_imbalance_test

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/format.h"
#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

// What losses of classes get: one column, a sigmoid of each, classes that a pooled ReLU silences.
namespace luff::rules::loss_of_classes_test {
namespace {

using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "LossInputContract", ParameterSet::kLuff);
}

std::string MadeBy(const std::string& operation, int call = 0, const std::string& behind = "",
                   const std::string& loss = "CrossEntropyLoss") {
  return R"({"kind": "loss_input", "loss": ")" + loss + R"(", "call": )" + std::to_string(call) +
         R"(, "made_by": ")" + operation + "\"" + (behind.empty() ? "" : R"(, "behind": ")" + behind + "\"") +
         "}";
}

TEST(LossInputContract, ASigmoidOfEachClass_IsNoShare_OfKerasCategoricalLosses) {
  const auto told = [](const std::string& kind, const std::string& maker) {
    FakeTrial trial;
    for (int step = 0; step < 6; ++step) {
      trial.Step()
          .Loss(0.4, kind + "_output_0")
          .Sample("sample/" + kind + "_input_0", {2, 3}, {0.9, 0.8, 0.4, 0.3, 0.3, 0.6})
          .Sample("sample/" + kind + "_input_1", {2, 3}, {1, 0, 0, 0, 0, 1});
      if (step == 0) trial.EventJson(MadeBy(maker, 0, "", kind));
    }
    const auto findings = FindingsOf(trial);
    return findings.empty() ? std::string() : findings[0].cause;
  };
  EXPECT_EQ(told("CategoricalCrossentropy", "sigmoid"), "sigmoid_into_categorical");
  EXPECT_EQ(told("CategoricalCrossentropy", "softmax"), "");
  EXPECT_EQ(told("BCELoss", "sigmoid"), "");
  EXPECT_EQ(told("MSELoss", "sigmoid"), "");
}

TEST(LossInputContract, ALossOfClassesThatGetsOneColumn_Stops) {
  const auto told = [](const std::string& kind, std::int64_t columns) {
    FakeTrial trial;
    for (int step = 0; step < 6; ++step) {
      trial.Step()
          .Loss(0, kind + "_output_0")
          .Sample("sample/" + kind + "_input_0", {6 / columns, columns}, {0.9, 0.1, 0.4, 0.6, 0.3, 0.7})
          .Sample("sample/" + kind + "_input_1", {6 / columns, columns}, {1, 0, 0, 1, 0, 1});
    }
    return FindingsOf(trial);
  };
  for (const char* kind : {"CategoricalCrossentropy", "CrossEntropyLoss"}) {
    ASSERT_EQ(told(kind, 1).size(), 1U) << kind;
    EXPECT_EQ(told(kind, 1)[0].cause, "one_class");
    EXPECT_EQ(told(kind, 1)[0].severity, Severity::kStop);
  }
  EXPECT_TRUE(told("CategoricalCrossentropy", 2).empty());
  EXPECT_TRUE(told("BCELoss", 1).empty());
}

TEST(LossInputContract, OneColumnBesideOthers_IsSilent) {
  // Choices from a list that grows shorter: the last one of each list is no choice.
  FakeTrial list;
  for (int step = 0; step < 6; ++step) {
    list.Step();
    for (std::int64_t left = 3; left > 0; --left) {
      const std::string name = fmt::format("CrossEntropyLoss_input_{}", 2 * (3 - left));
      list.Loss(1, fmt::format("CrossEntropyLoss_output_{}", 3 - left))
          .Sample("sample/" + name, {4, left}, std::vector<double>(static_cast<std::size_t>(4 * left), -0.7))
          .Sample(fmt::format("sample/CrossEntropyLoss_input_{}", 2 * (3 - left) + 1), {4}, {0, 0, 0, 0},
                  DType::kInt64);
    }
  }
  EXPECT_TRUE(FindingsOf(list).empty());
  // As many candidates as there are, and a batch of one pair.
  const auto told = [](std::int64_t rows, std::int64_t first) {
    FakeTrial trial;
    for (int step = 0; step < 8; ++step) {
      const std::int64_t columns = step == 0 ? first : 1;
      trial.Step()
          .Loss(0, "CrossEntropyLoss_output_0")
          .Sample("sample/CrossEntropyLoss_input_0", {rows, columns},
                  std::vector<double>(static_cast<std::size_t>(rows * columns), -0.7))
          .Sample("sample/CrossEntropyLoss_input_1", {rows},
                  std::vector<double>(static_cast<std::size_t>(rows), 0), DType::kInt64);
    }
    return FindingsOf(trial).size();
  };
  EXPECT_EQ(told(4, 1), 1U);
  EXPECT_EQ(told(4, 3), 0U);
  EXPECT_EQ(told(1, 1), 0U);
}

TEST(LossInputContract, ClassesThatAPooledReluSilences_AreTold_OthersAreNot) {
  // Of six classes `silent` have a score of 0 in all rows; the others now and then.
  const auto told = [](int silent, const std::string& behind, bool asked = true, int steps = 100) {
    FakeTrial trial;
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    for (int step = 0; step < steps; ++step) {
      std::vector<double> shares;
      std::vector<double> ids;
      for (int row = 0; row < 12; ++row) {
        std::vector<double> scores(6);
        double sum = 0;
        for (int c = 0; c < 6; ++c) {
          double& score = scores[static_cast<std::size_t>(c)];
          score = std::exp(c < silent ? 0 : std::max(0.0, normal(random)));
          sum += score;
        }
        for (const double score : scores) shares.push_back(score / sum);
        ids.push_back(asked ? row % 6 : 5);
      }
      trial.Step()
          .Loss(1.7, "SparseCategoricalCrossentropy_output_0")
          .Sample("sample/SparseCategoricalCrossentropy_input_0", {12, 6}, shares)
          .Sample("sample/SparseCategoricalCrossentropy_input_1", {12}, ids, DType::kInt64);
      if (step == 0) trial.EventJson(MadeBy("softmax", 0, behind, "SparseCategoricalCrossentropy"));
    }
    return FindingsOf(trial);
  };
  const auto findings = told(2, "pooled_relu");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "activation_before_scores");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 64);
  EXPECT_EQ(told(1, "pooled_relu").size(), 1U);
  EXPECT_TRUE(told(0, "pooled_relu").empty());            // as SqueezeNet ends
  EXPECT_TRUE(told(2, "pooled_relu", false).empty());     // classes that do not come
  EXPECT_TRUE(told(2, "pooled_relu", true, 60).empty());  // a head that begins with zeros
  EXPECT_TRUE(told(2, "").empty());
}

}  // namespace
}  // namespace luff::rules::loss_of_classes_test

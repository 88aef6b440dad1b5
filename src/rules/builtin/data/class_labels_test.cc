#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules::class_labels_test {
namespace {

using testing::FakeTrial;

// Calls of a loss of 40 rows and ten units. A label follows from the number of its row.
struct Story {
  std::string kind = "SparseCategoricalCrossentropy";
  std::function<double(int)> label = [](int row) { return row % 10; };
  DType dtype = DType::kFloat32;
  bool keras = true;
  int steps = 24;
};

std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  trial.SetDocument("model", std::string("{") + (story.keras ? R"("framework": "keras", )" : "") +
                                 R"("models": [], "losses": [{"type": ")" + story.kind + R"("}]})");
  for (int step = 0; step < story.steps; ++step) {
    std::vector<double> labels(40);
    for (int row = 0; row < 40; ++row) labels[static_cast<std::size_t>(row)] = story.label(row + step);
    trial.Step()
        .Loss(2.3, story.kind + "_output_0")
        .Sample("sample/" + story.kind + "_input_0", {40, 10}, std::vector<double>(400, 0.1))
        .Sample("sample/" + story.kind + "_input_1", {40, 1}, labels, story.dtype);
  }
  return testing::FindingsOf(trial, "TargetRange", ParameterSet::kLuff);
}

TEST(TargetRange, LabelsOfClassesThatAreNoWholeNumbers_Stop) {
  const auto findings = Told({.label = [](int row) { return row % 10 / 255.0; }});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "cut_labels");
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 2);
  EXPECT_NE(findings[0].why.find("class 0"), std::string::npos) << findings[0].why;
  EXPECT_EQ(Told({.kind = "CrossEntropyLoss", .label = [](int row) { return row % 10 - 4.3; }}).size(), 1U);
}

TEST(TargetRange, WholeLabelsOfAnyType_AndLossesOfOthers_AreSilent) {
  EXPECT_TRUE(Told({}).empty());
  EXPECT_TRUE(Told({.dtype = DType::kInt64}).empty());
  EXPECT_TRUE(Told({.label = [](int row) { return row % 10 + 1e-6; }}).empty());
  EXPECT_TRUE(Told({.kind = "CrossEntropyLoss", .label = [](int row) { return row / 255.0; }, .keras = false})
                  .empty());
}

// Rows of `width` zeros and ones that a loss compares with what `maker` gives.
std::vector<Finding> Rows(const std::string& kind, const std::string& maker,
                          const std::function<double(int, int)>& target, int width = 4, int rows = 32) {
  FakeTrial trial;
  const auto size = static_cast<std::size_t>(rows * width);
  for (int step = 0; step < 24; ++step) {
    std::vector<double> targets(size);
    for (int row = 0; row < rows; ++row) {
      for (int c = 0; c < width; ++c)
        targets[static_cast<std::size_t>(row * width + c)] = target(row + step, c);
    }
    trial.Step()
        .Loss(0.3, kind + "_output_0")
        .Sample("sample/" + kind + "_input_0", {rows, width}, std::vector<double>(size, 1.0 / width))
        .Sample("sample/" + kind + "_input_1", {rows, width}, targets);
    if (step == 0 && !maker.empty())
      trial.EventJson(R"({"kind": "loss_input", "loss": ")" + kind + R"(", "call": 0, "made_by": ")" + maker +
                      "\"}");
  }
  return testing::FindingsOf(trial, "TargetRange", ParameterSet::kLuff);
}

double Tags(int row, int c) { return row % 3 == 0 && c < 2 ? 1 : row % 4 == c ? 1 : 0; }

TEST(TargetRange, RowsWithSeveralLabelsUnderASoftmax_AreTold) {
  for (const char* kind : {"MSELoss", "CategoricalCrossentropy", "BCELoss"}) {
    const auto findings = Rows(kind, "softmax", Tags);
    ASSERT_EQ(findings.size(), 1U) << kind;
    EXPECT_EQ(findings[0].cause, "several_labels");
    EXPECT_EQ(findings[0].severity, Severity::kWarn);
  }
  EXPECT_EQ(Rows("CrossEntropyLoss", "", Tags).size(), 1U);  // it applies a softmax itself
}

TEST(TargetRange, OneLabelARow_Shares_Items_Pairs_AndSigmoids_AreSilent) {
  const auto one = [](int row, int c) { return row % 4 == c ? 1.0 : 0.0; };
  const auto none = [](int row, int c) { return row % 4 == c && row % 2 == 0 ? 1.0 : 0.0; };
  const auto shares = [](int row, int c) { return row % 2 == 0 && c < 2 ? 0.5 : row % 4 == c ? 1.0 : 0.0; };
  for (const auto& target : {std::function<double(int, int)>(one), std::function<double(int, int)>(none),
                             std::function<double(int, int)>(shares)}) {
    EXPECT_TRUE(Rows("MSELoss", "softmax", target).empty());
    EXPECT_TRUE(Rows("CategoricalCrossentropy", "softmax", target).empty());
  }
  EXPECT_TRUE(Rows("BCELoss", "sigmoid", Tags).empty());
  EXPECT_TRUE(Rows("MSELoss", "", Tags).empty());
  EXPECT_TRUE(Rows("CategoricalCrossentropy", "softmax", Tags, 100).empty());  // items that were bought
  EXPECT_TRUE(Rows("CrossEntropyLoss", "", Tags, 32).empty());                 // which rows belong together
  EXPECT_TRUE(Rows("CategoricalCrossentropy", "softmax",
                   [&](int row, int c) {  // one row in 60
                     return row % 60 == 0 && c < 2 ? 1.0 : one(row, c);
                   })
                  .empty());
}

TEST(TargetRange, NumbersThatKerasOtherLossesMeet_MayNotLieBeyondTheOutput) {
  const auto counts = [](int row, int c) { return (row + c) % 7; };
  EXPECT_EQ(Rows("Poisson", "softmax", counts).at(0).cause, "out_of_reach");
  EXPECT_TRUE(Rows("Poisson", "softplus", counts).empty());
  EXPECT_TRUE(Rows("Hinge", "softmax", counts).empty());
}

}  // namespace
}  // namespace luff::rules::class_labels_test

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules::loss_shape_mismatch_test {
namespace {

using testing::Batch;
using testing::FakeTrial;

std::vector<Finding> FindingsOf(const std::string& kind, double loss, const std::vector<std::int64_t>& output,
                                const std::vector<std::int64_t>& target) {
  FakeTrial trial;
  for (int step = 0; step < 4; ++step) {
    trial.Step()
        .Loss(loss, kind + "_output_0")
        .Sample("sample/" + kind + "_input_0", output, {1, 2})
        .Sample("sample/" + kind + "_input_1", target, {2, 4});
  }
  return testing::FindingsOf(trial, "LossShapeMismatch", ParameterSet::kLuff);
}

TEST(LossShapeMismatch, AColumnAgainstARow_Stops) {
  const auto findings = FindingsOf("MSELoss", 3.5, {2, 1}, {2});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 1);
  EXPECT_NE(findings[0].what.find("(2, 1)"), std::string::npos) << findings[0].what;
}

TEST(LossShapeMismatch, ALossOfTheUsersOwnIsJudgedByItsValue) {
  EXPECT_EQ(FindingsOf("MSE", 3.5, {2, 1}, {2}).size(), 1U);    // the mean over all four pairs
  EXPECT_TRUE(FindingsOf("MSE", 2.5, {2, 1}, {2}).empty());     // squeezed: the mean over two
  EXPECT_TRUE(FindingsOf("Policy", 0.1, {2, 1}, {2}).empty());  // unknown formula
}

TEST(LossShapeMismatch, EqualShapesAndScalars_AreSilent) {
  EXPECT_TRUE(FindingsOf("MSELoss", 2.5, {2}, {2}).empty());
  EXPECT_TRUE(FindingsOf("MSELoss", 2.5, {2, 1}, {2, 1}).empty());
  EXPECT_TRUE(FindingsOf("BCEWithLogitsLoss", 2.5, {2, 1}, {2}).empty());  // torch raises
}

// Steps of which some tell how rows were flattened.
std::vector<Finding> Flattened(const std::vector<std::string>& crossed, const std::string& more = "") {
  FakeTrial trial;
  for (const std::string& how : crossed) {
    trial.Step().Loss(1);
    if (how != "-")
      trial.EventJson(R"({"kind":"loss_rows","loss":"CrossEntropyLoss","call":0,"crossed":")" + how +
                      R"(","output":[5,6,4],"target":[6,5])" + more + "}");
  }
  return testing::FindingsOf(trial, "LossShapeMismatch", ParameterSet::kLuff);
}

TEST(LossShapeMismatch, RowsFlattenedInAnotherOrder_Stop) {
  const auto findings = Flattened({"rows", "-", "-"});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "rows_crossed");
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_NE(findings[0].what.find("(5, 6, 4) and a target of (6, 5)"), std::string::npos) << findings[0].what;
  EXPECT_EQ(Flattened({"classes"})[0].cause, "classes_cut");
  EXPECT_EQ(Flattened({"axes"})[0].cause, "axes_reshaped");
  EXPECT_TRUE(Flattened({"axes", "-", ""}).back().healed);
  EXPECT_TRUE(Flattened({"rows", "-", ""}).back().healed);
}

// Steps of which some tell whether values meet the targets of all samples.
std::vector<Finding> Paired(const std::vector<std::string>& paired) {
  FakeTrial trial;
  for (const std::string& how : paired) {
    trial.Step().Loss(1);
    if (!how.empty())
      trial.EventJson(R"({"kind":"loss_pairs","output":[64],"target":[64,1],"paired":)" + how + "}");
  }
  return testing::FindingsOf(trial, "LossShapeMismatch", ParameterSet::kLuff);
}

TEST(LossShapeMismatch, ProductsWithTheTargetsOfAllSamples_AreNamed) {
  const auto findings = Paired({"", "true", "", "true"});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "broadcast");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].what.find("(64) by others of shape (64, 1)"), std::string::npos) << findings[0].what;
  EXPECT_FALSE(findings[0].healed);
  EXPECT_TRUE(Paired({"true", "", "false"}).at(0).healed);
  EXPECT_TRUE(Paired({"false", "7", R"("true")"}).empty());
}

TEST(LossShapeMismatch, EventsThatSayNothing_AreSilent) {
  EXPECT_TRUE(Flattened({"", "-"}).empty());
  EXPECT_TRUE(Flattened({"other"}).empty());
  FakeTrial trial;
  trial.Step().EventJson(R"({"kind":"loss_rows","loss":7,"call":0,"crossed":"rows"})");
  trial.EventJson(R"({"kind":"loss_rows","loss":"L","call":1e9,"crossed":"rows"})");
  EXPECT_TRUE(testing::FindingsOf(trial, "LossShapeMismatch", ParameterSet::kLuff).empty());
  trial.Step().EventJson(R"({"kind":"loss_rows","loss":"L","call":1,"crossed":"rows","output":"no"})");
  EXPECT_EQ(testing::FindingsOf(trial, "LossShapeMismatch", ParameterSet::kLuff).size(), 1U);
}

}  // namespace
}  // namespace luff::rules::loss_shape_mismatch_test

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

}  // namespace
}  // namespace luff::rules::loss_shape_mismatch_test

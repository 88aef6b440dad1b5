#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::underfit_test {
namespace {

using query::Mode;
using testing::FakeTrial;

template <typename Loss>
std::vector<Finding> Story(int evaluations, Loss loss, double gap, const std::string& rule = "Underfit") {
  FakeTrial trial;
  for (int e = 0; e < evaluations; ++e) {
    for (int step = 0; step < 200; ++step) trial.Step().Loss(loss(e));
    trial.Step(Mode::kEval).Loss(loss(e) * (1 + gap));
  }
  return testing::FindingsOf(trial, rule, ParameterSet::kLuff);
}

TEST(Underfit, LossAtItsStart_InBothSplits_IsToldAfterThreeThousandSteps) {
  const auto findings = Story(30, [](int e) { return e == 0 ? 1.0 : 0.95; }, 0.02);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 2999);
}

TEST(Underfit, PlateausThatEnd_Progress_AndOverfitting_AreSilent) {
  EXPECT_TRUE(Story(14, [](int) { return 1.0; }, 0).empty());
  EXPECT_TRUE(Story(30, [](int e) { return 1.0 - 0.003 * e; }, 0).empty());
  EXPECT_TRUE(Story(30, [](int e) { return e < 5 ? 1.0 : 0.6; }, 0).empty());
  EXPECT_TRUE(Story(30, [](int) { return 1.0; }, 0.3).empty());
}

}  // namespace
}  // namespace luff::rules::underfit_test

#include <cmath>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::overtraining_test {
namespace {

using query::Mode;
using testing::FakeTrial;

template <typename Validation>
std::vector<Finding> Story(int evaluations, Validation validation) {
  FakeTrial trial;
  for (int e = 0; e < evaluations; ++e) {
    for (int step = 0; step < 10; ++step) trial.Step().Loss(1);
    trial.Step(Mode::kEval).Loss(validation(e));
  }
  return testing::FindingsOf(trial, "Overtraining", ParameterSet::kLuff);
}

TEST(Overtraining, TwentyWorseEvaluations_AreTold_NineteenAreNot) {
  const auto worse = [](int e) { return e == 4 ? 0.5 : 0.7; };
  EXPECT_TRUE(Story(24, worse).empty());
  const auto findings = Story(25, worse);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].since_step, 49);
  EXPECT_EQ(findings[0].step, 249);
}

TEST(Overtraining, PlateausAndMildRises_AreSilent) {
  EXPECT_TRUE(Story(60, [](int e) { return e < 10 ? 1.0 - 0.05 * e : 0.56; }).empty());
  EXPECT_TRUE(Story(60, [](int e) { return e == 4 ? 0.010 : 0.03; }).empty());  // a small share of the loss
  EXPECT_TRUE(Story(60, [](int e) { return e < 40 ? 0.5 : 0.4; }).empty());
}

TEST(OriginalOvertraining, FiveStepsWithoutImprovement_Fire_AtTheFifth) {
  FakeTrial trial;
  for (const double loss : {1.0, 0.9, 0.8, 0.795, 0.80, 0.81, 0.82, 0.791}) trial.Step().Loss(loss);
  const auto findings = testing::FindingsOf(trial, "Overtraining", ParameterSet::kOriginal);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 7);  // steps 3 to 7 are not 0.01 below 0.8
  EXPECT_TRUE(testing::FindingsOf(trial, "Overtraining:both=True", ParameterSet::kOriginal).empty());
  EXPECT_TRUE(testing::FindingsOf(trial, "Overtraining:delta=0.001", ParameterSet::kOriginal).empty());
}

TEST(OriginalOvertraining, Validation_HasAPatienceOfItsOwn) {
  FakeTrial trial;
  for (int e = 0; e < 11; ++e) trial.Step().Loss(10 - e).Step(Mode::kEval).Loss(1);
  const auto findings = testing::FindingsOf(trial, "Overtraining", ParameterSet::kOriginal);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].mode, "EVAL");
  EXPECT_EQ(findings[0].step, 10);
}

}  // namespace
}  // namespace luff::rules::overtraining_test

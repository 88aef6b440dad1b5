#include <gtest/gtest.h>

#include "base/format.h"
#include "rules/builtin/time/pauses_test.h"

namespace luff::rules::first_steps_slow_test {
namespace {

std::vector<Finding> Told(double age_s, int steps, double compile_ms = 0) {
  testing::FakeTrial trial;
  trial.SetDocument("environment", fmt::format(R"({{"age_s":{}}})", age_s));
  for (int i = 0; i < steps; ++i)
    trial.Step().Phases({{format::Phase::kForward, 100}, {format::Phase::kCompile, i == 0 ? compile_ms : 0}});
  return testing::FindingsOf(trial, "FirstStepsSlow", ParameterSet::kLuff);
}

TEST(FirstStepsSlow, ALongStartIsNamedAtTheEnd) {
  const auto findings = Told(200, 3000);  // 5 minutes of training
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find(
                "step 20 was reached after 3 min, 40 % of the time so far: 3 min before the first"),
            std::string::npos)
      << findings[0].what;
  const auto compiled = Told(5, 3000, 240'000);
  ASSERT_EQ(compiled.size(), 1U);
  EXPECT_NE(compiled[0].what.find("4 min compiling"), std::string::npos) << compiled[0].what;
  EXPECT_NE(compiled[0].remedy.find("TORCHINDUCTOR_CACHE_DIR"), std::string::npos);
}

TEST(FirstStepsSlow, TwentyMinutesAreNamedAtOnce) { EXPECT_EQ(Told(1250, 20).size(), 1U); }

TEST(FirstStepsSlow, StepsThatEachTakeLongAreNoSlowStart) {
  testing::FakeTrial trial;
  trial.SetDocument("environment", R"({"age_s":20})");
  for (int i = 0; i < 100; ++i) trial.Step().Phases({{format::Phase::kForward, 70'000}});
  EXPECT_TRUE(testing::FindingsOf(trial, "FirstStepsSlow", ParameterSet::kLuff).empty());
}

TEST(FirstStepsSlow, AnEvaluationAtTheBeginIsAskedFor) {
  testing::FakeTrial trial;
  trial.SetDocument("environment", R"({"age_s":20})");
  for (int i = 0; i < 300; ++i) trial.Step(query::Mode::kEval).Phases({{format::Phase::kForward, 1000}});
  for (int i = 0; i < 600; ++i) trial.Step().Phases({{format::Phase::kForward, 1000}});
  EXPECT_TRUE(testing::FindingsOf(trial, "FirstStepsSlow", ParameterSet::kLuff).empty());
}

TEST(FirstStepsSlow, OtherStartsAreSilent) {
  EXPECT_TRUE(Told(30, 300).empty());     // half of the time, but half a minute
  EXPECT_TRUE(Told(200, 20000).empty());  // 4 %
  EXPECT_TRUE(Told(200, 50).empty());     // a run that was tried out
  EXPECT_TRUE(Told(0, 3000).empty());
  testing::FakeTrial trial;
  trial.SetDocument("environment", R"({"age_s":200,"age_run_queue_s":70})");  // a busy machine
  for (int i = 0; i < 600; ++i) trial.Step().Phases({{format::Phase::kForward, 100}});
  EXPECT_TRUE(testing::FindingsOf(trial, "FirstStepsSlow", ParameterSet::kLuff).empty());
}

}  // namespace
}  // namespace luff::rules::first_steps_slow_test

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// The cause "straight" of WeightUpdateRatio: a loss that falls along a straight line to the end.
namespace luff::rules::straight_fall_test {
namespace {

using format::Role;
using testing::FakeTrial;

// Passes over four batches of 32 rows.
struct Training {
  std::function<double(double)> loss = [](double share) {
    return 1 - 0.4 * share;
  };  // of the training so far
  int steps = 400;
  bool fresh = false;  // rows never come again
  double growth = 0;   // of the rate, over the training
  const char* outcome = "completed";
  std::function<double(double)> evaluated = nullptr;  // loss of the evaluations, of which there are ten
  double noise = 0;
};
std::vector<Finding> Told(const Training& how) {
  FakeTrial trial;
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (int step = 0; step < how.steps; ++step) {
    const double share = static_cast<double>(step) / how.steps;
    std::vector<double> rows;
    for (int i = 0; i < 64; ++i) rows.push_back((how.fresh ? step : step % 4) * 1000.0 + i);
    trial.Step().Loss(how.loss(share) + how.noise * normal(random));
    trial.Sample("sample/Net_input_0", {32, 2}, rows);
    trial.Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, 0.001 * (1 + how.growth * share));
    if (how.evaluated && step % (how.steps / 10) == how.steps / 10 - 1)
      trial.Step(query::Mode::kEval).Loss(how.evaluated(share));
  }
  return testing::FindingsOf(trial.Ends(how.outcome), "WeightUpdateRatio", ParameterSet::kLuff);
}

TEST(WeightUpdateRatio, ALossThatFallsAlongALineToTheEnd_Warns) {
  const auto findings = Told({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "straight");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 399);
  EXPECT_NE(findings[0].what.find("70 % left"), std::string::npos) << findings[0].what;
  EXPECT_NE(findings[0].remedy.find("raise the learning rate"), std::string::npos);
  EXPECT_EQ(Told({.noise = 0.05}).size(), 1U);
  // The square of a distance that shrinks by the same step each time.
  EXPECT_EQ(Told({.loss = [](double share) { return std::pow(1 - 0.37 * share, 2); }}).size(), 1U);
  EXPECT_EQ(Told({.evaluated = [](double share) { return 1.1 - 0.4 * share; }}).size(), 1U);
}

TEST(WeightUpdateRatio, LossesThatSlowDown_Warmups_AndShortTrainings_AreSilent) {
  EXPECT_TRUE(Told({.loss = [](double share) { return 0.4 + 0.6 * std::exp(-4 * share); }}).empty());
  EXPECT_TRUE(Told({.loss = [](double share) { return std::exp(-1.5 * share); }}).empty());
  // Two thirds of the way to what can be reached, and half of it.
  EXPECT_TRUE(Told({.loss = [](double share) { return std::exp(-share); }}).empty());
  EXPECT_TRUE(Told({.loss = [](double share) { return 1 + std::exp(-share); }}).empty());
  EXPECT_TRUE(Told({.loss = [](double share) { return 1 + std::exp(-0.7 * share); }}).empty());
  EXPECT_TRUE(Told({.loss = [](double share) { return 1.5 - 0.8 * std::pow(share, 0.6); }}).empty());
  EXPECT_TRUE(
      Told({.loss = [](double share) { return share < 0.5 ? 1 : 1.5 - share; }}).empty());  // a plateau
  EXPECT_TRUE(Told({.loss = [](double share) { return 1 - 0.05 * share; }}).empty());   // nothing is learnt
  EXPECT_TRUE(Told({.loss = [](double share) { return 1 - 0.9 * share; }}).empty());    // nearly all is
  EXPECT_TRUE(Told({.loss = [](double share) { return 0.2 - 0.4 * share; }}).empty());  // below zero
  EXPECT_TRUE(
      Told({.loss = [](double share) { return 1 - 0.4 * share - 0.1 * std::sin(20 * share); }}).empty());
  EXPECT_TRUE(Told({.steps = 200}).empty());
  EXPECT_TRUE(Told({.fresh = true}).empty());        // one pass
  EXPECT_TRUE(Told({.growth = 1}).empty());          // a warm-up
  EXPECT_TRUE(Told({.outcome = "failed"}).empty());  // it was to go on
  EXPECT_TRUE(Told({.noise = 0.6}).empty());
  // What is learnt by heart does not help: evaluations get worse.
  EXPECT_TRUE(Told({.evaluated = [](double share) { return 1 + 0.4 * share; }}).empty());
}

}  // namespace
}  // namespace luff::rules::straight_fall_test

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::optimizer_settings_test {
namespace {

using format::EventKind;
using format::Role;
using testing::FakeTrial;

std::vector<Finding> Adam(const std::string& name, const std::function<std::pair<double, double>(int)>& betas,
                          int steps = 40) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step) {
    const auto [beta1, beta2] = betas(step);
    trial.Step()
        .Loss(2 * std::exp(-0.02 * step))
        .Event(EventKind::kOptimizerStep, 0)
        .Scalar("optimizer/" + name + ".group0.lr", Role::kOptimizerSetting, 1e-3)
        .Scalar("optimizer/" + name + ".group0.beta1", Role::kOptimizerSetting, beta1)
        .Scalar("optimizer/" + name + ".group0.beta2", Role::kOptimizerSetting, beta2);
  }
  return testing::FindingsOf(trial, "OptimizerSettings", ParameterSet::kLuff);
}

std::function<std::pair<double, double>(int)> Always(double beta1, double beta2) {
  return [=](int) { return std::pair(beta1, beta2); };
}

TEST(OptimizerSettings, BetasInTheWrongOrder_AreTold) {
  const auto findings = Adam("AdamW_0", Always(0.999, 0.9));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "betas");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 15);
  EXPECT_EQ(findings[0].since_step, 0);
  EXPECT_EQ(findings[0].tensor, "optimizer/AdamW_0.group0.beta1");
  EXPECT_NE(findings[0].remedy.find("exchange"), std::string::npos);
  EXPECT_EQ(Adam("NAdam_1", Always(0.99, 0.9)).size(), 1U);
}

TEST(OptimizerSettings, ADecayThatIsNoShareOfTheWeight_IsTold) {
  // One look after another; a look without such weights is "".
  const auto told = [](const std::vector<std::string>& looks, const std::vector<double>& rates = {}) {
    FakeTrial trial;
    for (std::size_t step = 0; step < looks.size(); ++step) {
      trial.Step().Loss(2).Event(EventKind::kOptimizerStep, 0);
      const double lr = rates.empty() ? 0.05 : rates[step];
      trial.EventJson(R"({"kind": "rounding", "optimizer": 0, "lr": )" + std::to_string(lr) +
                      R"(, "parameters": [{"name": "0.bias"}, {"name": "0.weight")" + looks[step] + "}]}");
    }
    return testing::FindingsOf(trial, "OptimizerSettings", ParameterSet::kLuff);
  };
  const std::string shift = R"(, "shift": -5e-4)", growth = R"(, "growth": 5e-4)";
  const auto shifts = told({shift, shift, shift, shift});
  ASSERT_EQ(shifts.size(), 1U);
  EXPECT_EQ(shifts[0].cause, "constant_decay");
  EXPECT_EQ(shifts[0].severity, Severity::kWarn);
  EXPECT_EQ(shifts[0].tensor, "0.weight");
  EXPECT_EQ(shifts[0].step, 1);
  const auto grows = told({"", growth, growth});
  ASSERT_EQ(grows.size(), 1U);
  EXPECT_EQ(grows[0].cause, "growing_decay");
  EXPECT_NE(grows[0].remedy.find("sign"), std::string::npos);
  // It follows the rate of a schedule, and not what else moves weights.
  EXPECT_EQ(told({shift, R"(, "shift": -1e-3)"}, {0.05, 0.1}).size(), 1U);
  EXPECT_TRUE(told({shift, R"(, "shift": -1e-3)"}).empty());
  EXPECT_TRUE(told({shift, "", shift, ""}).empty());
  EXPECT_TRUE(told({shift}).empty());
  EXPECT_TRUE(told({shift, growth, shift, growth}).empty());
  EXPECT_TRUE(told({R"(, "growth": -5e-4)", R"(, "growth": -5e-4)"}).empty());
  EXPECT_TRUE(told({R"(, "shift": "x")", R"(, "shift": null)"}).empty());
}

TEST(OptimizerSettings, BetasThatAreMeant_AreSilent) {
  for (const auto& [beta1, beta2] : std::vector<std::pair<double, double>>{{0.9, 0.999},
                                                                           {0.5, 0.9},
                                                                           {0.0, 0.99},
                                                                           {0.9, 0.9},
                                                                           {0.95, 0.95},
                                                                           {0.99, 0.99},
                                                                           {0.95, 0.9},
                                                                           {0.9, 0.0},
                                                                           {0.999, 0.999}})
    EXPECT_TRUE(Adam("Adam_0", Always(beta1, beta2)).empty()) << beta1 << " " << beta2;
  EXPECT_TRUE(Adam("Adamax_0", Always(0.999, 0.9)).empty());  // another mean
  EXPECT_TRUE(Adam("Lion_0", Always(0.999, 0.9)).empty());    // of no squares
  // A few updates at the end of a cycle of momentum.
  EXPECT_TRUE(Adam("Adam_0", [](int step) { return std::pair(step % 16 < 12 ? 0.999 : 0.85, 0.9); }).empty());
  EXPECT_TRUE(Adam("Adam_0", Always(NAN, 0.9)).empty());
}

TEST(OptimizerSettings, BetasThatAreMended_Heal) {
  const auto findings = Adam("Adam_0", [](int step) { return std::pair(step < 20 ? 0.999 : 0.9, 0.95); });
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
}

struct Story {
  std::function<double(int)> momentum = [](int) { return 0.999; };
  std::function<double(int)> loss = [](int step) { return 2 + std::cos(step / 40.0); };
  std::string name = "SGD_0";
};

std::vector<Finding> Sgd(const Story& story, bool two_losses = false) {
  FakeTrial trial;
  for (int step = 0; step < 250; ++step) {
    trial.Step()
        .Loss(story.loss(step) + 0.01 * std::sin(2.3 * step))
        .Event(EventKind::kOptimizerStep, 0)
        .Scalar("optimizer/" + story.name + ".group0.momentum", Role::kOptimizerSetting,
                story.momentum(step));
    if (two_losses) trial.Loss(1, "MSELoss_output_0");
  }
  return testing::FindingsOf(trial, "OptimizerSettings", ParameterSet::kLuff);
}

TEST(OptimizerSettings, AMomentumNextToOneUnderWhichTheLossRisesAgain_IsTold) {
  const auto findings = Sgd({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "momentum");
  EXPECT_FALSE(findings[0].healed);  // the loss falls later, and nothing was mended
  EXPECT_NE(findings[0].remedy.find("momentum"), std::string::npos);
}

TEST(OptimizerSettings, AHeavyBallThatSwingsOnceAndConverges_Heals) {
  const auto findings = Sgd({.loss = [](int step) { return step < 120 ? 2 + std::cos(step / 20.0) : 0.5; }});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "momentum");
  EXPECT_TRUE(findings[0].healed);
}

TEST(OptimizerSettings, MomentumThatIsMeant_IsSilent) {
  EXPECT_TRUE(Sgd({.momentum = [](int) { return 0.9; }}).empty());
  EXPECT_TRUE(Sgd({.momentum = [](int) { return 0.99; }}).empty());
  EXPECT_TRUE(Sgd({.loss = [](int step) { return 2 * std::exp(-0.01 * step); }}).empty());  // it falls
  // A schedule that ends there, as of Nesterov's momentum.
  EXPECT_TRUE(
      Sgd({.momentum = [](int step) { return 1 - std::pow(2, -1 - std::min(step / 10, 9)); }}).empty());
  EXPECT_TRUE(Sgd({.name = "RMSprop_0"}).empty());
  EXPECT_TRUE(Sgd({}, true).empty());
}

}  // namespace
}  // namespace luff::rules::optimizer_settings_test

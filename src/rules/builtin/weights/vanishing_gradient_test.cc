#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::vanishing_gradient_test {
namespace {

using format::Role;
using testing::FakeTrial;
using testing::FindingsOf;

FakeTrial Deep(int layers, double factor, double move) {
  FakeTrial trial;
  for (int step = 0; step < 6; ++step) {
    trial.Step().Loss(2.3);
    for (int layer = 0; layer < layers; ++layer) {
      const std::string name = "Net_" + std::to_string(layer) + ".weight";
      trial.Define("gradient/" + name, Role::kGradient, "Linear");
      trial.Tensor("gradient/" + name, Role::kGradient, {0.04 * std::pow(factor, layers - 1 - layer)});
      if (step > 0) trial.Difference(name, move, move, 1, 1);
    }
  }
  return trial;
}

TEST(VanishingGradient, FallFromLayerToLayer_IsKnownAtTheFourthUpdate) {
  const auto findings = FindingsOf(Deep(10, 0.3, 1e-8), "VanishingGradient", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "start");
  EXPECT_EQ(findings[0].step, 3);
  EXPECT_EQ(findings[0].tensor, "gradient/Net_0.weight");
}

TEST(VanishingGradient, FewLayers_AMildFall_OrWeightsThatMove_AreSilentAtTheStart) {
  EXPECT_TRUE(FindingsOf(Deep(4, 0.01, 1e-8), "VanishingGradient", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(Deep(10, 0.5, 1e-8), "VanishingGradient", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(Deep(10, 0.3, 1e-3), "VanishingGradient", ParameterSet::kLuff).empty());
}

// Layers with an activation behind each, under an optimizer that moves all of them; the loss falls by `fall`,
// and by `late` from step 110 on.
std::vector<Finding> Through(const std::string& activation, int layers, double factor, double fall,
                             double late = 0) {
  FakeTrial trial;
  std::string modules;
  for (int layer = 0; layer < layers; ++layer) {
    const std::string name = "dense_" + std::to_string(layer);
    modules += (layer == 0 ? "" : ", ") + std::string(R"({"path": ")") + name + R"(", "type": "Linear"})";
    const std::string type = layer + 1 < layers ? activation : "Softmax";
    modules += R"(, {"path": ")" + name + "." + type + R"(", "type": ")" + type + R"("})";
  }
  trial.SetDocument("model",
                    R"({"framework": "keras", "models": [{"name": "net", "modules": [)" + modules + "]}]}");
  for (int step = 0; step < 130; ++step) {
    const double now = fall * step / 96 + (step < 110 ? 0 : late);
    trial.Step().Loss(2.3 * (1 - now) + 0.01 * (step % 3));
    for (int layer = 0; layer < layers; ++layer) {
      const std::string name = "dense_" + std::to_string(layer) + "/weights/kernel";
      trial.Define("gradient/" + name, Role::kGradient, "Linear");
      trial.Tensor("gradient/" + name, Role::kGradient, {0.02 * std::pow(factor, layers - 1 - layer)});
      if (step > 0) trial.Difference(name, 1e-2, 1e-2, 1, 1);
      const std::string bias = "gradient/dense_" + std::to_string(layer) + "/weights/bias";
      trial.Define(bias, Role::kGradient, "Linear");
      trial.Tensor(bias, Role::kGradient, {0.2});  // biases are no layers
    }
  }
  return FindingsOf(trial, "VanishingGradient", ParameterSet::kLuff);
}

TEST(VanishingGradient, SigmoidsInARow_WhileTheLossStandsStill_AreNamed) {
  const auto findings = Through("Sigmoid", 6, 0.2, 0);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "sigmoids");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 95);
  EXPECT_EQ(findings[0].tensor, "gradient/dense_0/weights/kernel");
  EXPECT_NE(findings[0].what.find("5 sigmoids"), std::string::npos);
  EXPECT_FALSE(findings[0].healed);
}

TEST(VanishingGradient, SigmoidsThatLearnAtLast_Heal) {
  const auto findings = Through("Sigmoid", 6, 0.2, 0, 0.3);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "sigmoids");
  EXPECT_TRUE(findings[0].healed);
}

TEST(VanishingGradient, SigmoidsThatLearn_Few_OrOtherActivations_AreSilent) {
  EXPECT_TRUE(Through("Sigmoid", 6, 0.2, 0.2).empty());
  EXPECT_TRUE(Through("Sigmoid", 3, 0.05, 0).empty());
  EXPECT_TRUE(Through("Sigmoid", 6, 0.6, 0).empty());
  EXPECT_TRUE(Through("ReLU", 6, 0.2, 0).empty());
}

// The loss stands still, and so does the share that reaches the first of two layers, or it grows.
FakeTrial Faint(double (*share)(int)) {
  FakeTrial trial;
  for (int step = 0; step < 96; ++step) {
    trial.Step().Loss(1.39 + 1e-4 * (step % 3));
    trial.Tensor("gradient/body.weight", Role::kGradient, {0.02 * share(step)});
    trial.Tensor("gradient/head.weight", Role::kGradient, {0.02});
  }
  return trial;
}

TEST(VanishingGradient, AShareThatGrowsWithTheLastLayer_Waits) {
  const auto told = [](double (*share)(int)) {
    return FindingsOf(Faint(share), "VanishingGradient", ParameterSet::kLuff);
  };
  const auto findings = told([](int) { return 1e-5; });
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "ratio");
  EXPECT_FALSE(told([](int step) { return 1e-5 / (1 + step); }).empty());
  EXPECT_TRUE(told([](int step) { return 1e-10 * step * step * step; }).empty());  // a zero head, warmed up
  EXPECT_TRUE(told([](int step) { return 3e-7 * step; }).empty());                 // the same at a small rate
  EXPECT_TRUE(told([](int step) { return 1e-8 * step * step; }).empty());
}

// The layers of a module, in its order, with their gradients, before a last layer; the loss stands still.
std::vector<Finding> Module(const std::vector<std::pair<std::string, double>>& layers) {
  FakeTrial trial;
  for (int step = 0; step < 130; ++step) {
    trial.Step().Loss(4 + 0.2 * (step % 3));
    for (const auto& [layer, size] : layers) {
      const std::string name = "gradient/Net_block.mixer." + layer + ".weight";
      trial.Define(name, Role::kGradient, "Linear");
      trial.Tensor(name, Role::kGradient, {size * (1 + 0.1 * (step % 2))});
    }
    trial.Define("gradient/Net_last.weight", Role::kGradient, "Linear");
    trial.Tensor("gradient/Net_last.weight", Role::kGradient, {0.05});
  }
  return FindingsOf(trial, "VanishingGradient", ParameterSet::kLuff);
}

// Keys of an attention whose weights are still even get next to nothing, what stands before them gets enough.
TEST(VanishingGradient, ALayerBesideOnesThatGetGradients_IsNoVanishing) {
  EXPECT_TRUE(Module({{"fc_q", 1e-3}, {"fc_k", 3e-8}, {"fc_v", 0.02}, {"fc_o", 0.03}}).empty());
  EXPECT_EQ(Module({{"0", 3e-8}, {"2", 1e-6}, {"4", 0.02}}).size(), 1U);  // one behind the other
  EXPECT_EQ(Module({{"0", 1e-3}, {"2", 0}, {"4", 0.02}}).size(), 1U);     // nothing at all arrives
}

TEST(VanishingGradient, WeightsForAStateThatIsAlwaysZero_AreLeftToNoGradient) {
  const auto told = [](double state, double input) {
    FakeTrial trial;
    for (int step = 0; step < 96; ++step) {
      trial.Step().Loss(1.39 + 1e-4 * (step % 3));
      trial.Tensor("gradient/lstm.weight_ih_l0", Role::kGradient, {input});
      trial.Tensor("gradient/lstm.weight_hh_l0", Role::kGradient, {step == 3 ? state : 0});
      trial.Tensor("gradient/head.weight", Role::kGradient, {0.02});
    }
    return FindingsOf(trial, "VanishingGradient", ParameterSet::kLuff);
  };
  EXPECT_TRUE(told(0, 0.01).empty());
  EXPECT_EQ(told(1e-9, 0.01).size(), 1U);  // it was in use
  EXPECT_EQ(told(0, 0).size(), 1U);        // nothing comes back to the layer
}

TEST(DeadRelu, BornDead_IsKnownAtTheThirdCapture) {
  FakeTrial trial;
  trial.Step();  // outputs are seen from step 1 on
  for (int step = 1; step < 4; ++step) trial.Step().Units("Net_relu_output_0", {0, 0, 30, 0}, 64);
  const auto findings = FindingsOf(trial, "DeadRelu", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 3);
}

TEST(DeadRelu, AsManyAlwaysOn_OrAFirstUpdateThatMovedFar_IsNoFactOfTheStart) {
  FakeTrial collapsed;
  FakeTrial thrown;
  collapsed.Step();
  thrown.Step();
  for (int step = 1; step < 6; ++step) {
    collapsed.Step().Units("Net_relu_output_0", {0, 64, 0, 64}, 64);
    thrown.Step().Difference("Net_0.weight", 1, 0.6, 1, 1).Units("Net_relu_output_0", {0, 0, 0, 0}, 64);
  }
  EXPECT_TRUE(FindingsOf(collapsed, "DeadRelu", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(thrown, "DeadRelu", ParameterSet::kLuff).empty());
}

}  // namespace
}  // namespace luff::rules::vanishing_gradient_test

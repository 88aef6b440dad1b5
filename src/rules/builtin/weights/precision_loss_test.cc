#include <gtest/gtest.h>

#include "base/format.h"
#include "rules/testing/recorder.h"

namespace luff::rules::precision_loss_test {
namespace {

using testing::FakeTrial;

struct Look {
  double rate = 0.001;
  int moving = 400, changed = 8;
};

std::vector<Finding> Told(const std::vector<Look>& looks, const std::string& dtype = "bfloat16",
                          const std::string& more = "", const std::string& optimizer = "AdamW") {
  FakeTrial trial;
  trial.SetDocument("model",
                    fmt::format(R"({{"models": [], "optimizers": [{{"number": 0, "name": "O", "type": "{}",
      "groups": []}}]}})",
                                optimizer));
  for (const Look& look : looks) {
    trial.Step().Loss(1).EventJson(fmt::format(
        R"({{"kind": "rounding", "optimizer": 0, "lr": {}, "parameters": [{{"name": "Net_w", "dtype": "{}", "looked": 512,
        "moving": {}, "changed": {}{}}}]}})",
        look.rate, dtype, look.moving, look.changed, more));
  }
  return testing::FindingsOf(trial, "PrecisionLoss", ParameterSet::kLuff);
}

TEST(PrecisionLoss, UpdatesThatAreLost_AreToldAtTheFifthLook) {
  const auto findings = Told(std::vector<Look>(7));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 4);
  EXPECT_EQ(findings[0].tensor, "Net_w");
  EXPECT_TRUE(Told(std::vector<Look>(4)).empty());
  EXPECT_EQ(Told(std::vector<Look>(7), "float16").size(), 1U);
}

TEST(PrecisionLoss, TheShareDecides) {
  EXPECT_EQ(Told(std::vector<Look>(7, {0.001, 400, 80})).size(), 1U);
  EXPECT_TRUE(Told(std::vector<Look>(7, {0.001, 400, 81})).empty());
  EXPECT_TRUE(Told(std::vector<Look>(7, {0.001, 63, 0})).empty());  // too few elements to judge
}

TEST(PrecisionLoss, Float32_CountsOnlyWhereItIsRounded) {
  EXPECT_TRUE(Told(std::vector<Look>(7), "float32").empty());
  EXPECT_TRUE(Told(std::vector<Look>(7), "float32", R"(, "bfloat16": false, "float16": false)").empty());
  EXPECT_EQ(Told(std::vector<Look>(7), "float32", R"(, "bfloat16": true)").size(), 1U);
}

TEST(PrecisionLoss, WarmUpAndTheEndOfASchedule_AreSilent) {
  EXPECT_TRUE(Told({{1e-5}, {2e-5}, {4e-5}, {8e-5}, {1.6e-4}, {3.2e-4}, {1e-3, 400, 200}}).empty());
  EXPECT_TRUE(Told({{1e-3, 400, 200}, {1e-3, 400, 200}, {4e-4}, {4e-4}, {3e-4}, {2e-4}, {1e-4}}).empty());
}

TEST(PrecisionLoss, HealsWhenWeightsChange) {
  std::vector<Look> looks(6);
  looks.push_back({0.001, 400, 300});
  const auto findings = Told(looks);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
}

TEST(PrecisionLoss, OptimizersThatMayKeepWhatIsLost_AreSilent) {
  EXPECT_TRUE(Told(std::vector<Look>(7), "bfloat16", "", "AdamWStochastic").empty());
  EXPECT_EQ(Told(std::vector<Look>(7), "bfloat16", "", "SGD").size(), 1U);
}

}  // namespace
}  // namespace luff::rules::precision_loss_test

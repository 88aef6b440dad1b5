#include <gtest/gtest.h>

#include "base/format.h"
#include "rules/builtin/time/pauses_test.h"

namespace luff::rules::optimizer_slow_test {
namespace {

std::vector<Finding> Told(const std::string& type, int parameters, const std::string& settings,
                          const std::string& device = "cpu", double optimizer_ms = 9) {
  testing::FakeTrial trial;
  trial.SetDocument(
      "model",
      fmt::format(
          R"({{"optimizers":[{{"number":0,"name":"o","type":"{}","device":"{}","groups":[{{"settings":{},"parameters":{}}}]}}]}})",
          type, device, settings, parameters));
  for (int i = 0; i < 1500; ++i)
    trial.Step().Phases({{format::Phase::kForward, 32}, {format::Phase::kOptimizer, optimizer_ms}});
  return testing::FindingsOf(trial, "OptimizerSlow", ParameterSet::kLuff);
}

constexpr const char* kNeither = R"({"lr":0.1,"foreach":null,"fused":null})";

TEST(OptimizerSlow, ManyParametersOneByOne_WithTheArgumentToPass) {
  const auto findings = Told("AdamW", 310, kNeither);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find("AdamW updates 310 parameters one by one"), std::string::npos)
      << findings[0].what;
  EXPECT_NE(findings[0].remedy.find("fused=True to AdamW"), std::string::npos);
  ASSERT_TRUE(findings[0].saving);
  EXPECT_NEAR(findings[0].saving->seconds_a_step, 0.7 * 0.009, 2e-4);
  EXPECT_NE(Told("RMSprop", 310, kNeither).at(0).remedy.find("foreach=True to RMSprop"), std::string::npos);
  EXPECT_EQ(Told("AdamW", 310, R"({"foreach":false,"fused":null})", "cuda").size(), 1U);
}

TEST(OptimizerSlow, OthersAreSilent) {
  EXPECT_TRUE(Told("AdamW", 310, R"({"foreach":null,"fused":true})").empty());
  EXPECT_TRUE(Told("AdamW", 310, R"({"foreach":true,"fused":null})").empty());
  EXPECT_TRUE(Told("AdamW", 310, kNeither, "cuda").empty());  // foreach is torch's choice there
  EXPECT_TRUE(Told("AdamW", 12, kNeither).empty());
  EXPECT_TRUE(Told("AdamW", 310, kNeither, "cpu", 4).empty());  // 11 %
  EXPECT_TRUE(Told("Mine", 310, R"({"lr":0.1})").empty());      // none of torch's
}

}  // namespace
}  // namespace luff::rules::optimizer_slow_test

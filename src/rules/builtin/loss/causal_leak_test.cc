#include <gtest/gtest.h>

#include "base/format.h"
#include "rules/testing/recorder.h"

namespace luff::rules::causal_leak_test {
namespace {

using testing::FakeTrial;

std::vector<Finding> After(const std::string& event) {
  FakeTrial trial;
  for (int step = 0; step < 6; ++step) {
    trial.Step().Loss(2);
    if (step == 3 || step == 5) trial.EventJson(event);
  }
  return testing::FindingsOf(trial, "CausalLeak", ParameterSet::kLuff);
}

std::string Answer(double change, int places, bool sees) {
  return fmt::format(
      R"({{"kind": "causal", "step": 2, "length": 16, "place": 7, "rows": 2, "change": {}, "itself": 1.5, "places": {},
      "sees": {}}})",
      change, places, sees);
}

TEST(CausalLeak, AnAnswerThatDependsOnLaterTokens_IsToldOnce) {
  const auto findings = After(Answer(0.4, 8, true));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 3);
  EXPECT_EQ(findings[0].since_step, 0);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].why.find("at the last"), std::string::npos);
}

TEST(CausalLeak, OnePlaceOnly_IsAMaskOffByOne) {
  const auto findings = After(Answer(0.4, 1, true));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].why.find("at the last 1 of 8 places"), std::string::npos);
  EXPECT_EQ(findings[0].causes[0], "a mask that is off by one");
}

TEST(CausalLeak, RoundingAndNo_AreSilent) {
  EXPECT_TRUE(After(Answer(0, 0, false)).empty());
  EXPECT_TRUE(After(Answer(0.9e-3, 8, true)).empty());
  EXPECT_EQ(After(Answer(1.1e-3, 8, true)).size(), 1U);
}

TEST(CausalLeak, MalformedAnswers_AreLeftOut) {
  EXPECT_TRUE(After("{\"kind\": \"causal\"").empty());
  EXPECT_TRUE(After(R"({"kind": "causal", "sees": true})").empty());
  EXPECT_TRUE(
      After(R"({"kind": "causal", "sees": "true", "change": 1, "length": 16, "place": 7, "places": 8})")
          .empty());
  EXPECT_TRUE(After(R"(["causal"])").empty());
}

TEST(CausalLeak, TargetsThatAreTheInput_AreToldOfAModelThatSeesNoLaterTokens) {
  const auto copied = [](const char* sees) {
    return std::string(
               R"({"kind": "causal", "step": 2, "length": 16, "place": 7, "rows": 2, "change": 0, "itself": 1.5,
      "places": 0, "copied": true, "sees": )") +
           sees + "}";
  };
  const auto findings = After(copied("false"));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "not_shifted");
  EXPECT_TRUE(After(copied("true")).empty());  // an autoencoder
}

}  // namespace
}  // namespace luff::rules::causal_leak_test

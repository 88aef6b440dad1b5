#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::unused_input_test {
namespace {

using testing::FakeTrial;

std::string Answer(int step, const std::string& unused, const std::string& model = "Denoiser") {
  return R"({"kind": "inputs", "rows": 32, "step": )" + std::to_string(step) + R"(, "model": ")" + model +
         R"(", "unused": )" + unused + "}";
}

// Answers by the step at which they arrive.
std::vector<Finding> Told(const std::vector<std::pair<int, std::string>>& answers) {
  FakeTrial trial;
  for (int step = 0; step < 80; ++step) {
    trial.Step().Loss(1);
    for (const auto& [at, answer] : answers) {
      if (at == step) trial.EventJson(answer);
    }
  }
  return testing::FindingsOf(trial, "UnusedInput", ParameterSet::kLuff);
}

TEST(UnusedInput, AnArgumentThatIsUnusedTwice_IsTold) {
  const auto findings = Told({{3, Answer(2, R"(["t"])")}, {66, Answer(64, R"(["t"])")}});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "unused");
  EXPECT_EQ(findings[0].tensor, "t");
  EXPECT_EQ(findings[0].step, 66);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].what.find("Denoiser"), std::string::npos);
  EXPECT_EQ(Told({{3, Answer(2, R"(["a", "b"])")}, {66, Answer(64, R"(["b", "a"])")}}).size(), 2U);
}

TEST(UnusedInput, WhatIsUsedLater_OrByAnotherModel_IsSilent) {
  EXPECT_TRUE(Told({{3, Answer(2, R"(["t"])")}}).empty());
  EXPECT_TRUE(Told({{3, Answer(2, R"(["t"])")}, {66, Answer(64, "[]")}}).empty());
  EXPECT_TRUE(Told({{3, Answer(2, R"(["t"])")}, {66, Answer(64, R"(["y"])")}}).empty());
  EXPECT_TRUE(Told({{3, Answer(2, R"(["t"])")}, {66, Answer(64, R"(["t"])", "Critic")}}).empty());
  EXPECT_TRUE(Told({{3, Answer(2, R"(["t"])")}, {4, Answer(2, R"(["t"])")}}).empty());  // one answer, twice
  EXPECT_TRUE(Told({{3, R"({"kind": "inputs", "rows": 32, "step": 2, "asked": true})"}}).empty());
}

TEST(UnusedInput, AnswersOfAnotherForm_AreIgnored) {
  for (const char* unused : {"7", "[7]", "[[\"t\"]]", "null", "{}"})
    EXPECT_TRUE(Told({{3, Answer(2, unused)}, {66, Answer(64, unused)}}).empty()) << unused;
}

}  // namespace
}  // namespace luff::rules::unused_input_test

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

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
  // An encoder, whose result another model takes; a model that sees each token alone.
  EXPECT_TRUE(After(copied(R"(false, "elsewhere": true)")).empty());
  EXPECT_TRUE(After(copied(R"(false, "alone": true)")).empty());
  EXPECT_EQ(After(copied(R"(false, "elsewhere": false, "alone": false)")).size(), 1U);
}

struct Text {
  std::size_t shift = 2;
  std::size_t shorter = 0;  // places that targets lack
  bool labels = false;      // are passed along, as the model's next tokens
  bool decoder = false;     // another text is the first argument, and this one fits as it should
  bool repeats = false;     // one token all along
  int losses = 1;
  std::size_t ids = 50;
  int start = 0;  // of the outputs that meet the targets; -1: the model gives as many as there are targets
};

// 16 rows of 12 tokens of a text, and targets some places ahead.
std::vector<Finding> Of(const Text& story) {
  FakeTrial trial;
  const auto token = [&](int step, std::size_t row, std::size_t i) {
    const auto key = static_cast<std::uint64_t>(step) * 7919 + row * 104729 + (i + row * 31) * 1299709;
    return story.repeats ? 3.0 : static_cast<double>((key ^ (key >> 7)) % story.ids);
  };
  for (int step = 0; step < 5; ++step) {
    trial.Step();
    const std::size_t width = 12 - story.shorter;
    if (step == 2 && width < 12 && story.start >= 0)
      trial.EventJson(fmt::format(R"({{"kind": "places_cut", "start": {}, "places": {}, "of": 12}})",
                                  story.start, width));
    std::vector<double> ids;
    std::vector<double> next;
    std::vector<double> targets;
    for (std::size_t row = 0; row < 16; ++row) {
      for (std::size_t i = 0; i < 12; ++i) {
        ids.push_back(token(step, row, i));
        next.push_back(token(step, row, i + story.shift - 1));
      }
      for (std::size_t i = 0; i < width; ++i) targets.push_back(token(step, row, i + story.shift));
    }
    const auto rows = static_cast<std::int64_t>(16 * width);
    if (story.decoder) std::reverse(ids.begin(), ids.end());
    trial.Sample("sample/Net_input_0", {16, 12}, ids, DType::kInt64);
    if (story.decoder || story.labels) trial.Sample("sample/Net_input_1", {16, 12}, next, DType::kInt64);
    for (int n = 0; n < story.losses; ++n) {
      const std::string name = "CrossEntropyLoss_input_";
      trial.Loss(2, "CrossEntropyLoss_output_" + std::to_string(n));
      trial.Sample("sample/" + name + std::to_string(2 * n), {rows, 4},
                   std::vector<double>(static_cast<std::size_t>(rows) * 4, 0.1));
      trial.Sample("sample/" + name + std::to_string(2 * n + 1), {rows}, targets, DType::kInt64);
    }
  }
  return testing::FindingsOf(trial, "CausalLeak", ParameterSet::kLuff);
}

TEST(CausalLeak, TargetsTwoPlacesAhead_AreToldAtTheThirdStep) {
  for (const std::size_t shorter : {0U, 1U, 2U}) {
    const auto findings = Of({.shorter = shorter});
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "shifted_twice");
    EXPECT_EQ(findings[0].step, 2);
  }
  EXPECT_EQ(Of({.shorter = 1, .labels = true}).size(), 1U);
}

TEST(CausalLeak, NextTokensOfOutputsWithoutTheFirstPlaces_OrOfAModelThatGivesFewer_AreSilent) {
  EXPECT_TRUE(Of({.shorter = 1, .start = 1}).empty());  // model(ids)[:, 1:] against tokens[:, 2:]
  EXPECT_TRUE(Of({.shorter = 2, .start = 1}).empty());
  EXPECT_TRUE(Of({.shorter = 1, .start = -1}).empty());  // a convolution over two places without padding
}

TEST(CausalLeak, NextTokens_LaterOnes_Decoders_SeveralHeads_AndTokensThatRepeat_AreSilent) {
  EXPECT_TRUE(Of({.shift = 1}).empty());
  EXPECT_TRUE(Of({.shift = 1, .shorter = 1}).empty());
  EXPECT_TRUE(Of({.shift = 3}).empty());
  EXPECT_TRUE(Of({.decoder = true}).empty());
  EXPECT_TRUE(Of({.losses = 2}).empty());  // one for each of several places ahead
  EXPECT_TRUE(Of({.repeats = true}).empty());
}

}  // namespace
}  // namespace luff::rules::causal_leak_test

#include "rules/kit/params.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rules/kit/kept_rule.h"

namespace luff::rules::params_test {
namespace {

using ::testing::HasSubstr;

struct Limits {
  double ratio;
  std::int64_t steps;
  bool strict;
  std::string pattern;
};

constexpr Param<Limits> kParams[] = {
    {&Limits::ratio, "ratio", "1e-4", "a share", Above(0), "0.5"},
    {&Limits::steps, "steps", "64", "in a row", Within(1, 100)},
    {&Limits::strict, "strict", "False", "or not"},
    {&Limits::pattern, "pattern", ".*", "of names"},
};

class Own final : public KeptRule {
 public:
  explicit Own(const Limits& limits) : limits_(limits) {}
  void OnStep(const StepView&, Sink&) override {}
  void VisitFields(Fields& io) override {
    io("seen", seen_);
    EXPECT_EQ(limits_.steps, 64);
  }

 private:
  const Limits limits_;
  std::int64_t seen_ = 3;
};

class Original final : public KeptRule {
 public:
  explicit Original(const Limits& limits) { EXPECT_EQ(limits.ratio, 0.5); }
  void OnStep(const StepView&, Sink&) override {}
};

Result<Limits> Read(const Parameters& given) {
  RuleSpec spec = SpecOf<Own>("Any", kParams);
  auto all = CompleteParameters(spec, ParameterSet::kLuff, given);
  if (!all.ok()) return all.status();
  return ReadLimits(kParams, *all);
}

TEST(ParamsTest, DefaultsAndValuesArrive) {
  const auto limits = Read({});
  ASSERT_TRUE(limits.ok());
  EXPECT_EQ(limits->ratio, 1e-4);
  EXPECT_EQ(limits->steps, 64);
  EXPECT_FALSE(limits->strict);
  EXPECT_EQ(limits->pattern, ".*");
  const auto given = Read({{"ratio", "2"}, {"steps", "100"}, {"strict", "true"}, {"pattern", "x"}});
  ASSERT_TRUE(given.ok());
  EXPECT_EQ(given->ratio, 2);
  EXPECT_EQ(given->steps, 100);
  EXPECT_TRUE(given->strict);
  EXPECT_EQ(given->pattern, "x");
}

TEST(ParamsTest, WhatDoesNotFitIsNamed) {
  const std::pair<Parameters, const char*> wrong[] = {
      {{{"ratio", "0"}}, "'ratio' must be above 0"},
      {{{"ratio", "many"}}, "'ratio': 'many' is no number"},
      {{{"steps", "0"}}, "'steps' must be at least 1"},
      {{{"steps", "101"}}, "'steps' must be at most 100"},
      {{{"steps", "1.5"}}, "'steps': '1.5' is no whole"},
      {{{"strict", "perhaps"}}, "'strict'"},
  };
  for (const auto& [given, message] : wrong) {
    const auto limits = Read(given);
    ASSERT_FALSE(limits.ok()) << message;
    EXPECT_EQ(limits.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(limits.status().message()), HasSubstr(message));
  }
}

TEST(ParamsTest, ASpecMakesTheRuleOfItsSet) {
  const RuleSpec spec = SpecOf<Own, Original>("LossSpike", kParams);
  EXPECT_EQ(spec.page, "docs/rules/loss_spike.md");
  EXPECT_TRUE(spec.needs({}).empty());
  ASSERT_EQ(spec.parameters.size(), 4U);
  EXPECT_EQ(spec.parameters[0].original_default, "0.5");
  EXPECT_EQ(spec.parameters[1].original_default, "64");
  for (const ParameterSet set : {ParameterSet::kLuff, ParameterSet::kOriginal}) {
    const auto all = CompleteParameters(spec, set, {});
    ASSERT_TRUE(all.ok());
    auto rule = spec.make(*all);
    ASSERT_TRUE(rule.ok());
    const std::string state = (*rule)->SaveState();
    EXPECT_EQ(state, set == ParameterSet::kLuff ? R"({"seen":3})" : "{}");
    EXPECT_TRUE((*rule)->LoadState(state).ok());
    EXPECT_FALSE((*rule)->LoadState("[]").ok());
  }
}

TEST(ParamsTest, PagesAreNamedAfterTheirRules) {
  EXPECT_EQ(PageOf("NLPSequenceRatio"), "docs/rules/nlp_sequence_ratio.md");
  EXPECT_EQ(PageOf("DeadRelu"), "docs/rules/dead_relu.md");
  for (const RuleSpec& rule : BuiltinRules()) EXPECT_EQ(rule.page, PageOf(rule.name));
}

}  // namespace
}  // namespace luff::rules::params_test

#include <gtest/gtest.h>

#include "base/format.h"
#include "rules/testing/recorder.h"

namespace luff::rules::posterior_collapse_test {
namespace {

using testing::FakeTrial;

struct Code {
  double nats = 0;
  int used = 0;
};

std::string Event(const std::vector<Code>& codes) {
  std::string text;
  for (const Code& code : codes)
    text += fmt::format(R"({}{{"rows": 64, "width": 8, "nats": {}, "used": {}}})", text.empty() ? "" : ", ",
                        code.nats, code.used);
  return fmt::format(R"({{"kind": "inside", "attention": [], "codes": [{}]}})", text);
}

// One look every 16 steps.
std::vector<Finding> Told(const std::vector<std::vector<Code>>& looks) {
  FakeTrial trial;
  for (const auto& codes : looks) {
    for (int step = 0; step < 16; ++step) trial.Step().Loss(1);
    trial.EventJson(Event(codes));
  }
  return testing::FindingsOf(trial, "PosteriorCollapse", ParameterSet::kLuff);
}

TEST(PosteriorCollapse, ACodeThatFallsToNothing_IsToldAtTheThirdLook) {
  const auto findings = Told({{{0.3, 4}}, {{0.2, 3}}, {{0.05, 0}}, {{0.04, 0}}, {{0.03, 0}}, {{0.02, 0}}});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 79);
  EXPECT_EQ(findings[0].since_step, 47);
  EXPECT_FALSE(findings[0].healed);
}

TEST(PosteriorCollapse, ASlowStartAndAUsedCode_AreSilent) {
  EXPECT_TRUE(Told({{{0.07, 2}}, {{0.07, 3}}, {{0.08, 3}}, {{0.1, 4}}, {{0.2, 6}}}).empty());
  EXPECT_TRUE(
      Told({{{0.07, 0}}, {{0.06, 0}}, {{0.05, 0}}, {{0.05, 0}}, {{0.04, 0}}}).empty());  // not half of it
  EXPECT_TRUE(
      Told({{{0.5, 4}}, {{0.09, 1}}, {{0.09, 1}}, {{0.09, 1}}, {{0.09, 1}}}).empty());  // one dimension
  EXPECT_TRUE(Told({{{0.5, 4}}, {{0.11, 0}}, {{0.11, 0}}, {{0.11, 0}}, {{0.11, 0}}}).empty());
  EXPECT_TRUE(Told({{{0.01, 0}}, {{0, 0}}, {{0, 0}}, {{0, 0}}, {{0, 0}}}).empty());  // nothing was ever there
}

TEST(PosteriorCollapse, OneLevelOfTwo_IsSilent_BothAreTold) {
  const std::vector<Code> one = {{0.01, 0}, {3, 8}};
  EXPECT_TRUE(Told({{{1, 8}, {3, 8}}, one, one, one, one, one}).empty());
  const std::vector<Code> both = {{0.01, 0}, {0.02, 0}};
  EXPECT_EQ(Told({{{1, 8}, {3, 8}}, both, both, both, both, both}).size(), 1U);
}

TEST(PosteriorCollapse, HealsWhenTheCodeIsUsedAgain) {
  const auto findings = Told({{{1, 8}}, {{0.02, 0}}, {{0.02, 0}}, {{0.02, 0}}, {{0.02, 0}}, {{2, 8}}});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
}

}  // namespace
}  // namespace luff::rules::posterior_collapse_test

#include <gtest/gtest.h>

#include "rules/builtin/time/pauses_test.h"

namespace luff::rules::gc_pauses_test {
namespace {

using testing::PausesOf;

TEST(GcPauses, CollectionsThatTakeAShareAreNamed_WithWhatTheyCost) {
  const auto findings = PausesOf({}, "GcPauses");  // 12 pauses of 0.5 s in 36 s
  ASSERT_EQ(findings.size(), 1U);
  const Finding& finding = findings[0];
  EXPECT_FALSE(finding.healed);
  EXPECT_NE(finding.what.find("takes 17 % of the time (500 ms each, 12 times: 6.0 s of 36.0 s)"),
            std::string::npos)
      << finding.what;
  EXPECT_NE(finding.remedy.find("gc.freeze()"), std::string::npos);
  ASSERT_TRUE(finding.saving);
  EXPECT_NEAR(finding.saving->seconds_a_step, 0.01, 1e-6);
  EXPECT_NEAR(finding.saving->share, 1.0 / 6, 1e-6);
  EXPECT_LE(finding.saving->low, finding.saving->seconds_a_step);
  EXPECT_EQ(finding.last_step, 599);
}

TEST(GcPauses, WhatIsNotWorthASentence_IsSilent) {
  EXPECT_TRUE(PausesOf({.steps = 100}, "GcPauses").empty());                    // a second in all
  EXPECT_TRUE(PausesOf({.steps = 20000, .pause_ms = 50}, "GcPauses").empty());  // 2 %
  EXPECT_TRUE(PausesOf({.every = 300, .pause_ms = 9000}, "GcPauses").empty());  // twice
  EXPECT_TRUE(PausesOf({.phase = format::Phase::kEval}, "GcPauses").empty());
}

TEST(GcPauses, ItHealsWhereTheShareHasHalved) {
  const auto findings = PausesOf({.steps = 10000, .until = 600}, "GcPauses");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
}

}  // namespace
}  // namespace luff::rules::gc_pauses_test

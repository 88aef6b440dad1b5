#include <gtest/gtest.h>

#include "rules/builtin/time/pauses_test.h"

namespace luff::rules::recompiles_test {
namespace {

using testing::FakeTrial;
using testing::FindingsOf;
using testing::PausesOf;
using testing::RunOf;
constexpr format::Phase kCompile = format::Phase::kCompile;

TEST(Recompiles, GraphsThatAreCompiledAgainAndAgain) {
  const auto findings = PausesOf({.phase = kCompile, .pause_ms = 1000}, "Recompiles");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find("compiling after step 50 takes 26 % of the time (1.0 s each, 11 times"),
            std::string::npos)
      << findings[0].what;
  EXPECT_NE(findings[0].remedy.find("mark_dynamic"), std::string::npos);
}

TEST(Recompiles, OfJax_TheRemedyIsItsOwn) {
  FakeTrial trial = RunOf({.phase = kCompile, .pause_ms = 1000});
  trial.SetDocument("environment", R"({"framework":"jax","jax":"0.10.2"})");
  const auto findings = FindingsOf(trial, "Recompiles", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].remedy.find("static_argnums"), std::string::npos) << findings[0].remedy;
  EXPECT_EQ(findings[0].remedy.find("torch"), std::string::npos);
}

TEST(Recompiles, CompilingAtTheBegin_IsExpected) {
  EXPECT_TRUE(PausesOf({.phase = kCompile, .every = 5, .pause_ms = 4000, .until = 50}, "Recompiles").empty());
  EXPECT_TRUE(
      PausesOf({.phase = kCompile, .every = 200, .pause_ms = 4000}, "Recompiles").empty());  // 3 times
}

}  // namespace
}  // namespace luff::rules::recompiles_test

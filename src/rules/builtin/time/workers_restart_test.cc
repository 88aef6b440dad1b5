#include <gtest/gtest.h>

#include "rules/builtin/time/pauses_test.h"

namespace luff::rules::workers_restart_test {
namespace {

constexpr const char* kPlain = R"({"loaders":[{"number":0,"type":"DataLoader","num_workers":2}]})";

std::vector<Finding> Told(const std::string& loaders, int epochs = 20, double start_ms = 200,
                          int cheap_each = 0) {
  testing::FakeTrial trial;
  trial.SetDocument("loaders", loaders);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (int i = 0; i < 40; ++i) {
      if (i != 0) {
        trial.Step().Phases({{format::Phase::kForward, 50}});
        continue;
      }
      trial.Step()
          .Phases({{format::Phase::kForward, 50},
                   {format::Phase::kDataStart, cheap_each > 0 && epoch % cheap_each == 0 ? 5 : start_ms},
                   {format::Phase::kDataWait, cheap_each > 0 ? 5 : 150}})
          .Wait({.loader = 0, .worker = 0, .ready = 0}, cheap_each > 0 ? 5 : 150);
    }
  }
  return testing::FindingsOf(trial, "WorkersRestart", ParameterSet::kLuff);
}

TEST(WorkersRestart, WorkersThatStartAnewForEachEpoch) {
  const auto findings = Told(kPlain);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find(
                "starting the 2 workers of DataLoader again takes 14 % of the time (350 ms each, 19 "
                "times"),
            std::string::npos)
      << findings[0].what;
  EXPECT_NE(findings[0].remedy.find("persistent_workers=True"), std::string::npos);
  ASSERT_TRUE(findings[0].saving);
  EXPECT_LT(findings[0].saving->low, findings[0].saving->seconds_a_step);
}

TEST(WorkersRestart, OthersAreSilent) {
  EXPECT_TRUE(Told(R"({"loaders":[{"number":0,"num_workers":2,"persistent_workers":true}]})").empty());
  EXPECT_TRUE(Told(R"({"loaders":[{"number":0,"num_workers":0}]})").empty());
  EXPECT_TRUE(Told("").empty());
  EXPECT_TRUE(Told(kPlain, 2, 5000).empty());  // one start again
  EXPECT_TRUE(Told("[1").empty());
  EXPECT_TRUE(Told(kPlain, 20, 900, 4).empty());  // dear where others hold the machine's cores
}

}  // namespace
}  // namespace luff::rules::workers_restart_test

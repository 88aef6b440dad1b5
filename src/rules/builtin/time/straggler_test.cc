#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::straggler_test {
namespace {

using format::Phase;

struct Worker {
  double wait = 20, other = 5, forward = 60, backward = 95, cpu = 140, queue = 0;
};

std::vector<Finding> Told(const std::vector<Worker>& workers, int steps = 300) {
  testing::FakeTrial trial;
  for (int i = 0; i < steps; ++i) {
    trial.Step();
    std::uint32_t number = 0;
    for (const Worker& one : workers)
      trial.Phases({{Phase::kDataWait, one.wait},
                    {Phase::kOther, one.other},
                    {Phase::kForward, one.forward},
                    {Phase::kBackward, one.backward}},
                   one.cpu, one.queue, number++);
  }
  return testing::FindingsOf(trial, "Straggler", ParameterSet::kLuff);
}

TEST(Straggler, TheOneThatLoadsLonger) {
  const auto findings = Told({{}, {}, {}, {.wait = 61, .backward = 54}});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "input");
  EXPECT_EQ(findings[0].worker, 3U);
  EXPECT_NE(findings[0].what.find(
                "worker 3 of 4 makes the others wait 41 ms of 180 ms a step: its data_wait takes 61 "
                "ms, that of the others 20 ms"),
            std::string::npos)
      << findings[0].what;
  ASSERT_TRUE(findings[0].saving);
  EXPECT_NEAR(findings[0].saving->seconds_a_step, 0.041, 1e-6);
}

TEST(Straggler, TheOneThatDoesMore_EvenInsideBackward) {
  EXPECT_EQ(Told({{.other = 60, .backward = 40}, {}}).at(0).cause, "own_work");
  EXPECT_EQ(Told({{}, {.cpu = 178}, {}}).at(0).cause, "more_work");
  EXPECT_EQ(Told({{}, {.cpu = 140, .queue = 40}, {}}).at(0).cause, "no_core");
}

TEST(Straggler, AForwardPassThatComputesLonger_IsMoreWork) {
  const auto findings = Told({{}, {}, {.forward = 95, .backward = 60, .cpu = 175}});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "more_work");
  EXPECT_NE(findings[0].what.find("its forward takes 95 ms, that of the others 60 ms"), std::string::npos)
      << findings[0].what;
  EXPECT_NE(findings[0].remedy.find("equal batches"), std::string::npos);
}

TEST(Straggler, MoreWork_WhereCoresAreScarce_WaitsLongerForThem) {
  // Each second on a core costs half a second without one, for everybody.
  const Worker more{.forward = 110, .backward = 45, .cpu = 110, .queue = 55};
  const Worker other{.cpu = 70, .queue = 35};
  const auto findings = Told({other, more, other});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "more_work");
  EXPECT_EQ(findings[0].worker, 1U);
  // As much to do, and its cores are others'.
  const Worker starved{.forward = 110, .backward = 45, .cpu = 75, .queue = 90};
  EXPECT_EQ(Told({other, starved, other}).at(0).cause, "no_core");
}

TEST(Straggler, AForwardPassThatWaitsForTheOthers_IsNoStraggler) {
  // As FSDP does where it gathers parameters: the one that waits longest is not to blame.
  EXPECT_TRUE(Told({{}, {}, {.forward = 95, .backward = 60}}).empty());
  EXPECT_TRUE(Told({{.cpu = -1}, {.cpu = -1}, {.forward = 95, .backward = 60, .cpu = -1}}).empty());
  const auto findings = Told({{.cpu = 178}, {}, {.forward = 95, .backward = 60}});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "more_work");
  EXPECT_EQ(findings[0].worker, 0U);
}

TEST(Straggler, OnACrowdedMachine_ALittleWorkMoreIsNotMuch) {
  // Each second on a core costs seven without one; the last of them waits in forward() for the others.
  const Worker other{.cpu = 8, .queue = 60};
  EXPECT_TRUE(Told({other, other, {.forward = 95, .backward = 60, .cpu = 11, .queue = 82}}).empty());
}

TEST(Straggler, EqualOnesAndThoseThatDoNotWaitForEachOther_AreSilent) {
  EXPECT_TRUE(Told({{}, {}, {.wait = 30, .backward = 85}}).empty());
  EXPECT_TRUE(Told({{}, {.other = 100}}).empty());  // 95 ms longer: nobody waits
  EXPECT_TRUE(Told({{.other = 60, .backward = 40}}).empty());
  EXPECT_TRUE(Told({{.other = 60, .backward = 40}, {}}, 90).empty());
}

}  // namespace
}  // namespace luff::rules::straggler_test

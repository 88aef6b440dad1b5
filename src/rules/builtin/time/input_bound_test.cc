#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/format.h"
#include "rules/testing/recorder.h"

namespace luff::rules::input_bound_test {
namespace {

using format::Phase;
using testing::FakeTrial;
using testing::FindingsOf;

struct Story {
  int steps = 300, workers = 0, cores = 8;
  double wait_ms = 46, rest_ms = 27, cpu_ms = 30, queue_ms = 0;
  int every = 1;          // steps of which one waits
  int healthy_from = -1;  // step from which nothing waits
};

std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  trial.SetDocument(
      "loaders", fmt::format(R"({{"loaders":[{{"type":"DataLoader","num_workers":{}}}]}})", story.workers));
  trial.SetDocument("environment", fmt::format(R"({{"cores":{}}})", story.cores));
  for (int i = 0; i < story.steps; ++i) {
    const bool waits = i % story.every == 0 && (story.healthy_from < 0 || i < story.healthy_from);
    trial.Step().Phases(
        {{Phase::kDataWait, waits ? story.wait_ms * story.every : 0}, {Phase::kForward, story.rest_ms}},
        story.cpu_ms, story.queue_ms);
  }
  return FindingsOf(trial, "InputBound", ParameterSet::kLuff);
}

TEST(InputBound, ALoaderWithoutWorkersIsNamed_WithTheArgumentAndTheSaving) {
  const auto findings = Told({});
  ASSERT_EQ(findings.size(), 1U);
  const Finding& finding = findings[0];
  EXPECT_EQ(finding.severity, Severity::kWarn);
  EXPECT_FALSE(finding.healed);
  EXPECT_NE(finding.what.find(
                "waits 63 % of the time for data (46 ms of 73 ms): DataLoader has 0 workers; num_workers=3"),
            std::string::npos)
      << finding.what;
  EXPECT_NE(finding.remedy.find("num_workers=3"), std::string::npos);
  ASSERT_TRUE(finding.saving);
  EXPECT_NEAR(finding.saving->seconds_a_step, 0.046, 1e-6);
  EXPECT_NEAR(finding.saving->share, 0.63, 0.01);
  EXPECT_EQ(finding.step, 169);  // the third window of 50 after the first 20: 6.9 s to be saved
  EXPECT_EQ(finding.since_step, 20);
  EXPECT_EQ(finding.cause, "no_workers");
}

TEST(InputBound, ADeviceThatIsIdleIsEvidence) {
  FakeTrial trial;
  trial.SetDocument("loaders", R"({"loaders":[{"type":"DataLoader","num_workers":0}]})");
  trial.SetDocument("environment", R"({"cores":8})");
  for (int i = 0; i < 300; ++i) {
    trial.Step().Phases({{Phase::kDataWait, 46}, {Phase::kForward, 27}}, 30, 0).OnDevice(20, i % 10 != 0);
  }
  const auto findings = FindingsOf(trial, "InputBound", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  const auto idle = [](const Finding& finding) {
    return std::ranges::count(finding.evidence, NamedNumber("idle_share", 0.9));
  };
  EXPECT_EQ(idle(findings[0]), 1);
  ASSERT_EQ(Told({}).size(), 1U);
  EXPECT_EQ(idle(Told({})[0]), 0);  // nothing is said where nothing is known
}

TEST(InputBound, BatchesThatComeInBursts_AreAsLong) {
  const auto findings = Told({.workers = 2, .every = 4});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find("DataLoader has 2 workers"), std::string::npos);
}

TEST(InputBound, OneWorkerThatIsSlowIsToldFromTooFew) {
  for (const std::uint32_t ready : {0U, 6U}) {
    FakeTrial trial;
    trial.SetDocument("loaders", R"({"loaders":[{"number":3,"type":"DataLoader","num_workers":4}]})");
    trial.SetDocument("environment", R"({"cores":16})");
    for (int i = 0; i < 400; ++i) {
      const std::uint32_t worker = static_cast<std::uint32_t>(i) % 4;
      const double wait = worker == 3 ? 160 : 0.1;
      trial.Step()
          .Phases({{Phase::kDataWait, wait}, {Phase::kForward, 27}}, 30, 0)
          .Wait({.loader = 3, .worker = worker, .ready = worker == 3 ? ready : 1}, wait);
    }
    const auto findings = FindingsOf(trial, "InputBound", ParameterSet::kLuff);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, ready == 0 ? "workers_too_few" : "slow_worker");
    if (ready == 0) continue;
    EXPECT_NE(findings[0].what.find("100 % of it for worker 3, while 6 batches of the others are ready"),
              std::string::npos)
        << findings[0].what;
    EXPECT_NE(findings[0].remedy.find("worker 3 of DataLoader"), std::string::npos);
  }
}

TEST(InputBound, ALoopWithoutALoader_IsToldToPrefetch) {
  FakeTrial trial;
  trial.SetDocument("environment", R"({"cores":16})");
  for (int i = 0; i < 300; ++i)
    trial.Step().Phases({{Phase::kDataWait, 20}, {Phase::kForward, 40}}, 60, 0).Wait({}, 20);
  const auto findings = FindingsOf(trial, "InputBound", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "own_loop");
  ASSERT_TRUE(findings[0].saving);
  EXPECT_NEAR(findings[0].saving->seconds_a_step, 0.02, 1e-6);
}

TEST(InputBound, HealthyTrainings_AreSilent) {
  EXPECT_TRUE(Told({.steps = 5000, .wait_ms = 2.5, .rest_ms = 27}).empty());  // 8 %
  EXPECT_TRUE(
      Told({.steps = 5000, .wait_ms = 1.5, .rest_ms = 1, .cpu_ms = 2}).empty());  // too short for workers
  EXPECT_TRUE(Told({.steps = 80}).empty());                                       // little to save yet
  EXPECT_TRUE(Told({.cores = 1, .cpu_ms = 73}).empty());                          // no core for a worker
  EXPECT_TRUE(Told({.steps = 1000, .wait_ms = 3, .rest_ms = 27, .every = 500}).empty());  // an epoch's begin
  FakeTrial without;
  for (int i = 0; i < 300; ++i) without.Step().Loss(1);
  EXPECT_TRUE(FindingsOf(without, "InputBound", ParameterSet::kLuff).empty());
}

TEST(InputBound, WaitingForACoreIsNotWaitingForData) {
  // 73 ms, 69 of them without a core: 2.5 ms of wait are left.
  EXPECT_TRUE(Told({.wait_ms = 25, .rest_ms = 48, .cpu_ms = 4, .queue_ms = 69}).empty());
}

TEST(InputBound, ItHealsAfterThreeWindows) {
  const auto findings = Told({.steps = 600, .healthy_from = 270});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
  EXPECT_EQ(Told({.steps = 380, .healthy_from = 270}).front().healed, false);
}

}  // namespace
}  // namespace luff::rules::input_bound_test

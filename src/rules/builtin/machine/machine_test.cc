// Rules on samples of machines: each on what it names, and silent on what looks like it.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>

#include "rules/facts/run_machines.h"
#include "rules/facts/step_memo.h"
#include "rules/testing/machine_story.h"
#include "rules/testing/recorder.h"

namespace luff::rules::machine_test {
namespace {

using testing::FakeTrial;
using testing::FindingsOf;
using testing::MachineStory;
using Unit = MachineStory::Unit;
using Kind = MachineStory::Kind;

constexpr const char* kAll =
    "CpuOversubscribed,ContainerThrottled,Swapping,StorageBound,MemoryGrowth,GpuUnderused,GpuThrottled";

std::vector<Finding> Told(MachineStory& story, const char* rules = kAll, double seconds = 120) {
  return FindingsOf(story.Tell(seconds), rules, ParameterSet::kLuff);
}

testing::MachineStory& Crowded(MachineStory& story) {
  return story.Counter("cpu.busy", 2).Counter("rank.0.cpu", 1.9).Counter("rank.0.run_queue", 7).Steps(0, 0.3);
}

TEST(MachineRules, AHealthyTrainingIsSilent) {
  MachineStory story;
  story.Counter("pressure.memory.full", 0.001)
      .Counter("cpu.steal", 0.01)
      .Gauge("gpu.0.utilisation", Unit::kShare, 0.93)
      .Gauge("gpu.0.clock.reasons", Unit::kBits, 4)  // at its power limit, as it should be
      .Gauge("gpu.0.clock", Unit::kFrequency, 1.6e9)
      .Steps(0.04, 0.05);
  EXPECT_TRUE(Told(story).empty());
}

TEST(MachineRules, WhereNothingWasMeasuredNothingIsSaid) {
  MachineStory story;
  Crowded(story);
  EXPECT_TRUE(FindingsOf(story.Tell(120, 20), kAll, ParameterSet::kLuff).empty());
  testing::FakeTrial trial;
  for (int i = 0; i < 100; ++i) trial.Step().Loss(1);
  EXPECT_TRUE(FindingsOf(trial, kAll, ParameterSet::kLuff).empty());
}

TEST(MachineRules, AWallClockThatIsSetMakesNoFinding) {
  MachineStory story;
  FakeTrial& trial = story.Steps(0.04, 0.05).Tell(60);
  constexpr std::int64_t kSecond = 1'000'000'000, kDay = 86'400 * kSecond;
  for (const std::int64_t jump : {-kDay, kDay, std::int64_t{0}}) {
    for (std::int64_t step = 1; step <= 600; ++step) {
      trial.Step().Phases({{format::Phase::kDataWait, 4}, {format::Phase::kForward, 96}}, 50, 5);
      trial.Last().info.wall_unix_ns = MachineStory::kStart + jump + step * kSecond / 10;
    }
  }
  EXPECT_TRUE(FindingsOf(trial, kAll, ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(trial, "InputBound", ParameterSet::kLuff).empty());
}

TEST(CpuOversubscribed, MoreThreadsThanCoresAreNamed_WithTheNumberThatFits) {
  MachineStory story;
  const auto findings = Told(Crowded(story));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "CpuOversubscribed");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].what.find("30 % of each step waits for a core"), std::string::npos)
      << findings[0].what;
  EXPECT_NE(findings[0].what.find("8.9 threads that want to run on 2 cores"), std::string::npos)
      << findings[0].what;
  EXPECT_NE(findings[0].remedy.find("set_num_threads(2)"), std::string::npos);
  ASSERT_TRUE(findings[0].saving);
  EXPECT_NEAR(findings[0].saving->share, 0.3, 0.01);
}

TEST(CpuOversubscribed, OtherProgramsAreNoFaultOfItsThreads) {
  MachineStory story;
  story.Counter("cpu.busy", 2).Counter("rank.0.cpu", 0.8).Counter("rank.0.run_queue", 1.9).Steps(0, 0.5);
  EXPECT_TRUE(Told(story).empty());
}

TEST(CpuOversubscribed, ItHealsWhenItIsOver) {
  MachineStory story;
  Crowded(story);
  story.Put("rank.0.run_queue",
            {Unit::kNanoseconds, Kind::kCounter, [](double seconds) { return 7 * std::min(seconds, 60.0); }});
  const auto findings = Told(story, "CpuOversubscribed", 150);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
}

TEST(ContainerThrottled, TheLimitIsNamed) {
  MachineStory story;
  Crowded(story)
      .Host(R"({"name":"node","cores":8,"allowed_cores":8,"limit_cores":1.5})")
      .Counter("cgroup.cpu.periods", 10, Unit::kNumber)
      .Counter("cgroup.cpu.throttled_periods", 6.4, Unit::kNumber);
  const auto findings = Told(story);
  ASSERT_EQ(findings.size(), 1U);  // CpuOversubscribed is silent: the limit explains it
  EXPECT_EQ(findings[0].rule, "ContainerThrottled");
  EXPECT_NE(findings[0].what.find("may use 1.5 cores and was held back in 64 % of its periods"),
            std::string::npos)
      << findings[0].what;
}

TEST(ContainerThrottled, WhatTheHostTakesIsStolen) {
  MachineStory story;
  story.Counter("cpu.steal", 0.4);
  const auto findings = Told(story);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "stolen");
  EXPECT_NEAR(findings[0].saving->share, 0.2, 0.02);
}

TEST(ContainerThrottled, WhatIsOverHealsWhenAnotherCauseComes) {
  MachineStory story;
  const auto first = [](double rate) {
    return [=](double seconds) { return rate * std::min(seconds, 60.0); };
  };
  const auto then = [](double rate) {
    return [=](double seconds) { return rate * std::max(seconds - 60, 0.0); };
  };
  story.Host(R"({"name":"node","cores":8,"allowed_cores":8,"limit_cores":1.5})")
      .Counter("cgroup.cpu.periods", 10, Unit::kNumber)
      .Put("cgroup.cpu.throttled_periods", {Unit::kNumber, Kind::kCounter, first(6.4)})
      .Put("cpu.steal", {Unit::kNanoseconds, Kind::kCounter, then(4)})
      .Steps(0, 0.3);
  const auto findings = Told(story, "ContainerThrottled", 200);
  ASSERT_EQ(findings.size(), 2U);
  for (const Finding& one : findings) EXPECT_EQ(one.healed, one.cause == "throttled") << one.cause;
}

TEST(Swapping, PressureOnMemoryIsNamed) {
  MachineStory story;
  story.Counter("pressure.memory.full", 0.2).Counter("vm.swapped_in", 5e6, Unit::kBytes);
  const auto findings = Told(story);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "Swapping");
  EXPECT_NE(findings[0].what.find("wait for memory 20 % of the time; 5.0 MB a second come back"),
            std::string::npos)
      << findings[0].what;
}

TEST(StorageBound, WorkersThatWaitForStorageAreNamed) {
  MachineStory story;
  story.Gauge("rank.0.children.count", Unit::kNumber, 4)
      .Gauge("rank.0.children.disk_wait", Unit::kNumber, 3)
      .Counter("rank.0.children.cpu", 0.2)
      .Counter("disk.vda.read", 41e6, Unit::kBytes)
      .Steps(0.6, 0);
  const auto findings = Told(story);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find(
                "the loader's workers wait 75 % of their time for storage (41 MB a second are read)"),
            std::string::npos)
      << findings[0].what;
}

std::vector<Finding> OfTwoWorkers(double without_core, double sampled_s = -1) {
  MachineStory story;
  story.Gauge("rank.0.children.count", Unit::kNumber, 2)
      .Counter("rank.0.children.cpu", 1)
      .Counter("rank.0.children.run_queue", without_core)
      .Steps(0.6, 0);
  FakeTrial& trial = story.Tell(120, sampled_s);
  trial.SetDocument("loaders", R"({"loaders":[{"type":"DataLoader","num_workers":2}]})");
  trial.SetDocument("environment", R"({"cores":8})");
  return FindingsOf(trial, "InputBound", ParameterSet::kLuff);
}

TEST(InputBound, WorkersThatLackCores_AreNotTooFew) {
  EXPECT_TRUE(OfTwoWorkers(1.4).empty());  // 70 % of their time: a batch would be there
  const auto findings = OfTwoWorkers(0.2);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "workers_too_few");
  // 10 of 100 ms go to others.
  EXPECT_NE(findings[0].what.find("waits 56 % of the time for data (50 ms of 90 ms)"), std::string::npos)
      << findings[0].what;
  EXPECT_EQ(OfTwoWorkers(0).size(), 1U);
}

/// The steps of two workers that lack cores, judged before a sampler has written anything.
struct BeforeTheFirstSamples {
  BeforeTheFirstSamples() {
    story.Gauge("rank.0.children.count", Unit::kNumber, 2)
        .Counter("rank.0.children.cpu", 1)
        .Counter("rank.0.children.run_queue", 1.4)
        .Steps(0.6, 0);
    trial = &story.Tell(120);
    trial->SetDocument("loaders", R"({"loaders":[{"type":"DataLoader","num_workers":2}]})");
    trial->SetDocument("environment", R"({"cores":8})");
    run = trial->path();
    trial->SetPath(run + "/none");
    EvaluatorOptions options;
    options.choices = ParseChoices("InputBound", ParameterSet::kLuff).value();
    evaluator = Evaluator::Open(options, nullptr).value();
  }
  [[nodiscard]] std::size_t After(std::size_t steps) const {
    EXPECT_TRUE(evaluator->Advance(*trial, steps).ok());
    return evaluator->findings().size();
  }
  MachineStory story;
  FakeTrial* trial;
  std::string run;
  std::unique_ptr<Evaluator> evaluator;
};

TEST(InputBound, NothingIsSaidOfWorkersBeforeTheFirstSamples) {
  const BeforeTheFirstSamples live;
  EXPECT_EQ(live.After(180), 0U);  // 18 s: three windows have ended, which would be enough
  live.trial->SetPath(live.run);
  EXPECT_EQ(live.After(10'000), 0U);
  EXPECT_TRUE(live.evaluator->Finish(*live.trial).ok());
  EXPECT_TRUE(live.evaluator->findings().empty());
}

TEST(InputBound, AMachineThatNobodyMeasuresIsNotWaitedForForEver) {
  const BeforeTheFirstSamples live;
  EXPECT_EQ(live.After(180), 0U);
  EXPECT_EQ(live.After(160), 1U);  // 34 s: the third window ended 17 s ago
}

TEST(InputBound, SamplesThatEndEarly_HoldNothingBackForEver) { EXPECT_EQ(OfTwoWorkers(0, 30).size(), 1U); }

TEST(MachineRules, SamplesAreReadOnceForAllRules) {
  MachineStory story;
  StepMemo memo;
  FakeTrial& trial = Crowded(story).Tell(60);
  const std::shared_ptr<RunMachines> machines = memo.Machines();
  EXPECT_FALSE(machines->Cover(MachineStory::kStart));
  ASSERT_TRUE(machines->Refresh(trial, MachineStory::kStart));
  EXPECT_TRUE(machines->Cover(MachineStory::kStart + 59'000'000'000));
  const auto* const first = &machines->In(MachineStory::kStart, MachineStory::kStart + 10'000'000'000);
  ASSERT_EQ(first->size(), 1U);
  memo.Clear();  // the next step
  EXPECT_EQ(memo.Machines(), machines);
  EXPECT_EQ(&machines->In(MachineStory::kStart, MachineStory::kStart + 10'000'000'000), first);
  FakeTrial elsewhere;
  RunMachines none;
  EXPECT_FALSE(none.Refresh(elsewhere, 1));
  EXPECT_FALSE(none.measured());
  EXPECT_TRUE(none.In(0, 1).empty());
}

TEST(StorageBound, ItLeadsTheWaitForData) {
  MachineStory story;
  story.Gauge("rank.0.disk_wait", Unit::kNumber, 0.5).Steps(0.6, 0);
  story.Put("rank.0.disk_wait", {Unit::kNumber, Kind::kGauge,
                                 [](double seconds) { return std::fmod(seconds, 1) < 0.4 ? 1.0 : 0.0; }});
  const auto findings = Told(story, "StorageBound,InputBound");
  ASSERT_EQ(findings.size(), 2U);
  const auto input = std::ranges::find(findings, "InputBound", &Finding::rule);
  const auto storage = std::ranges::find(findings, "StorageBound", &Finding::rule);
  ASSERT_TRUE(input != findings.end() && storage != findings.end());
  EXPECT_EQ(input->leader, storage->id);
}

TEST(StorageBound, ASampleNowAndThenIsNone) {
  MachineStory story;  // one of a window's twenty
  story
      .Put("rank.0.disk_wait", {Unit::kNumber, Kind::kGauge,
                                [](double seconds) { return std::fmod(seconds, 10) < 0.5 ? 1.0 : 0.0; }})
      .Steps(0.12, 0);
  EXPECT_TRUE(Told(story).empty());
}

TEST(StorageBound, WorkersThatComputeAreNot) {
  MachineStory story;
  story.Gauge("rank.0.children.count", Unit::kNumber, 4)
      .Gauge("rank.0.children.disk_wait", Unit::kNumber, 0)
      .Counter("rank.0.children.cpu", 1.2)
      .Steps(0.6, 0);
  EXPECT_TRUE(Told(story).empty());
}

TEST(MemoryGrowth, ALeakIsNamedWithTheTimeThatIsLeft) {
  MachineStory story;
  story.Put("rank.0.anonymous",
            {Unit::kBytes, Kind::kGauge, [](double seconds) { return 1e9 + 3e6 * seconds; }});
  const auto findings = Told(story, kAll, 420);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "MemoryGrowth");
  EXPECT_NE(findings[0].what.find("a step; what is left is used up in about 67 min"), std::string::npos)
      << findings[0].what;
}

TEST(MemoryGrowth, GraphsOfEarlierStepsAreTheCause_WhereMostOfThemAreThere) {
  // The last are 19 of the first steps that a list holds.
  for (const auto& [alive, newest, cause] :
       {std::tuple(22, 1024, "graphs_kept"), std::tuple(10, 1024, "grows"), std::tuple(19, 64, "grows")}) {
    MachineStory story;
    story.Put("rank.0.anonymous",
              {Unit::kBytes, Kind::kGauge, [](double seconds) { return 1e9 + 3e6 * seconds; }});
    FakeTrial& trial = story.Tell(420);
    trial.SetDocument("kept_graphs", R"({"step":2048,"looked_at":22,"oldest":0,"alive":)" +
                                         std::to_string(alive) + R"(,"newest":)" + std::to_string(newest) +
                                         "}");
    const auto findings = FindingsOf(trial, "MemoryGrowth", ParameterSet::kLuff);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, cause);
    EXPECT_EQ(findings[0].what.find("at step 2048, 22 of 22 losses of earlier steps") != std::string::npos,
              alive == 22)
        << findings[0].what;
  }
}

TEST(MemoryGrowth, WhatFillsUpAndStaysIsNoLeak) {
  MachineStory story;
  story.Put("rank.0.anonymous", {Unit::kBytes, Kind::kGauge,
                                 [](double seconds) { return 1e9 + 3e6 * std::min(seconds, 200.0); }});
  EXPECT_TRUE(Told(story, kAll, 600).empty());
}

TEST(MemoryGrowth, PagesOfAMappedDatasetAreNoLeak) {
  MachineStory story;
  story.Put("rank.0.rss", {Unit::kBytes, Kind::kGauge, [](double seconds) { return 1e9 + 3e6 * seconds; }})
      .Gauge("rank.0.anonymous", Unit::kBytes, 9e8);
  EXPECT_TRUE(Told(story, kAll, 420).empty());
}

TEST(MemoryGrowth, ADatasetThatIsCachedInTheFirstEpochIsNone_UnlessItDoesNotFit) {
  // Ten steps a second and 3 MB: an epoch of 12,000 steps takes 3.6 GB of the 12 GB there are.
  for (const auto& [samples, found] : {std::pair(384'000, 0U), std::pair(3'840'000, 1U)}) {
    MachineStory story;
    story.Put("rank.0.anonymous",
              {Unit::kBytes, Kind::kGauge, [](double seconds) { return 1e9 + 3e6 * seconds; }});
    FakeTrial& trial = story.Tell(420);
    trial.SetDocument("loaders", R"({"loaders":[{"trains":true,"batch_size":32,"samples":)" +
                                     std::to_string(samples) + "}]}");
    EXPECT_EQ(FindingsOf(trial, kAll, ParameterSet::kLuff).size(), found) << samples;
  }
}

TEST(MemoryGrowth, WhatGrowsOnAfterTheFirstEpochIsALeak) {
  MachineStory story;
  story.Put("rank.0.anonymous",
            {Unit::kBytes, Kind::kGauge, [](double seconds) { return 1e9 + 3e6 * seconds; }});
  FakeTrial& trial = story.Tell(500);
  trial.SetDocument("loaders", R"({"loaders":[{"trains":true,"batch_size":32,"samples":32000}]})");
  EXPECT_EQ(FindingsOf(trial, kAll, ParameterSet::kLuff).size(), 1U);
}

TEST(GpuUnderused, GpusOfOthersAreNotJudged) {
  MachineStory story;  // its own works; two of others work little, are shared and hot
  const auto hot = [](double seconds) { return std::fmod(seconds, 5) < 2; };
  story.Gauge("gpu.0.utilisation", Unit::kShare, 0.9)
      .Gauge("gpu.1.utilisation", Unit::kShare, 0.3)
      .Gauge("gpu.2.utilisation", Unit::kShare, 0.9)
      .Gauge("gpu.2.processes", Unit::kNumber, 3)
      .Put("gpu.2.clock.reasons", {Unit::kBits, Kind::kGauge, [=](double s) { return hot(s) ? 0x20 : 0; }})
      .Put("gpu.2.clock",
           {Unit::kFrequency, Kind::kGauge, [=](double s) { return hot(s) ? 1.2e9 : 1.98e9; }});
  EXPECT_TRUE(Told(story).empty());
}

TEST(GpuUnderused, ATrainingOnTheHostHasNone) {
  MachineStory story;
  story.Gauge("gpu.0.utilisation", Unit::kShare, 0.3);
  FakeTrial& trial = story.Tell(120);
  trial.SetDocument("model", R"({"optimizers":[{"number":0,"device":"cpu"}]})");
  EXPECT_TRUE(FindingsOf(trial, kAll, ParameterSet::kLuff).empty());
}

TEST(GpuUnderused, WhatAnotherJobHoldsIsNotIdle) {
  MachineStory story;
  story.Counter("rank.1.cpu", 0.5)
      .Gauge("gpu.0.utilisation", Unit::kShare, 0.9)
      .Gauge("gpu.1.utilisation", Unit::kShare, 0.9)
      .Gauge("gpu.2.utilisation", Unit::kShare, 0)
      .Gauge("gpu.2.memory.used", Unit::kBytes, 5e8);
  EXPECT_TRUE(Told(story).empty());
}

TEST(GpuUnderused, AGpuThatWorksLittleIsNamed_UnlessTheStepWaitsForData) {
  for (const double wait : {0.02, 0.5}) {
    MachineStory story;
    story.Gauge("gpu.0.utilisation", Unit::kShare, 0.31)
        .Gauge("gpu.0.sm_active", Unit::kShare, 0.12)
        .Steps(wait, 0);
    const auto findings = Told(story);
    if (wait > 0.1) {
      EXPECT_TRUE(findings.empty());
      continue;
    }
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_NE(findings[0].what.find("GPU 0 only 31 % of the time"), std::string::npos) << findings[0].what;
    EXPECT_NE(findings[0].what.find("multiprocessors work 12 %"), std::string::npos) << findings[0].what;
  }
}

TEST(GpuUnderused, AnIdleGpuOfAnotherJobIsNone) {
  MachineStory story;
  story.Gauge("gpu.0.utilisation", Unit::kShare, 0.9)
      .Gauge("gpu.1.utilisation", Unit::kShare, 0)
      .Gauge("gpu.1.memory.used", Unit::kBytes, 1e6);
  EXPECT_TRUE(Told(story).empty());
}

TEST(GpuUnderused, AGpuThatIsHeldAndNeverUsedIsNamed) {
  MachineStory story;
  story.Counter("rank.1.cpu", 0.5)
      .Gauge("gpu.0.utilisation", Unit::kShare, 0.9)
      .Gauge("gpu.1.utilisation", Unit::kShare, 0)
      .Gauge("gpu.1.memory.used", Unit::kBytes, 5e8);
  const auto findings = Told(story);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "idle");
}

TEST(GpuUnderused, OthersOnTheSameGpuAreNamed) {
  MachineStory story;
  story.Gauge("gpu.0.utilisation", Unit::kShare, 0.95).Gauge("gpu.0.processes", Unit::kNumber, 3);
  const auto findings = Told(story);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "shared");
}

TEST(GpuThrottled, HeatThatLowersTheClockIsNamed) {
  MachineStory story;
  const auto hot = [](double seconds) { return std::fmod(seconds, 5) < 2; };
  story.Gauge("gpu.0.utilisation", Unit::kShare, 0.95)
      .Gauge("gpu.0.temperature", Unit::kTemperature, 92)
      .Put("gpu.0.clock.reasons", {Unit::kBits, Kind::kGauge, [=](double s) { return hot(s) ? 0x20 : 0; }})
      .Put("gpu.0.clock",
           {Unit::kFrequency, Kind::kGauge, [=](double s) { return hot(s) ? 1.2e9 : 1.98e9; }});
  const auto findings = Told(story);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find("40 % of the time: its clock is 1200 of 1980 MHz then (92 C)"),
            std::string::npos)
      << findings[0].what;
}

}  // namespace
}  // namespace luff::rules::machine_test

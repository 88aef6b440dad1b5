#include "luff/profile/input.h"

#include <gtest/gtest.h>

#include "base/format.h"

namespace luff::profile {
namespace {

query::StepPhases Phases(double wait_ms, double rest_ms, double cpu_ms = -1, double queue_ms = -1) {
  query::StepPhases phases;
  const auto ns = [](double ms) { return ms < 0 ? -1 : static_cast<std::int64_t>(ms * 1e6); };
  phases.head = {ns(wait_ms) + ns(rest_ms), ns(cpu_ms), ns(queue_ms), -1, 1, 2, format::kNoId, 0};
  phases.ns[static_cast<std::size_t>(format::Phase::kDataWait)] = ns(wait_ms);
  phases.ns[static_cast<std::size_t>(format::Phase::kForward)] = ns(rest_ms);
  return phases;
}

Means Of(std::size_t steps, const query::StepPhases& phases) {
  return MeansOf(std::vector(steps, TimeOf(phases)));
}

TEST(Input, WorkersTakeTheWaitAway_AsFarAsCoresGo) {
  // 46 ms of samples, 27 ms of model, all of it on a core: 8 cores let 3 workers keep up.
  const Estimate enough = EstimateWorkers(Of(50, Phases(46, 27, 73, 0)), 0, 8);
  EXPECT_EQ(enough.workers, 3);
  EXPECT_NEAR(enough.saving_s, 0.046, 1e-9);
  EXPECT_LE(enough.low_s, enough.saving_s);
  EXPECT_GE(enough.high_s, enough.saving_s);
  // With one core beside the training's, a batch still takes its 46 ms.
  const Estimate one = EstimateWorkers(Of(50, Phases(46, 27, 73, 0)), 0, 2);
  EXPECT_EQ(one.workers, 1);
  EXPECT_NEAR(one.saving_s, 0.027, 1e-9);
  EXPECT_EQ(EstimateWorkers(Of(50, Phases(46, 27, 73, 0)), 0, 1).saving_s, 0);
}

TEST(Input, SamplesThatSleepNeedNoCore) {
  const Estimate estimate = EstimateWorkers(Of(50, Phases(46, 27, 27, 0)), 0, 2);
  EXPECT_EQ(estimate.workers, 2);
  EXPECT_NEAR(estimate.saving_s, 0.046, 1e-9);  // 23 ms a batch
}

TEST(Input, WorkersThatCannotKeepUp_AreCountedAsTheyWork) {
  // 2 workers need 100 ms for a batch each: one every 50 ms, which the step waits for.
  const Estimate estimate = EstimateWorkers(Of(50, Phases(40, 10)), 2, 16);
  EXPECT_NEAR(estimate.work_s, 0.1, 1e-9);
  EXPECT_EQ(estimate.workers, 11);
  EXPECT_NEAR(estimate.saving_s, 0.04, 1e-9);
  EXPECT_EQ(EstimateWorkers(Of(50, Phases(40, 10)), 2, 3).saving_s, 0);  // no core is left for a third
  EXPECT_EQ(EstimateWorkers(Of(50, Phases(40, 10, 10, 0)), 2, 3).workers,
            3);  // but for what the training leaves
}

TEST(Input, TimeWithoutACoreIsNobodysFault) {
  const Means means = Of(50, Phases(40, 40, 20, 40));
  EXPECT_NEAR(means.step_s, 0.04, 1e-12);
  EXPECT_NEAR(means.wait_s, 0.02, 1e-12);
  EXPECT_NEAR(means.blocked_s.value_or(-1), 0.02, 1e-12);
  EXPECT_FALSE(Of(50, Phases(40, 40)).blocked_s);
}

TEST(Input, CpuTimesThatFellToSomeSteps_CountForAll) {
  std::vector<StepTime> steps;
  for (int i = 0; i < 100; ++i)
    steps.push_back(TimeOf(Phases(5, 5, i % 5 == 0 ? 20 : 0, i % 5 == 0 ? 10 : 0)));
  const Means means = MeansOf(steps);
  EXPECT_NEAR(means.step_s, 0.008, 4e-4);
  EXPECT_NEAR(means.blocked_s.value_or(-1), 0.004, 1.2e-3);
}

TEST(Input, TheLongestStepsAreLeftOut_BatchesThatComeInBurstsAreNot) {
  std::vector<StepTime> steps(48, TimeOf(Phases(0, 10)));
  steps.push_back(TimeOf(Phases(0, 5000)));
  steps.push_back(TimeOf(Phases(3000, 10)));
  EXPECT_NEAR(MeansOf(steps).step_s, 0.01, 1e-12);
  std::vector<StepTime> bursts;
  for (int i = 0; i < 100; ++i) bursts.push_back(TimeOf(Phases(i % 4 == 0 ? 40 : 0, 10)));
  EXPECT_NEAR(MeansOf(bursts).wait_s, 0.0087, 0.0005);
}

TEST(Input, TheLoaderThatTrainsIsChosen) {
  const auto loader = TrainingLoader(
      R"({"loaders":[{"type":"DataLoader","num_workers":8,"trains":false},)"
      R"({"type":"Mine","dataset":"Photos","num_workers":2,"trains":true,"by_next":true},{"type":"DataLoader","num_workers":4}]})");
  ASSERT_TRUE(loader);
  EXPECT_EQ(loader->type, "Mine");
  EXPECT_EQ(loader->workers, 2);
  EXPECT_TRUE(loader->by_next);
  EXPECT_EQ(TrainingLoader(R"({"loaders":[{"num_workers":1},{"num_workers":-5}]})")->workers, 0);
  for (const char* text : {"", "{", "[]", R"({"loaders":3})", R"({"loaders":[]})", R"({"loaders":[1]})"})
    EXPECT_FALSE(TrainingLoader(text)) << text;
  EXPECT_EQ(CoresOf(R"({"cpus":16,"cores":4})"), 4);
  EXPECT_EQ(CoresOf(R"({"cpus":16})"), 16);
  EXPECT_EQ(CoresOf(R"({"cores":1e300})"), 1);
  EXPECT_EQ(CoresOf(""), 1);
}

TEST(Input, TextsNameNumbers) {
  EXPECT_EQ(WaitText(Of(50, Phases(46, 27)), Loader{"DataLoader", "Photos", 0}),
            "the step waits 63 % of the time for data (46 ms of 73 ms): DataLoader has 0 workers");
  EXPECT_EQ(TimeText(0.0000123), "12 us");
  EXPECT_EQ(TimeText(0.00123), "1.2 ms");
  EXPECT_EQ(TimeText(2580), "43 min");
}

TEST(Input, WaitsAreKeptByLoaderAndWorker) {
  Waits waits;
  EXPECT_EQ(waits.loader(), -1);
  query::StepPhases phases;
  phases.waits = {{{.loader = 2, .worker = 1, .ready = 3}, 1, 8'000'000},
                  {{.loader = 2, .worker = 0, .ready = 0}, 1, 2'000'000},
                  {{.loader = 0}, 1, 1'000'000},
                  {{}, 1, 4'000'000}};
  waits.Add(phases);
  waits.Add(phases);
  EXPECT_EQ(waits.loader(), 2);
  EXPECT_NEAR(waits.seconds(), 0.03, 1e-12);
  const Waits::Slowest slowest = waits.SlowestOf(2);
  EXPECT_EQ(slowest.worker, 1);
  EXPECT_NEAR(slowest.share, 0.8, 1e-9);
  EXPECT_NEAR(slowest.ready, 3, 1e-9);
  EXPECT_EQ(waits.SlowestOf(0).worker, -1);
  waits.Clear();
  EXPECT_EQ(waits.loader(), -1);
}

TEST(Input, ALoopWithoutALoaderMakesItsNextBatchMeanwhile) {
  const Estimate estimate = EstimatePrefetch(Of(50, Phases(24, 28)));
  EXPECT_NEAR(estimate.saving_s, 0.024, 1e-9);
  EXPECT_LT(estimate.low_s, estimate.saving_s);  // 1.3 times 24 ms are longer than the rest
  const InputCause cause = CauseOf(Of(50, Phases(24, 28)), Waits(), "", R"({"keras":"3.0","cores":4})");
  EXPECT_EQ(cause.cause, "own_loop");
  EXPECT_NE(cause.remedy.find("tf.data"), std::string::npos);
}

TEST(Input, OfKeras_TheArgumentsAreThoseOfItsClasses) {
  const auto cause = [](const char* type, const char* dataset, int workers) {
    const std::string loaders = fmt::format(
        R"({{"loaders":[{{"number":0,"type":"{}","dataset":"{}","num_workers":{},"trains":true}}]}})", type,
        dataset, workers);
    return CauseOf(Of(50, Phases(20, 10)), Waits(), loaders, R"({"keras":"3.0","cores":4})");
  };
  const InputCause here = cause("PyDataset", "Clips", 0);
  EXPECT_EQ(here.cause, "no_workers");
  EXPECT_EQ(here.what, "workers=3");
  EXPECT_NE(here.remedy.find("workers=3 and use_multiprocessing=True to super().__init__() of Clips"),
            std::string::npos)
      << here.remedy;
  // One batch is made ahead already: two at a time halve the step, and no more is claimed.
  const InputCause ahead = cause("generator", "rows", 1);
  EXPECT_EQ(ahead.cause, "workers_too_few");
  EXPECT_NEAR(ahead.estimate.work_s, 0.03, 1e-9);
  EXPECT_NE(ahead.remedy.find("make rows a keras.utils.PyDataset"), std::string::npos) << ahead.remedy;
  // What would help a pipeline is not known: no saving, so no finding.
  const InputCause pipeline = cause("tf.data", "", 1);
  EXPECT_EQ(pipeline.cause, "pipeline");
  EXPECT_EQ(pipeline.estimate.saving_s, 0);
  EXPECT_NE(pipeline.remedy.find("num_parallel_calls"), std::string::npos);
  const InputCause other = cause("other", "", 0);
  EXPECT_EQ(other.estimate.saving_s, 0);
  EXPECT_EQ(other.remedy.find("tf.data"), std::string::npos) << other.remedy;
}

TEST(Input, TheLoaderThatIsWaitedForIsNamed) {
  constexpr const char* kTwo =
      R"({"loaders":[{"number":0,"type":"A","num_workers":0,"trains":true},{"number":1,"type":"B","num_workers":4}]})";
  Waits waits;
  query::StepPhases phases;
  phases.waits = {{{.loader = 1, .worker = 0, .ready = 0}, 1, 8'000'000}};
  waits.Add(phases);
  const Means means = Of(50, Phases(40, 10));
  EXPECT_EQ(CauseOf(means, waits, kTwo, R"({"cores":16})").cause, "workers_too_few");
  EXPECT_EQ(CauseOf(means, waits, kTwo, R"({"cores":16})").loader->type, "B");
  EXPECT_EQ(CauseOf(means, Waits(), kTwo, R"({"cores":16})").cause,
            "no_workers");  // as a run of 1.0 tells it
  EXPECT_EQ(LoadersOf(kTwo).size(), 2U);
  EXPECT_TRUE(LoadersOf(R"({"loaders":[1,null]})").empty());
}

}  // namespace
}  // namespace luff::profile

// What is said first of a run's time, and of machines whose sampler has died.
#include "luff/profile/time_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "profile/testing/phases_run.h"

namespace luff::profile::time_report_test {
namespace {

using format::Mode;
using format::Phase;
using luff::profile::testing::Written;
using ::testing::Contains;

constexpr const char* kNoWorkers =
    R"({"loaders":[{"number":0,"type":"DataLoader","num_workers":0,"trains":true}]})";

std::string FirstLine(const std::function<void(Written*)>& write) {
  Written run;
  run.Document("loaders", kNoWorkers);
  run.Document("environment", R"({"cores":8})");
  write(&run);
  const auto trial = run.Read();
  const auto report = TimeReportOf(*trial, {});
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  return report.ok() ? report->verdict.text : "";
}

void Steps(Written* run, int count, std::int64_t wait_ms, std::int64_t rest_ms, std::int64_t queue_ms = -1) {
  for (int i = 0; i < count; ++i)
    run->Step(Mode::kTrain, {{Phase::kDataWait, wait_ms}, {Phase::kForward, rest_ms}}, queue_ms);
}

// 4.2 s of 7.2 s, as the table below the line has it; of the steps that are judged it is 67 %.
TEST(TimeReport, TheFirstLineHasTheShareOfTheTable) {
  EXPECT_EQ(FirstLine([](Written* run) {
              Steps(run, 20, 10, 50);
              Steps(run, 100, 40, 20);
            }),
            "the step waits 58 % of the time for data (4.2 s of 7.2 s): DataLoader has 0 workers; "
            "num_workers=3 would save about 4.0 s of 7.2 s");
}

TEST(TimeReport, ASavingSaysThatItLeavesOutTimeWithoutACore) {
  EXPECT_EQ(FirstLine([](Written* run) {
              Steps(run, 20, 10, 50, 30);
              Steps(run, 100, 40, 20, 30);
            }),
            "the step waits 58 % of the time for data (4.2 s of 7.2 s): DataLoader has 0 workers; "
            "num_workers=3 would save about 2.0 s of 7.2 s, not counting the 50 % of the time in which its "
            "thread had no core");
}

TEST(TimeReport, WaitsOfTheBeginAreToldAsSuch) {
  EXPECT_EQ(
      FirstLine([](Written* run) {
        Steps(run, 20, 100, 10);
        Steps(run, 100, 1, 19);
      }),
      "nothing found that would make it faster: waiting for data takes 50.0 % of the time, most of it in "
      "the first 20 steps, for first batches, or in few long steps");
  EXPECT_EQ(
      FirstLine([](Written* run) { Steps(run, 120, 1, 4); }),
      "nothing found that would make it faster: waiting for data takes 20.0 % of the time, in a usual step "
      "1.0 ms, which is too short to judge");
  EXPECT_EQ(FirstLine([](Written* run) { Steps(run, 120, 1, 19); }),
            "nothing found that would make it faster: waiting for data takes 5.0 % of the time");
}

/// A hundred seconds of steps beside a sampler that measures `sampled_s` of them. Returns what is not seen.
std::vector<std::string> NotSeenOf(std::int64_t sampled_s, bool ends, const query::TimeSpan& span = {}) {
  Written run;
  for (int i = 0; i < 100; ++i) run.Step(Mode::kTrain, {{Phase::kForward, 1000}});
  store::WriterOptions options;
  options.run_path = run.path();
  options.worker = 1;
  options.host = true;
  auto sampler = store::WorkerWriter::Open(options, run.info()).value();
  store::StepBatch batch;
  batch.series = {
      {0, format::SeriesUnit::kNanoseconds, format::SeriesKind::kCounter, format::kNoId, "cpu.busy"}};
  batch.documents = {{"host", R"({"name":"node","cores":2})"}};
  format::SampleBlock block;
  block.first_unix_ns = Written::kBegin;
  block.series = {{0, format::SeriesKind::kCounter, {}, {}}};
  for (std::int64_t i = 0; i <= sampled_s; ++i) {
    block.mono_ns.push_back(i * 1'000'000'000);
    block.series[0].values.push_back(i * 500'000'000);
  }
  if (sampled_s >= 0) batch.samples = {block};
  EXPECT_TRUE(sampler->PublishLoose(batch).ok());
  if (ends) {
    EXPECT_TRUE(sampler->Close(format::EndReason::kCompleted).ok());
  }
  sampler.reset();
  const auto trial = run.Read();
  const Machines machines = MachinesOf(*trial, span);
  EXPECT_EQ(machines.all.size(), 1U);
  EXPECT_EQ(machines.unsampled_s.empty() || machines.unsampled_s[0] == 0, machines.not_seen.empty());
  return machines.not_seen;
}

TEST(TimeReport, ASamplerThatDiedIsTold) {
  EXPECT_THAT(
      NotSeenOf(40, false),
      Contains("the last 60.0 s of node: its sampler has ended before the training, and was not started "
               "again"));
  EXPECT_THAT(
      NotSeenOf(-1, false),  // before it has written its first samples
      Contains("the last 99.0 s of node: its sampler has ended before the training, and was not started "
               "again"));
  EXPECT_THAT(NotSeenOf(90, false), ::testing::IsEmpty());  // they may be late
  EXPECT_THAT(NotSeenOf(40, true), ::testing::IsEmpty());   // the job's part on this host has ended
  EXPECT_THAT(NotSeenOf(40, false, {.to_unix_ns = Written::kBegin + 30'000'000'000}), ::testing::IsEmpty());
}

}  // namespace
}  // namespace luff::profile::time_report_test

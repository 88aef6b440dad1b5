// Phases and machines as buckets of steps.
#include "luff/profile/phase_buckets.h"

#include <gtest/gtest.h>

#include <cmath>

#include "luff/base/work_bound.h"
#include "profile/testing/phases_run.h"

namespace luff::profile::phase_buckets_test {
namespace {

using format::Mode;
using format::Phase;
using testing::Written;

const Band& Of(const PhaseBuckets& buckets, Phase phase) {
  return buckets.phases[static_cast<std::size_t>(phase)];
}

TEST(PhaseBuckets, EachStepHasItsOwnWhereTheyFit) {
  Written run;
  for (int i = 0; i < 10; ++i) run.Step(Mode::kTrain, {{Phase::kForward, 10 + i}, {Phase::kOther, 5}}, 3);
  const auto buckets = BucketsOf(*run.Read(), {});
  ASSERT_TRUE(buckets.ok());
  EXPECT_EQ(buckets->bucket_steps, 1);
  ASSERT_EQ(buckets->step.size(), 10U);
  EXPECT_FLOAT_EQ(Of(*buckets, Phase::kForward).mean[9], 0.019F);
  EXPECT_FLOAT_EQ(buckets->wall.hi[9], 0.024F);
  EXPECT_FLOAT_EQ(buckets->run_queue[0], 0.2F);
  EXPECT_TRUE(Of(*buckets, Phase::kBackward).mean.empty());  // not seen is absent
}

TEST(PhaseBuckets, ALongStepIsSeenAmongThousands) {
  Written run;
  for (int i = 0; i < 3000; ++i)
    run.Step(Mode::kTrain,
             {{Phase::kForward, 10}, {i == 1777 ? Phase::kCheckpoint : Phase::kOther, i == 1777 ? 900 : 1}});
  const auto trial = run.Read();
  const auto buckets = BucketsOf(*trial, {.worker = {}, .points = 64});
  ASSERT_TRUE(buckets.ok());
  EXPECT_EQ(buckets->bucket_steps, 64);
  EXPECT_EQ(buckets->step.size(), 47U);
  double whole = 0;
  std::int64_t steps = 0;
  for (std::size_t i = 0; i < buckets->step.size(); ++i) {
    double sum = 0;
    for (const Band& band : buckets->phases) sum += band.mean.empty() ? 0 : static_cast<double>(band.mean[i]);
    EXPECT_NEAR(sum, buckets->wall.mean[i], 1e-6);  // phases add up in each bucket
    EXPECT_LE(buckets->wall.lo[i], buckets->wall.mean[i]);
    EXPECT_LE(buckets->wall.mean[i], buckets->wall.hi[i]);
    whole += static_cast<double>(buckets->wall.mean[i]) * static_cast<double>(buckets->steps[i]);
    steps += buckets->steps[i];
  }
  EXPECT_EQ(steps, 3000);
  EXPECT_NEAR(whole, 2999 * 0.011 + 0.91, 1e-3);
  EXPECT_FLOAT_EQ(buckets->wall.hi[1777 / 64], 0.91F);
  const Band& checkpoint = Of(*buckets, Phase::kCheckpoint);
  EXPECT_FLOAT_EQ(checkpoint.hi[1777 / 64], 0.9F);
  EXPECT_FLOAT_EQ(checkpoint.lo[1777 / 64], 0);  // most steps of its bucket have none
  EXPECT_FLOAT_EQ(checkpoint.hi[0], 0);
  // Zoomed in, each step is alone again, and buckets begin at multiples of their length.
  const auto zoomed = BucketsOf(*trial, {.worker = {}, .from = 1700, .to = 1800, .points = 128});
  ASSERT_EQ(zoomed->step.size(), 101U);
  EXPECT_FLOAT_EQ(zoomed->wall.mean[77], 0.91F);
  const auto halved = BucketsOf(*trial, {.worker = {}, .from = 1700, .to = 1800, .points = 100});
  EXPECT_EQ(halved->step[1], 1702);
}

TEST(PhaseBuckets, TrainStepsAreCountedAsCommandsDo) {
  Written run;
  for (int i = 0; i < 4; ++i) {
    run.Step(Mode::kTrain, {{Phase::kForward, 10}});
    if (i == 1) run.Step(Mode::kEval, {{Phase::kForward, 500}});
  }
  run.Worker(1);
  for (int i = 0; i < 4; ++i) run.Step(Mode::kTrain, {{Phase::kForward, 20}});
  const auto trial = run.Read();
  const auto buckets = BucketsOf(*trial, {});
  EXPECT_EQ(buckets->step, (std::vector<std::int64_t>{0, 1, 3, 4}));
  EXPECT_EQ(buckets->train, (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(buckets->workers, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_FLOAT_EQ(BucketsOf(*trial, {.worker = 1})->wall.mean[0], 0.02F);
  EXPECT_EQ(BucketsOf(*trial, {.worker = 5}).status().code(), StatusCode::kNotFound);
}

TEST(PhaseBuckets, MergedStepsCountAsAllThatTheyStandFor) {
  Written run(32 << 10, 160 << 10);
  for (int i = 0; i < 3000; ++i) run.Step(Mode::kTrain, {{Phase::kForward, 10}, {Phase::kOther, 5}}, 1);
  const auto buckets = BucketsOf(*run.Read(), {.worker = {}, .points = 4096});
  ASSERT_TRUE(buckets.ok());
  std::int64_t steps = 0, next = 0;
  for (std::size_t i = 0; i < buckets->step.size(); ++i) {
    steps += buckets->steps[i];
    EXPECT_EQ(buckets->train[i], next);  // no hole between what was merged
    next = buckets->train_last[i] + 1;
    EXPECT_FLOAT_EQ(buckets->wall.mean[i], 0.015F);
  }
  EXPECT_EQ(steps, 3000);
  EXPECT_LT(buckets->step.size(), 2000U);
}

TEST(PhaseBuckets, ReadingEndsWhenNobodyWaits) {
  Written run;
  run.Step(Mode::kTrain, {{Phase::kForward, 10}});
  const auto trial = run.Read();
  const WorkBound::Check over = [] { return DeadlineExceeded("over"); };
  const WorkBound bound(&over);
  EXPECT_EQ(BucketsOf(*trial, {}).status().code(), StatusCode::kDeadlineExceeded);
}

/// Samples of half a second, beside a run.
class Host {
 public:
  explicit Host(const Written& run) {
    store::WriterOptions options;
    options.run_path = run.path();
    options.worker = 0;
    options.host = true;
    writer_ = store::WorkerWriter::Open(options, run.info()).value();
  }
  void Series(std::uint32_t id, format::SeriesUnit unit, format::SeriesKind kind, const std::string& name,
              std::vector<std::int64_t> values) {
    batch_.series.push_back({id, unit, kind, format::kNoId, name});
    if (batch_.samples.empty()) {
      batch_.samples.emplace_back();
      batch_.samples[0].first_unix_ns = Written::kBegin;
      for (std::size_t i = 0; i < values.size(); ++i)
        batch_.samples[0].mono_ns.push_back(static_cast<std::int64_t>(i) * 500'000'000);
    }
    batch_.samples[0].series.push_back({id, kind, std::move(values), {}});
  }
  void Close() {
    ASSERT_TRUE(writer_->PublishLoose(batch_).ok());
    ASSERT_TRUE(writer_->Close(format::EndReason::kCompleted).ok());
  }

 private:
  std::unique_ptr<store::WorkerWriter> writer_;
  store::StepBatch batch_;
};

const Band* Find(const MachineBands& bands, std::string_view name) {
  for (const auto& one : bands.bands) {
    if (one.name == name) return &one.band;
  }
  return nullptr;
}

TEST(MachineBands, RatesGoToTheStepsThatTheyLieIn) {
  using format::SeriesKind;
  using format::SeriesUnit;
  constexpr std::int64_t kNone = format::kNoSample;
  constexpr std::int64_t kHalf = 500'000'000;
  Written run;
  for (int i = 0; i < 2; ++i) run.Step(Mode::kTrain, {{Phase::kForward, 1000}});  // two samples in each
  for (int i = 0; i < 10; ++i) run.Step(Mode::kTrain, {{Phase::kForward, 100}});  // five steps in a sample
  run.Pause(60'000);
  run.Step(Mode::kTrain, {{Phase::kForward, 100}});  // after the last sample
  Host host(run);
  // One core in the first half second, none in the second, two from then on.
  host.Series(0, SeriesUnit::kNanoseconds, SeriesKind::kCounter, "rank.0.cpu",
              {0, kHalf, kHalf, 3 * kHalf, 5 * kHalf, 7 * kHalf, 9 * kHalf});
  host.Series(1, SeriesUnit::kNanoseconds, SeriesKind::kCounter, "rank.0.children.cpu",
              {0, 0, 0, 0, 0, kHalf, 2 * kHalf});
  host.Series(2, SeriesUnit::kNanoseconds, SeriesKind::kCounter, "rank.0.child.0.cpu",
              {0, 0, 0, 0, 0, kHalf, 2 * kHalf});  // is in the sum already
  host.Series(3, SeriesUnit::kBytes, SeriesKind::kGauge, "memory.total", {9, 9, 9, 9, 9, 9, 9});
  host.Series(4, SeriesUnit::kBytes, SeriesKind::kGauge, "memory.available", {8, 8, 8, 6, 6, 6, 6});
  host.Series(5, SeriesUnit::kBytes, SeriesKind::kCounter, "disk.vda.read",
              {0, kNone, 100, kNone, 50, kNone, 250});
  host.Series(6, SeriesUnit::kNumber, SeriesKind::kGauge, "temperature", {1, 1, 1, 1, 1, 1, 1});
  host.Close();
  const auto buckets = BucketsOf(*run.Read(), {});
  ASSERT_TRUE(buckets.ok());
  ASSERT_EQ(buckets->step.size(), 13U);
  const auto samples = query::Samples::Open(run.path()).value();
  const auto bands = BandsOf(samples->hosts().front(), *buckets);
  ASSERT_TRUE(bands.ok()) << bands.status().ToString();
  const Band* job = Find(*bands, "cores.job");
  ASSERT_NE(job, nullptr);
  EXPECT_FLOAT_EQ(job->lo[0], 0);
  EXPECT_FLOAT_EQ(job->hi[0], 1);
  EXPECT_NEAR(job->mean[0], 0.5F, 1e-6);
  EXPECT_NEAR(job->mean[1], 2, 1e-6);
  EXPECT_FLOAT_EQ(job->mean[3], 3);        // with the loader's workers
  EXPECT_TRUE(std::isnan(job->mean[12]));  // not measured
  const Band* memory = Find(*bands, "memory.used");
  ASSERT_NE(memory, nullptr);
  EXPECT_FLOAT_EQ(memory->mean[5], 3);
  const Band* disk = Find(*bands, "disk.read");
  ASSERT_NE(disk, nullptr);
  EXPECT_FLOAT_EQ(disk->mean[0], 100);
  EXPECT_TRUE(std::isnan(disk->mean[1]));  // its counter began again there
  EXPECT_FLOAT_EQ(disk->mean[4], 200);
  EXPECT_EQ(bands->bands.size(), 3U);  // nothing of what no chart shows
}

TEST(MachineBands, MemoryWhoseUseIsNotKnownIsLeftOut) {
  Written run;
  run.Step(Mode::kTrain, {{Phase::kForward, 1000}});
  Host host(run);
  host.Series(0, format::SeriesUnit::kBytes, format::SeriesKind::kGauge, "memory.total", {9, 9, 9});
  host.Close();
  const auto buckets = BucketsOf(*run.Read(), {});
  const auto samples = query::Samples::Open(run.path()).value();
  EXPECT_TRUE(BandsOf(samples->hosts().front(), *buckets)->bands.empty());
}

}  // namespace
}  // namespace luff::profile::phase_buckets_test

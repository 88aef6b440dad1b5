// Histograms over steps, read back from the bytes of the answer.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "query/testing.h"
#include "server/histogram.h"
#include "server/histograms_api.h"
#include "server/testing.h"

namespace luff::server::histograms_api_test {
namespace {

using query::testing::TempRun;
using query::testing::Writing;

SparseHistogram HistogramOf(const std::vector<float>& values) {
  std::vector<std::uint64_t> dense(kHistogramBins);
  const std::int64_t dims[] = {static_cast<std::int64_t>(values.size())};
  AddHistogram(
      {reinterpret_cast<const std::byte*>(values.data()), Layout::Contiguous(DType::kFloat32, dims).value()},
      dense);
  return ToSparse(dense);
}

std::vector<float> Ramp(float low, float high, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = low + (high - low) * static_cast<float>(i) / static_cast<float>(count - 1);
  return values;
}

struct House {
  House() {
    writing.Define(0, "w", 1000, format::Role::kWeight);
    writing.Define(1, "raw", 1000, format::Role::kWeight);
  }
  /// Steps with a histogram at each `every`-th one, of values from -1 to 1 + the step.
  void Write(int steps, int every) {
    for (int i = 0; i < steps; ++i) {
      if (writing.global_step % every == 0) {
        writing.batch.histograms.emplace_back(
            0, HistogramOf(Ramp(-1, 1 + static_cast<float>(writing.global_step), 1000)));
      }
      writing.Step();
    }
  }
  PayloadReader Ask(const HistogramsQuestion& question) {
    const auto trial = query::Trial::Open(run.path());
    EXPECT_TRUE(trial.ok());
    Payload payload;
    const Status added = AddHistograms(**trial, question, &payload);
    EXPECT_TRUE(added.ok()) << added.ToString();
    return PayloadReader(payload.Bytes());
  }
  TempRun run;
  Writing writing{run.path(), 0, 1};
};

TEST(Histograms, ShareTheirBinsAndKeepEveryElement) {
  House house;
  house.Write(40, 10);
  for (const bool log : {false, true}) {
    const PayloadReader answer = house.Ask({.tensor = 0, .log = log});
    EXPECT_EQ(answer.Text("source"), "histogram");
    EXPECT_EQ(answer.Text("exact"), "1");
    EXPECT_EQ(answer.Get<std::int64_t>("step"), (std::vector<std::int64_t>{0, 10, 20, 30}));
    const auto edges = answer.Get<double>("edges");
    const auto counts = answer.Get<double>("counts");
    const std::size_t bins = edges.size() - 1;
    EXPECT_LE(bins, 128U);
    EXPECT_TRUE(std::ranges::is_sorted(edges));
    ASSERT_EQ(counts.size(), 4 * bins);
    for (std::size_t row = 0; row < 4; ++row) {
      const auto begin = counts.begin() + static_cast<std::ptrdiff_t>(row * bins);
      EXPECT_NEAR(std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(bins), 0.0), 1000, 1e-6) << log;
    }
    // The median of the last, whose values go from -1 to 31.
    const auto levels = answer.Get<double>("levels");
    const auto quantiles = answer.Get<double>("quantiles");
    EXPECT_EQ(levels[4], 0.5);
    EXPECT_NEAR(quantiles[3 * levels.size() + 4], 15, 1);
    EXPECT_LE(quantiles[3 * levels.size()], -1);
  }
}

TEST(Histograms, OfManyStepsAreSummedUpInBuckets) {
  House house;
  house.Write(100, 1);
  const PayloadReader answer = house.Ask({.tensor = 0, .points = 30});
  EXPECT_EQ(answer.Text("steps"), "4");
  EXPECT_EQ(answer.Text("exact"), "0");
  const auto step = answer.Get<std::int64_t>("step");
  const auto last = answer.Get<std::int64_t>("last");
  const auto total = answer.Get<double>("total");
  ASSERT_EQ(step.size(), 25U);
  for (std::size_t i = 0; i < step.size(); ++i) {
    EXPECT_EQ(step[i], static_cast<std::int64_t>(4 * i));
    EXPECT_EQ(last[i], step[i] + 3);
    EXPECT_EQ(total[i], 4000);
  }
  EXPECT_EQ(house.Ask({.tensor = 0, .from = 7, .to = 9}).Get<std::int64_t>("step"),
            (std::vector<std::int64_t>{7, 8, 9}));
}

TEST(Histograms, AreMadeOfRawValuesWhereNoneWereRecorded) {
  House house;
  for (int i = 0; i < 10; ++i) {
    if (i % 2 == 0) house.writing.AddValue(1, Ramp(0, 2, 1000));
    house.writing.Step();
  }
  const PayloadReader answer = house.Ask({.tensor = 1});
  EXPECT_EQ(answer.Text("source"), "raw");
  EXPECT_EQ(answer.Get<std::int64_t>("step"), (std::vector<std::int64_t>{0, 2, 4, 6, 8}));
  EXPECT_EQ(answer.Get<double>("total")[0], 1000);
  EXPECT_EQ(house.Ask({.tensor = 1, .points = 2}).Get<std::int64_t>("step"),
            (std::vector<std::int64_t>{0, 8}));
  const PayloadReader none = house.Ask({.tensor = 0});
  EXPECT_EQ(none.Text("source"), "none");
  EXPECT_TRUE(none.Get<double>("edges").empty());
}

TEST(SharedBins, ShowBothTailsOnALogarithmicScaleWhateverARunHolds) {
  const SparseHistogram spread = HistogramOf({-1e6F, -1, -1e-9F, 0, 1e-30F, 1e-3F, 1, 1e6F});
  const SparseHistogram strange = {{0x7f8, 1}, {0x7ff, 1}, {0xfff, ~0ULL}};
  for (const SparseHistogram& one : {spread, strange, SparseHistogram{{0, 5}}, SparseHistogram{{0x801, 5}}}) {
    const SparseHistogram* const all[] = {&one};
    for (const std::size_t count : {1UL, 7UL, 128UL}) {
      const SharedBins bins(all, count, true);
      ASSERT_LE(bins.count(), count);
      ASSERT_GE(bins.count(), 1U);
      EXPECT_TRUE(std::ranges::is_sorted(bins.edges()));
      double sum = 0, whole = 0;
      for (const double value : bins.Counts(one)) sum += value;
      for (const HistogramBin& bin : one) whole += static_cast<double>(bin.count);
      EXPECT_EQ(sum, whole);
    }
  }
  const SharedBins none({}, 128, true);
  EXPECT_EQ(none.count(), 0U);
  EXPECT_TRUE(none.Counts(spread).empty());
}

TEST(MergeHistogram, AddsCounts) {
  SparseHistogram all = {{1, 2}, {5, 1}};
  MergeHistogram({{0, 1}, {5, 4}, {9, 9}}, &all);
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].bin, 0);
  EXPECT_EQ(all[2].count, 5U);
  EXPECT_EQ(all[3].bin, 9);
}

}  // namespace
}  // namespace luff::server::histograms_api_test

// The bytes of a heat map equal a scan of the run in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "query/testing.h"
#include "server/heat_map.h"

namespace luff::server::heat_map_test {
namespace {

using query::Mode;
using query::testing::TempRun;
using query::testing::Writing;

constexpr query::TensorId kTensors = 5;

bool Has(query::TensorId id, std::int64_t step) { return id != 1 || (step > 40 && step % 3 != 0); }

float ValueAt(query::TensorId id, std::int64_t step) {
  if (id == 2 && step == 77) return std::numeric_limits<float>::infinity();
  if (id == 3) return 0;
  return 1.0F + static_cast<float>((step * 37 + id * 11) % 101) * (step % 50 == 0 ? 30.0F : 0.01F);
}

void Write(Writing* w, int count) {
  for (int i = 0; i < count; ++i) {
    const std::int64_t step = w->global_step;
    for (query::TensorId id = 0; id < kTensors; ++id) {
      const float values[] = {ValueAt(id, step), 0};
      if (Has(id, step)) w->AddSummary(id, values);
    }
    w->Step(step % 10 == 9 ? format::Mode::kEval : format::Mode::kTrain);
  }
}

/// The byte that docs/spec/http-api.md, section 5, gives a cell of the finest level.
std::map<std::pair<query::TensorId, std::size_t>, int> Scan(std::int64_t steps, std::int64_t bucket) {
  std::map<std::pair<query::TensorId, std::size_t>, int> bytes;
  for (query::TensorId id = 0; id < kTensors; ++id) {
    struct Cell {
      double lo = HUGE_VAL, hi = -HUGE_VAL;
      bool bad = false;
    };
    std::map<std::size_t, Cell> cells;
    for (std::int64_t step = 0; step < steps; ++step) {
      if (step % 10 == 9 || !Has(id, step)) continue;
      Cell& cell = cells[static_cast<std::size_t>(step / bucket)];
      const double value = std::fabs(static_cast<double>(ValueAt(id, step)));
      if (std::isinf(value)) {
        cell.bad = true;  // the other element is finite: a norm of 0
        cell.lo = std::min(cell.lo, 0.0);
        cell.hi = std::max(cell.hi, 0.0);
      } else {
        cell.lo = std::min(cell.lo, value);
        cell.hi = std::max(cell.hi, value);
      }
    }
    std::vector<float> middles;
    for (const auto& [column, cell] : cells)
      middles.push_back((static_cast<float>(cell.lo) + static_cast<float>(cell.hi)) / 2);
    std::sort(middles.begin(), middles.end());
    const double median = middles.empty() ? 0 : static_cast<double>(middles[middles.size() / 2]);
    for (const auto& [column, cell] : cells) {
      double far = 0;
      for (const double value : {cell.lo, cell.hi}) {
        const double log = std::log10(value / median);
        double d = median == 0  ? (value == 0 ? 0 : 1)
                   : value == 0 ? -1
                                : std::sqrt(std::min(std::fabs(log) / 4, 1.0));
        if (median != 0 && value != 0 && log < 0) d = -d;
        if (std::fabs(d) > std::fabs(far)) far = d;
      }
      bytes[{id, column}] = cell.bad ? 254 : static_cast<int>(std::lround(126 + 126 * far));
    }
  }
  return bytes;
}

void ExpectScan(HeatMap& map, std::int64_t steps) {
  const auto levels = map.Levels();
  ASSERT_FALSE(levels.empty());
  const std::int64_t bucket = levels[0].bucket_steps;
  const auto expected = Scan(steps, bucket);
  for (std::size_t x = 0; x * HeatMap::kTile < levels[0].columns; ++x) {
    const std::string tile = map.Tile(0, x, 0);
    for (std::size_t row = 0; row < HeatMap::kTile; ++row) {
      for (std::size_t column = 0; column < HeatMap::kTile; ++column) {
        const auto at = expected.find({row, x * HeatMap::kTile + column});
        const int byte = static_cast<unsigned char>(tile[row * HeatMap::kTile + column]);
        int wanted = at == expected.end() ? 255 : at->second;
        const auto last = static_cast<std::int64_t>(x * HeatMap::kTile + column);
        // Every tenth step is one of EVAL; a column of such steps alone repeats the one before it.
        if (bucket == 1 && last % 10 == 9 && last < steps && column > 0)
          wanted = static_cast<unsigned char>(tile[row * HeatMap::kTile + column - 1]);
        ASSERT_LE(std::abs(byte - wanted),
                  wanted < 253 ? 1 : 0)  // float32 against float64 at a rounding edge
            << "tensor " << row << " column " << x * HeatMap::kTile + column;
      }
    }
  }
}

TEST(HeatMap, IsTheSameInWhateverPartsItIsRead) {
  const TempRun run;
  Writing w(run.path(), 0, 1, false, true, 64 << 10);
  for (query::TensorId id = 0; id < kTensors; ++id) w.Define(id, "t" + std::to_string(id), 2);
  Write(&w, 700);
  auto trial = query::Trial::Open(run.path());
  ASSERT_TRUE(trial.ok()) << trial.status().ToString();
  Overview growing(Mode::kTrain);
  std::int64_t steps = 700;
  for (const std::size_t part : {64, 1, 1000, 7, 300}) {
    const auto read = growing.Read(**trial, part);
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    Write(&w, 500);
    steps += 500;
    ASSERT_TRUE((*trial)->Refresh().ok());
  }
  while (!growing.Covers(**trial)) ASSERT_TRUE(growing.Read(**trial, 97).ok());
  HeatMap map(&growing, *FindStatistic("l2"));
  EXPECT_EQ(map.Levels()[0].bucket_steps, 2);  // 3,200 steps in at most 2,048 columns
  ExpectScan(map, steps);

  Overview whole(Mode::kTrain);
  ASSERT_TRUE(*whole.Read(**trial, 1'000'000));
  for (const NamedStatistic& statistic : kStatistics) {
    if (!statistic.heat()) continue;
    HeatMap one(&whole, statistic);
    HeatMap other(&growing, statistic);
    for (std::size_t level = 0; level < one.Levels().size(); ++level)
      EXPECT_EQ(one.Tile(level, 0, 0), other.Tile(level, 0, 0)) << statistic.name;
    EXPECT_EQ(one.Levels().back().bucket_steps, 16);  // 200 columns: one tile
  }
}

TEST(HeatMap, StepsOfOtherModesAreNoGaps) {
  const TempRun run;
  Writing w(run.path(), 0, 1);
  for (query::TensorId id = 0; id < kTensors; ++id) w.Define(id, "t" + std::to_string(id), 2);
  Write(&w, 200);
  const auto trial = query::Trial::Open(run.path());
  ASSERT_TRUE(trial.ok());
  Overview overview(Mode::kTrain);
  HeatMap map(&overview, *FindStatistic("l2"));
  ASSERT_TRUE(*overview.Read(**trial, 1000));
  ExpectScan(map, 200);
}

TEST(HeatMap, SaysWhatWasNotReadYet) {
  const TempRun run;
  Writing w(run.path(), 0, 1);
  for (query::TensorId id = 0; id < kTensors; ++id) w.Define(id, "t" + std::to_string(id), 2);
  Write(&w, 200);
  auto trial = query::Trial::Open(run.path());
  ASSERT_TRUE(trial.ok());
  Overview overview(Mode::kTrain);
  HeatMap map(&overview, *FindStatistic("zero_share"));
  const auto read = overview.Read(**trial, 50);  // the newest
  ASSERT_TRUE(read.ok());
  EXPECT_FALSE(*read);
  const std::string first = map.Tile(0, 0, 0);
  EXPECT_EQ(static_cast<unsigned char>(first[10]), 253);
  EXPECT_EQ(static_cast<unsigned char>(first[160]), 126);  // one of two elements is 0: a share
  EXPECT_EQ(static_cast<unsigned char>(first[250]), 255);
  const std::uint64_t before = map.version();
  while (!overview.Covers(**trial)) ASSERT_TRUE(overview.Read(**trial, 50).ok());
  EXPECT_GT(map.version(), before);
  EXPECT_EQ(static_cast<unsigned char>(map.Tile(0, 0, 0)[10]), 126);
}

TEST(HeatMap, OfARunWithoutStepsIsEmpty) {
  const TempRun run;
  Writing w(run.path(), 0, 1);
  const auto trial = query::Trial::Open(run.path());
  ASSERT_TRUE(trial.ok());
  Overview overview(Mode::kTrain);
  HeatMap map(&overview, *FindStatistic("l2"));
  ASSERT_TRUE(*overview.Read(**trial, 10));
  EXPECT_TRUE(map.Levels().empty());
  EXPECT_EQ(map.Tile(0, 0, 0), std::string(HeatMap::kTile * HeatMap::kTile, '\xff'));
}

TEST(HeatMap, MeansAreShownByTheirDistanceFromTheMedian) {
  const TempRun run;
  Writing w(run.path(), 0, 1);
  w.Define(0, "t", 2);
  for (int step = 0; step < 11; ++step) {  // means -5 to 5
    const float values[] = {static_cast<float>(step - 5), static_cast<float>(step - 5)};
    w.AddSummary(0, values);
    w.Step();
  }
  const auto trial = query::Trial::Open(run.path());
  ASSERT_TRUE(trial.ok());
  Overview overview(Mode::kTrain);
  ASSERT_TRUE(*overview.Read(**trial, 100));
  const std::string tile = HeatMap(&overview, *FindStatistic("mean")).Tile(0, 0, 0);
  EXPECT_EQ(static_cast<unsigned char>(tile[0]), 0);
  EXPECT_EQ(static_cast<unsigned char>(tile[5]), 126);
  EXPECT_EQ(static_cast<unsigned char>(tile[6]), 151);  // a fifth of the reach
  EXPECT_EQ(static_cast<unsigned char>(tile[10]), 252);
}

TEST(HeatMap, SharesOfWhatIsNotFiniteAreNeverRoundedToNone) {
  const TempRun run;
  Writing w(run.path(), 0, 1);
  w.Define(0, "t", 2000);
  std::vector<float> values(2000, 1.0F);
  w.AddSummary(0, values);
  w.Step();
  values[7] = std::numeric_limits<float>::quiet_NaN();
  w.AddSummary(0, values);
  w.Step();
  const auto trial = query::Trial::Open(run.path());
  ASSERT_TRUE(trial.ok());
  Overview overview(Mode::kTrain);
  ASSERT_TRUE(*overview.Read(**trial, 100));
  const std::string tile = HeatMap(&overview, *FindStatistic("nonfinite")).Tile(0, 0, 0);
  EXPECT_EQ(static_cast<unsigned char>(tile[0]), 0);
  EXPECT_EQ(static_cast<unsigned char>(tile[1]), 1);
  EXPECT_EQ(static_cast<unsigned char>(HeatMap(&overview, *FindStatistic("zero_share")).Tile(0, 0, 0)[1]),
            254);
}

}  // namespace
}  // namespace luff::server::heat_map_test

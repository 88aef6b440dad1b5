// An overview equals a scan of the run in float64, in whichever order and parts it was read, cut, kept,
// resumed and joined, while the run grows.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "base/test_effort.h"
#include "query/testing.h"
#include "query/testing/smdebug_writer.h"
#include "server/overview.h"
#include "server/overview_cache.h"

namespace luff::server::overview_test {
namespace {

using query::Mode;
using query::Trial;
using query::testing::TempRun;
using query::testing::Writing;

constexpr query::TensorId kTensors = 6;

/// A step of a run whose values, gaps, modes and differences are random.
void WriteStep(Writing* w, std::mt19937* random) {
  const auto below = [&](unsigned count) { return (*random)() % count; };
  const bool eval = below(7) == 0;
  for (query::TensorId id = 0; id < kTensors; ++id) {
    if (below(5) == 0) continue;
    float values[4];
    for (float& value : values)
      value = std::ldexp(static_cast<float>(below(2000)) - 1000.0F, static_cast<int>(below(40)) - 20);
    if (below(30) == 0) values[1] = std::numeric_limits<float>::quiet_NaN();
    if (below(60) == 0) std::fill_n(values, 4, std::numeric_limits<float>::infinity());
    w->AddSummary(id, values);
    if (below(9) == 0) w->batch.summaries.back().steps = 3;
    if (below(3) == 0) {
      format::FormRow row{};
      row.tensor = id;
      row.form = static_cast<std::uint16_t>(format::Form::kDifference);
      row.values[1] = static_cast<double>(below(100));
      row.values[5] = below(4) == 0 ? 0.0 : static_cast<double>(1 + below(100));
      w->batch.forms.push_back(row);
    }
  }
  w->Step(eval ? format::Mode::kEval : format::Mode::kTrain);
}

using Values = std::array<double, kOverviewStatistics>;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

Values ValuesOf(const Summary& s, DType dtype) {
  const auto count = static_cast<double>(s.count);
  Values values;
  values.fill(kNone);
  values[5] = static_cast<double>(s.zero_count) / count;
  values[6] = static_cast<double>(s.nan_count + s.inf_count) / count;
  if (s.finite_count() == 0) return values;
  values[0] = s.l2();
  values[1] = s.mean();
  values[2] = s.std();
  values[3] = s.abs_mean();
  values[4] = s.abs_max(dtype);
  return values;
}

/// Compares every cell with what the run's own rows say, step by step.
void ExpectScan(const Overview& overview, const Trial& trial) {
  struct Cell {
    Values lo, hi;
    std::uint8_t flags = 0;
  };
  std::map<std::pair<query::TensorId, std::size_t>, Cell> cells;
  std::vector<bool> stepped(overview.used(), false);
  const auto cell = [&](query::TensorId id, std::int64_t step) -> Cell& {
    const auto [at, added] = cells.try_emplace({id, static_cast<std::size_t>(step >> overview.bits())});
    if (added) {
      at->second.lo.fill(kNone);
      at->second.hi.fill(kNone);
    }
    return at->second;
  };
  const auto add = [](Cell* to, std::size_t place, double value) {
    to->lo[place] = std::fmin(to->lo[place], value);
    to->hi[place] = std::fmax(to->hi[place], value);
  };
  Trial::StepRows rows;
  for (std::size_t n = 0; n < trial.step_count(); ++n) {
    const query::StepInfo info = trial.step_at(n);
    if (info.superseded || info.mode != overview.mode()) continue;
    stepped[static_cast<std::size_t>(info.global_step >> overview.bits())] = true;
    ASSERT_TRUE(trial.ReadStepRows(n, &rows).ok());
    for (const auto& entry : rows.summaries) {
      Cell& at = cell(entry.tensor, info.global_step);
      at.flags |= Overview::kRecorded;
      if (entry.summary.nan_count + entry.summary.inf_count != 0) at.flags |= Overview::kNotFinite;
      const auto merged = trial.ReadSummaryAt(entry.tensor, info.global_step, Mode::kGlobal);
      ASSERT_TRUE(merged.ok());
      if (merged->merged_steps > 1) at.flags |= Overview::kMerged;
      const Values values = ValuesOf(entry.summary, entry.dtype);
      for (std::size_t place = 0; place < 7; ++place) add(&at, place, values[place]);
    }
    for (const auto& entry : rows.forms) {
      const double ratio = std::sqrt(entry.row.values[1]) / std::sqrt(entry.row.values[5]);
      if (std::isfinite(ratio)) add(&cell(entry.tensor, info.global_step), 7, ratio);
    }
  }
  for (std::size_t column = 0; column < overview.used(); ++column) {
    ASSERT_EQ(overview.stepped(column), static_cast<bool>(stepped[column])) << column;
    for (std::size_t place = 0; place < kOverviewStatistics; ++place) {
      const Overview::Cells of = overview.At(column, place);
      for (query::TensorId id = 0; id < kTensors; ++id) {
        const auto at = cells.find({id, column});
        const bool there = at != cells.end();
        ASSERT_EQ(of.flags.empty() ? 0 : of.flags[id], there ? at->second.flags : 0) << id << " " << column;
        const double lo = there ? at->second.lo[place] : kNone;
        if (std::isnan(lo)) {
          if (!of.lo.empty()) {
            ASSERT_GT(of.lo[id], of.hi[id]) << place << " " << id << " " << column;
          }
          continue;
        }
        const double hi = at->second.hi[place];
        const double slack =
            2e-7 * (std::fabs(lo) + std::fabs(hi)) + (place == 2 ? 1e-7 * at->second.hi[4] : 0);
        ASSERT_NEAR(static_cast<double>(of.lo[id]), lo, slack) << place << " " << id << " " << column;
        ASSERT_NEAR(static_cast<double>(of.hi[id]), hi, slack) << place << " " << id << " " << column;
      }
    }
  }
}

void ExpectSame(const Overview& one, const Overview& other) {
  ASSERT_EQ(one.used(), other.used());
  ASSERT_EQ(one.bits(), other.bits());
  ASSERT_EQ(one.tensors(), other.tensors());
  for (std::size_t column = 0; column < one.used(); ++column) {
    ASSERT_EQ(one.stepped(column), other.stepped(column));
    for (std::size_t place = 0; place < kOverviewStatistics; ++place) {
      const auto a = one.At(column, place);
      const auto b = other.At(column, place);
      ASSERT_EQ(a.lo.size(), b.lo.size()) << column;
      if (a.lo.empty()) continue;
      ASSERT_EQ(std::memcmp(a.lo.data(), b.lo.data(), a.lo.size_bytes()), 0) << column << " " << place;
      ASSERT_EQ(std::memcmp(a.hi.data(), b.hi.data(), a.hi.size_bytes()), 0) << column << " " << place;
      ASSERT_EQ(std::memcmp(a.flags.data(), b.flags.data(), a.flags.size()), 0) << column;
    }
  }
}

TEST(Overview, EqualsAScanWhateverTheOrderOfItsWork) {
  const int cases = FewerCases() ? 3 : 12;
  for (int seed = 0; seed < cases; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto below = [&](std::size_t count) { return random() % count; };
    const TempRun run;
    const OverviewCache cache(run.path() + "-cache", std::uint64_t{1} << 30);
    auto w = std::make_unique<Writing>(run.path(), 0, 1, false, true, 64 << 10);
    for (query::TensorId id = 0; id < kTensors; ++id) w->Define(id, "t" + std::to_string(id), 4);
    for (int i = 0; i < 50; ++i) WriteStep(w.get(), &random);
    auto trial = Trial::Open(run.path());
    ASSERT_TRUE(trial.ok()) << trial.status().ToString();
    auto overview = std::make_unique<Overview>(Mode::kTrain);
    for (int i = 0; i < 60; ++i) {
      switch (below(6)) {
        case 0:
        case 1: {
          for (std::size_t count = below(200); count > 0; --count) WriteStep(w.get(), &random);
          ASSERT_TRUE((*trial)->Refresh().ok());
          break;
        }
        case 2:  // another process goes on with what this one has kept
          cache.Save("id", **trial, overview.get());
          trial = Trial::Open(run.path());
          ASSERT_TRUE(trial.ok());
          overview = std::make_unique<Overview>(Mode::kTrain);
          cache.Load("id", **trial, overview.get());
          break;
        case 3:
          if (below(4) == 0) {  // the job goes on from an earlier step
            w->Close();
            const std::int64_t step =
                std::max<std::int64_t>(w->global_step - static_cast<std::int64_t>(below(30)), 0);
            w = std::make_unique<Writing>(run.path(), 0, 1, true, true, 64 << 10);
            for (query::TensorId id = 0; id < kTensors; ++id) w->Define(id, "t" + std::to_string(id), 4);
            w->global_step = step;
            w->mode_steps[1] = w->mode_steps[2] = step;
            WriteStep(w.get(), &random);
            ASSERT_TRUE((*trial)->RefreshAll().ok());
          }
          break;
        default: ASSERT_TRUE(overview->Read(**trial, 1 + below(150)).ok());
      }
    }
    while (!overview->Covers(**trial)) ASSERT_TRUE(overview->Read(**trial, 1 + below(500)).ok());
    ExpectScan(*overview, **trial);
    Overview whole(Mode::kTrain);
    ASSERT_TRUE(*whole.Read(**trial, 1'000'000));
    ExpectSame(whole, *overview);
    Overview evaluations(Mode::kEval);
    ASSERT_TRUE(*evaluations.Read(**trial, 1'000'000));
    ExpectScan(evaluations, **trial);
  }
}

TEST(Overview, MakesRoomForTensorsThatComeLater) {
  const TempRun run;
  Writing w(run.path(), 0, 1);
  auto trial = Trial::Open(run.path());
  ASSERT_TRUE(trial.ok());
  Overview growing(Mode::kTrain);
  for (query::TensorId id = 0; id < 200; ++id) {
    w.Define(id, "t" + std::to_string(id), 1);
    for (query::TensorId one = 0; one <= id; ++one) {
      const float value[] = {static_cast<float>(one + id)};
      w.AddSummary(one, value);
    }
    w.Step();
    ASSERT_TRUE((*trial)->Refresh().ok());
    ASSERT_TRUE(growing.Read(**trial, 1000).ok());
  }
  Overview whole(Mode::kTrain);
  ASSERT_TRUE(*whole.Read(**trial, 1000));
  ExpectSame(whole, growing);
  EXPECT_EQ(whole.At(199, 0).lo[150], 349.0F);
}

// A step that has just been published is taken in whole, many tensors at a time; a segment by tensor.
TEST(Overview, OfStepsAsTheyComeEqualsThatOfTheWholeRun) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t count) { return random() % count; };
  constexpr query::TensorId kMany = 333;
  const TempRun run;
  Writing w(run.path(), 0, 1, false, true, 256 << 10);
  for (query::TensorId id = 0; id < kMany; ++id) w.Define(id, "t" + std::to_string(id), 4);
  auto trial = Trial::Open(run.path());
  ASSERT_TRUE(trial.ok());
  Overview growing(Mode::kTrain);
  for (int step = 0; step < 40; ++step) {
    std::vector<query::TensorId> ids(kMany);
    std::iota(ids.begin(), ids.end(), query::TensorId{0});
    if (step % 3 == 1) std::ranges::shuffle(ids, random);
    for (const query::TensorId id : ids) {
      if (step % 3 != 0 && below(10) == 0) continue;  // holes among neighbours
      float values[4];
      for (float& value : values) value = static_cast<float>(below(2000)) - 1000.0F;
      if (below(20) == 0) values[below(4)] = std::numeric_limits<float>::quiet_NaN();
      if (below(40) == 0) std::fill_n(values, 4, std::numeric_limits<float>::infinity());
      w.AddSummary(id, values);
      if (below(15) == 0) w.AddSummary(id, values);  // twice: the last one counts
    }
    w.Step(below(6) == 0 ? format::Mode::kEval : format::Mode::kTrain);
    ASSERT_TRUE((*trial)->Refresh().ok());
    ASSERT_TRUE(growing.Read(**trial, 1000).ok());
  }
  w.Close();
  auto again = Trial::Open(run.path());
  ASSERT_TRUE(again.ok());
  Overview whole(Mode::kTrain);
  ASSERT_TRUE(*whole.Read(**again, 1000));
  ExpectSame(whole, growing);
}

TEST(Overview, OfSmdebugsDirectories) {
  const TempRun run;
  query::testing::SmdebugWriter writer(run.path());
  writer.WriteCollections();
  for (std::int64_t step = 0; step < 20; ++step)
    writer.WriteStep(step, Mode::kTrain, step, {{"w", {static_cast<float>(step), 0.0F}, {2}}});
  writer.End();
  const auto trial = Trial::Open(run.path());
  ASSERT_TRUE(trial.ok()) << trial.status().ToString();
  Overview overview(Mode::kTrain);
  while (!overview.Covers(**trial)) ASSERT_TRUE(overview.Read(**trial, 3).ok());
  const query::TensorId id = *(*trial)->FindTensor("w");
  EXPECT_EQ(overview.At(7, 0).hi[id], 7.0F);
  EXPECT_EQ(overview.At(7, 5).hi[id], 0.5F);
}

}  // namespace
}  // namespace luff::server::overview_test

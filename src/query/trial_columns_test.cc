// Columns of summaries equal the summaries of single steps, whichever steps a tensor has, and do not change
// while the memory of other columns is reused.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "luff/query/row_visit.h"
#include "luff/query/trial.h"
#include "query/testing.h"

namespace luff::query::trial_columns_test {
namespace {

using testing::TempRun;
using testing::Writing;

constexpr int kSteps = 3000;  // columns large enough to be kept for reuse

/// Whether a tensor has a value at a step: tensors 0 and 3 at every step, 1 in a stretch, 2 at every other
/// one. Some values of 3 are NaN.
bool Has(TensorId id, std::int64_t step) {
  if (id == 1) return step >= 700 && step < 2500;
  if (id == 2) return step % 2 == 1;
  return true;
}

float ValueAt(TensorId id, std::int64_t step) {
  if (id == 3 && step % 5 == 0) return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(step) * 0.25F - static_cast<float>(id) * 100;
}

void WriteSteps(Writing& w, int count) {
  for (int i = 0; i < count; ++i) {
    for (TensorId id = 0; id < 4; ++id) {
      const float value[] = {ValueAt(id, w.global_step), ValueAt(id, w.global_step)};
      if (Has(id, w.global_step)) w.AddSummary(id, value);
    }
    w.Step(w.global_step % 7 == 3 ? format::Mode::kEval : format::Mode::kTrain);
  }
}

void ExpectSame(double one, double other) {
  EXPECT_EQ(std::bit_cast<std::uint64_t>(one), std::bit_cast<std::uint64_t>(other)) << one << " " << other;
}

void ExpectRows(const Trial& trial, TensorId id, Mode mode, const SummaryColumns& columns) {
  std::vector<std::int64_t> expected;
  for (const std::int64_t step : trial.Steps(mode)) {
    const auto info = trial.FindStep(step, mode);
    ASSERT_TRUE(info.ok());
    if (Has(id, info->global_step)) expected.push_back(info->global_step);
  }
  ASSERT_EQ(std::vector<std::int64_t>(columns.global_step.begin(), columns.global_step.end()), expected);
  for (std::size_t i = 0; i < expected.size(); i += 13) {
    const auto at = trial.ReadSummaryAt(id, expected[i], Mode::kGlobal);
    ASSERT_TRUE(at.ok()) << at.status().ToString();
    EXPECT_EQ(columns.mode_step[i], at->mode_step);
    EXPECT_EQ(columns.update[i], at->update);
    EXPECT_EQ(columns.mode[i], static_cast<std::uint8_t>(at->mode));
    EXPECT_EQ(columns.count[i], at->summary.count);
    EXPECT_EQ(columns.nan_count[i], at->summary.nan_count);
    EXPECT_EQ(columns.inf_count[i], at->summary.inf_count);
    EXPECT_EQ(columns.zero_count[i], at->summary.zero_count);
    ExpectSame(columns.sum[i], at->summary.sum);
    ExpectSame(columns.l2[i], at->summary.l2());
    if (at->summary.count == at->summary.nan_count) {
      for (const double value : {columns.min[i], columns.max[i], columns.mean[i], columns.abs_mean[i]})
        EXPECT_TRUE(std::isnan(value));
      continue;
    }
    ExpectSame(columns.mean[i], at->summary.mean());
    ExpectSame(columns.std[i], at->summary.std());
    ExpectSame(columns.abs_mean[i], at->summary.abs_mean());
    ExpectSame(columns.min[i], at->summary.min(at->dtype));
    ExpectSame(columns.max[i], at->summary.max(at->dtype));
  }
}

TEST(TrialColumnsTest, SayWhatSingleSummariesSay) {
  const TempRun run;
  Writing w(run.path(), 0, 1, false, true, 64 << 10);
  for (TensorId id = 0; id < 4; ++id) w.Define(id, "t" + std::to_string(id), 2);
  WriteSteps(w, kSteps);
  auto trial = Trial::Open(run.path());
  ASSERT_TRUE(trial.ok()) << trial.status().ToString();
  for (const bool ended : {false, true}) {
    for (TensorId id = 0; id < 4; ++id) {
      for (const Mode mode : {Mode::kGlobal, Mode::kTrain, Mode::kEval}) {
        const auto columns = (*trial)->SharedSummaries(id, mode);
        ASSERT_TRUE(columns.ok()) << columns.status().ToString();
        ExpectRows(**trial, id, mode, **columns);
      }
    }
    if (ended) break;
    WriteSteps(w, kSteps / 2);
    w.Close();
    ASSERT_TRUE((*trial)->Refresh().ok());
  }
}

// Who reads each step as it comes gets all of it at once, also where the step filled the segment and was
// published with its footer; and that is what the footer holds.
TEST(TrialColumnsTest, EachStepIsVisitedAsItWasPublished) {
  const TempRun run;
  Writing w(run.path(), 0, 1, false, true, 4 << 10);
  for (TensorId id = 0; id < 4; ++id) w.Define(3 - id, "t" + std::to_string(id), 2);
  WriteSteps(w, 1);
  const auto trial = Trial::Open(run.path());
  ASSERT_TRUE(trial.ok()) << trial.status().ToString();
  std::vector<std::map<TensorId, double>> seen;
  for (std::size_t n = 0; n < 200; ++n) {
    std::map<TensorId, double>& sums = seen.emplace_back();
    const auto whole = [&](const PublishedSummaries& step) {
      EXPECT_EQ(step.n, n);
      EXPECT_EQ(step.worker, 0U);
      for (const std::uint32_t row : step.counting) sums[step.tensors[step.slot[row]]] = step.rows[row].sum;
    };
    const auto piece = [&](const SummaryStretch&) { ADD_FAILURE() << "step " << n << " came in pieces"; };
    const Status status = VisitRows(**trial, n, n + 1, piece, {}, whole);
    ASSERT_TRUE(status.ok()) << status.ToString();
    TrialRows::StepRows rows;
    ASSERT_TRUE((*trial)->ReadStepRows(n, &rows).ok());
    EXPECT_EQ(rows.summaries.size(), sums.size());
    ASSERT_TRUE((*trial)->ReadStepRows(n / 2, &rows).ok());  // sealed by now
    WriteSteps(w, 1);
    ASSERT_TRUE((*trial)->Refresh().ok());
  }
  w.Close();
  const auto later = Trial::Open(run.path());
  ASSERT_TRUE(later.ok());
  for (std::size_t n = 0; n < seen.size(); ++n) {
    TrialRows::StepRows rows;
    ASSERT_TRUE((*later)->ReadStepRows(n, &rows).ok());
    ASSERT_EQ(rows.summaries.size(), seen[n].size()) << n;
    for (const auto& entry : rows.summaries) ExpectSame(entry.summary.sum, seen[n].at(entry.tensor));
  }
}

// All rows of a stretch of steps, read as they lie, are those that single steps have.
TEST(TrialColumnsTest, VisitsShowWhatStepsHold) {
  const TempRun run;
  Writing w(run.path(), 0, 1, false, true, 64 << 10);
  for (TensorId id = 0; id < 4; ++id) w.Define(id, "t" + std::to_string(id), 2);
  WriteSteps(w, kSteps);
  const auto trial = Trial::Open(run.path());
  ASSERT_TRUE(trial.ok()) << trial.status().ToString();
  for (const auto& [from, to] :
       {std::pair<std::size_t, std::size_t>{0, 5000}, {17, 18}, {900, 1900}, {5, 5}}) {
    std::map<std::pair<std::size_t, TensorId>, std::pair<double, std::uint64_t>> visited;
    const auto take = [&](const SummaryStretch& s) {
      for (std::size_t i = 0; i < s.count.size(); ++i) {
        EXPECT_TRUE(visited.try_emplace({s.first + i, s.tensor}, s.sum[i], s.nan_count[i]).second);
        EXPECT_EQ(s.worker, 0U);
        EXPECT_EQ(s.merged_steps[i], 1);
      }
    };
    const Status status =
        VisitRows(**trial, from, to, take, [](TensorId, std::size_t, const format::FormRow&) {});
    ASSERT_TRUE(status.ok()) << status.ToString();
    std::size_t expected = 0;
    TrialRows::StepRows rows;
    for (std::size_t n = from; n < std::min(to, (*trial)->step_count()); ++n) {
      ASSERT_TRUE((*trial)->ReadStepRows(n, &rows).ok());
      for (const auto& entry : rows.summaries) {
        const auto at = visited.find({n, entry.tensor});
        ASSERT_NE(at, visited.end()) << n << " " << entry.tensor;
        EXPECT_EQ(at->second, std::pair(entry.summary.sum, entry.summary.nan_count));
        ++expected;
      }
    }
    EXPECT_EQ(visited.size(), expected);
  }
}

/// Sums by step and tensor, as three ways of reading show them.
using Sums = std::map<std::pair<std::size_t, TensorId>, double>;

Sums Visited(const Trial& trial) {
  Sums sums;
  const Status status = VisitRows(trial, 0, trial.step_count(), [&](const SummaryStretch& s) {
    for (std::size_t i = 0; i < s.sum.size(); ++i)
      EXPECT_TRUE(sums.try_emplace({s.first + i, s.tensor}, s.sum[i]).second);
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return sums;
}
Sums OfSteps(const Trial& trial) {
  Sums sums;
  TrialRows::StepRows rows;
  for (std::size_t n = 0; n < trial.step_count(); ++n) {
    EXPECT_TRUE(trial.ReadStepRows(n, &rows).ok());
    for (const auto& entry : rows.summaries)
      EXPECT_TRUE(sums.try_emplace({n, entry.tensor}, entry.summary.sum).second);
  }
  return sums;
}
Sums OfTensors(const Trial& trial) {
  Sums sums;
  for (TensorId id = 0; id < trial.tensor_count(); ++id) {
    const auto columns = trial.Summaries(id, Mode::kGlobal);
    EXPECT_TRUE(columns.ok()) << columns.status().ToString();
    for (std::size_t i = 0; i < columns->sum.size(); ++i)
      sums[{static_cast<std::size_t>(columns->global_step[i]), id}] = columns->sum[i];
  }
  return sums;
}

// Steps differ in their tensors and in the order of these, and a tensor may come twice: the last one counts.
TEST(TrialColumnsTest, StepsAndTensorsAgreeWhileASegmentGrowsAndOnceItIsSealed) {
  const TempRun run;
  Writing w(run.path(), 0, 1);
  constexpr TensorId kTensors = 400;  // footers larger than what is read at once
  for (TensorId id = 0; id < kTensors; ++id) w.Define(id, "t" + std::to_string(id), 1);
  auto trial = Trial::Open(run.path());
  ASSERT_TRUE(trial.ok()) << trial.status().ToString();
  Sums expected;
  for (std::size_t step = 0; step < 60; ++step) {
    for (TensorId i = 0; i < kTensors; i += step % 10 == 0 ? 1 : 3) {
      const TensorId id = step % 7 == 0 ? kTensors - 1 - i : i;
      for (int time = 0; time < (id % 50 == 0 ? 2 : 1); ++time) {
        const float value[] = {static_cast<float>(step * 1000 + id) + static_cast<float>(time) / 2};
        w.AddSummary(id, value);
        expected[{step, id}] = static_cast<double>(value[0]);
      }
    }
    w.Step();
    if (step % 9 != 0) continue;
    ASSERT_TRUE((*trial)->Refresh().ok());
    EXPECT_EQ(Visited(**trial), expected);
    EXPECT_EQ(OfSteps(**trial), expected);
    EXPECT_EQ(OfTensors(**trial), expected);
  }
  w.Close();
  ASSERT_TRUE((*trial)->RefreshAll().ok());
  EXPECT_EQ(Visited(**trial), expected);
  EXPECT_EQ(OfSteps(**trial), expected);
  EXPECT_EQ(OfTensors(**trial), expected);
}

TEST(TrialColumnsTest, StayWhileTheirMemoryCouldBeUsedAgain) {
  const TempRun run;
  Writing w(run.path(), 0, 1);
  for (TensorId id = 0; id < 4; ++id) w.Define(id, "t" + std::to_string(id), 2);
  WriteSteps(w, kSteps);
  auto trial = Trial::Open(run.path());
  ASSERT_TRUE(trial.ok()) << trial.status().ToString();
  const SummaryColumns kept = *(*trial)->Summaries(0, Mode::kGlobal);
  const std::vector<double> means(kept.mean.begin(), kept.mean.end());
  const std::vector<std::int64_t> steps(kept.global_step.begin(), kept.global_step.end());
  for (int round = 0; round < 4; ++round) {  // each invalidates the cached columns and frees their memory
    WriteSteps(w, 10);
    ASSERT_TRUE((*trial)->Refresh().ok());
    for (TensorId id = 0; id < 4; ++id) ASSERT_TRUE((*trial)->SharedSummaries(id, Mode::kGlobal).ok());
  }
  w.Close();
  trial->reset();
  EXPECT_EQ(std::vector<double>(kept.mean.begin(), kept.mean.end()), means);
  EXPECT_EQ(std::vector<std::int64_t>(kept.global_step.begin(), kept.global_step.end()), steps);
}

}  // namespace
}  // namespace luff::query::trial_columns_test

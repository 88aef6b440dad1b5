// Trials of runs with a history: values that retention deleted or moved, merged summaries, two workers, a
// resumed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <numeric>

#include "luff/format/frames.h"
#include "luff/query/trial.h"
#include "query/testing.h"

namespace luff::query::history_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempRun;
using testing::Writing;

constexpr Mode kGlobal = Mode::kGlobal;

std::unique_ptr<Trial> Open(const TempRun& run) {
  auto trial = Trial::Open(run.path());
  EXPECT_TRUE(trial.ok()) << trial.status().ToString();
  return std::move(trial).value();
}

std::vector<float> Floats(std::span<const std::byte> bytes) {
  std::vector<float> result(bytes.size() / sizeof(float));
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

std::vector<float> Some(float x) { return {x, x + 1, x + 2, x + 3}; }

store::Retention Last(std::int64_t steps) {
  store::Retention retention;
  retention.kind = store::Retention::Kind::kLast;
  retention.last_steps = steps;
  return retention;
}

bool HasGap(const Trial& trial, const std::string& reason) {
  const auto gaps = trial.Gaps();
  return std::any_of(gaps.begin(), gaps.end(), [&](const GapInfo& gap) { return gap.reason == reason; });
}

TEST(HistoryTest, ADeletedValueIsToldAndItsSummaryRemains) {
  TempRun run;
  Writing w(run.path(), 0, 1);
  w.Define(0, "x", 4);
  for (int step = 0; step < 60; ++step) {
    w.AddSummary(0, Some(static_cast<float>(step)));
    w.AddValue(0, Some(static_cast<float>(step)), 1, false, Last(8));
    w.Step();
  }
  w.Close();
  const auto trial = Open(run);
  const auto deleted = trial->ReadValue(0, 0, kGlobal);
  EXPECT_EQ(deleted.status().code(), StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(deleted.status().message()),
              HasSubstr("deleted by retention, its summary remains"));
  EXPECT_EQ(trial->ReadSummary(0, 0, kGlobal)->mean(), 1.5);
  EXPECT_EQ(trial->Summaries(0, kGlobal)->count.size(), 60U);
  EXPECT_TRUE(HasGap(*trial, "retired"));

  // Reading all values returns those that still exist.
  const auto there = trial->ValueSteps(0, kGlobal);
  ASSERT_TRUE(there.ok());
  EXPECT_GE(there->size(), 8U);
  EXPECT_LT(there->size(), 20U);
  EXPECT_EQ(there->back(), 59);
  for (const std::int64_t step : *there) {
    const auto value = trial->ReadValue(0, step, kGlobal);
    ASSERT_TRUE(value.ok()) << value.status().ToString();
    EXPECT_EQ(Floats(value->bytes), Some(static_cast<float>(step)));
  }
  const auto stack = trial->ReadStack(0, kGlobal, {}, 1 << 20);
  ASSERT_TRUE(stack.ok()) << stack.status().ToString();
  EXPECT_EQ(stack->steps, *there);
  EXPECT_EQ(trial->TensorSteps(0, kGlobal)->size(), 60U);
}

TEST(HistoryTest, AValueIsFoundWhereItWasMovedTo) {
  TempRun run;
  Writing w(run.path(), 0, 1);
  w.Define(0, "frozen", 4);
  w.Define(1, "x", 4);
  w.AddValue(0, Some(100), 1, false, Last(8));
  const format::IndexRow first = w.batch.index[0];
  format::IndexRow row = first;
  for (int step = 0; step < 60; ++step) {
    if (step > 0) {
      const store::Place place = w.writer().Resolve({row.data_file, row.offset});
      ASSERT_TRUE(w.writer().ChunkIsKept(place)) << step;
      row.data_file = place.data_file;
      row.offset = place.offset;
      row.flags = format::kIndexUnchanged;
      w.batch.index.push_back(row);
    }
    w.AddValue(1, Some(static_cast<float>(step)), 1, false, Last(8));
    w.batch.index_retention.assign(w.batch.index.size(), Last(8));
    w.Step();
  }
  ASSERT_NE(row.data_file, first.data_file) << "nothing was moved";
  w.Close();
  const auto trial = Open(run);
  for (const std::int64_t step : {52, 55, 59}) {
    const auto value = trial->ReadValue(0, step, kGlobal);
    ASSERT_TRUE(value.ok()) << value.status().ToString();
    EXPECT_EQ(Floats(value->bytes), Some(100));
  }
  EXPECT_THAT(trial->Problems(), ElementsAre());
}

TEST(HistoryTest, ATrialThatStaysOpenHearsThatHistogramsWereMergedAway) {
  TempRun run;
  Writing w(run.path(), 0, 1, false, true, 16 << 10, 96 << 10);
  w.Define(0, "x", 4);
  std::unique_ptr<Trial> trial;
  for (int step = 0; step < 3000; ++step) {
    w.AddSummary(0, Some(static_cast<float>(step)));
    w.batch.histograms.emplace_back(0, SparseHistogram{{.bin = 1, .count = 4}});
    w.Step();
    if (step == 20) trial = Open(run);  // histograms of the first segment are read, nothing is merged yet
    if (trial != nullptr && step % 100 == 0) {
      ASSERT_TRUE(trial->Refresh().ok());
    }
  }
  EXPECT_TRUE(HasGap(*trial, "merged"));
}

TEST(HistoryTest, MergedSummariesCountAllElementsOfTheirSteps) {
  constexpr int kSteps = 3000;
  TempRun run;
  Writing w(run.path(), 0, 1, false, true, 16 << 10, 96 << 10);
  w.Define(0, "x", 4);
  w.Define(1, "loss", 1, format::Role::kLoss);
  for (int step = 0; step < kSteps; ++step) {
    w.AddSummary(0, Some(static_cast<float>(step)));
    w.AddScalar(1, step);
    w.Step();
  }
  w.Close();
  const auto trial = Open(run);
  EXPECT_TRUE(HasGap(*trial, "merged"));
  EXPECT_EQ(trial->step_count(), std::size_t{kSteps});
  EXPECT_EQ(trial->Scalars(1, kGlobal)->size(), std::size_t{kSteps}) << "scalars are never merged";
  const auto columns = trial->Summaries(0, kGlobal);
  ASSERT_TRUE(columns.ok());
  EXPECT_LT(columns->count.size(), std::size_t{kSteps} / 2);
  EXPECT_EQ(std::accumulate(columns->count.begin(), columns->count.end(), std::uint64_t{0}), 4U * kSteps);
  EXPECT_EQ(columns->min.front(), 0);
  EXPECT_EQ(columns->max.back(), kSteps + 2);
  EXPECT_TRUE(std::is_sorted(columns->global_step.begin(), columns->global_step.end()));
  const auto merged = trial->ReadSummaryAt(0, columns->global_step.front(), kGlobal);
  ASSERT_TRUE(merged.ok()) << merged.status().ToString();
  EXPECT_GE(merged->merged_steps, 10);
  EXPECT_EQ(merged->summary.count, 4U * merged->merged_steps);
  // The other merged steps have no summary of their own; the error names the step that has it.
  const auto missing = trial->ReadSummary(0, columns->global_step.front() - 1, kGlobal);
  EXPECT_EQ(missing.status().code(), StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(missing.status().message()),
              HasSubstr(std::to_string(columns->global_step.front())));
}

TEST(HistoryTest, EachWorkerHasItsOwn) {
  TempRun run;
  Writing a(run.path(), 0, 2);
  Writing b(run.path(), 1, 2);
  a.Define(0, "x", 4);
  b.Define(7, "x", 4);
  for (int step = 0; step < 3; ++step) {
    a.AddValue(0, Some(static_cast<float>(step)));
    a.AddSummary(0, Some(static_cast<float>(step)));
    a.AddScalar(0, step);
    a.Step();
    b.AddValue(7, Some(static_cast<float>(step) + 100));
    b.AddSummary(7, Some(static_cast<float>(step) + 100));
    b.AddScalar(7, step + 100);
    b.Step();
  }
  a.Close();
  b.Close();
  const auto trial = Open(run);
  EXPECT_EQ(Floats(trial->ReadValue(0, 1, kGlobal)->bytes), Some(1));
  EXPECT_EQ(Floats(trial->ReadValue(0, 1, kGlobal, 1)->bytes), Some(101));
  EXPECT_THAT(trial->Summaries(0, kGlobal)->min, ElementsAre(0, 1, 2));
  EXPECT_THAT(trial->Summaries(0, kGlobal, 1)->min, ElementsAre(100, 101, 102));
  EXPECT_EQ(trial->Scalars(0, kGlobal)->size(), 3U) << "the first worker that has it";
  EXPECT_EQ(trial->Scalars(0, kGlobal, 1)->front().value, 100);
  EXPECT_THAT(*trial->TensorWorkers(0, 1, kGlobal), ElementsAre(0, 1));
}

// A resumed job whose process takes another worker number: each step has one worker, and all form one
// history.
TEST(HistoryTest, ASecondLifeAsAnotherWorkerGoesOnWithTheFirst) {
  TempRun run;
  for (std::uint32_t life = 0; life < 2; ++life) {
    Writing w(run.path(), life, 1, life == 1);
    w.Define(0, "x", 4);
    w.global_step = w.mode_steps[static_cast<int>(Mode::kTrain)] = std::int64_t{4} * life;
    for (int i = 0; i < 4; ++i) {
      const auto step = static_cast<float>(w.global_step);
      w.AddSummary(0, Some(step));
      w.AddValue(0, Some(step));
      w.AddScalar(0, static_cast<double>(step));
      w.Step();
    }
    w.Close();
  }
  const auto trial = Open(run);
  EXPECT_THAT(trial->Steps(kGlobal), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  const auto columns = trial->Summaries(0, Mode::kTrain);
  ASSERT_TRUE(columns.ok());
  EXPECT_THAT(columns->global_step, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(columns->mode_step, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(columns->min, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(columns->count, Each(4U));
  EXPECT_THAT(columns->mode, Each(static_cast<std::uint8_t>(Mode::kTrain)));
  const auto scalars = trial->Scalars(0, kGlobal);
  ASSERT_TRUE(scalars.ok());
  ASSERT_EQ(scalars->size(), 8U);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ((*scalars)[i].value, static_cast<double>(i));
  EXPECT_EQ(trial->Summaries(0, kGlobal, 1)->count.size(), 4U) << "of one worker only its own";
  EXPECT_EQ(trial->ReadStack(0, kGlobal, {}, 1 << 20)->steps.size(), 8U);
}

TEST(HistoryTest, AValueThatAnotherWorkerStoresIsFoundByItsHash) {
  TempRun run;
  for (std::uint32_t worker = 0; worker < 2; ++worker) {
    Writing w(run.path(), worker, 2);
    w.Define(0, "x", 4);
    for (int step = 0; step < 3; ++step) {
      const auto same = Some(static_cast<float>(step));
      const auto own = step == 2 ? Some(static_cast<float>(10 + worker)) : same;  // they have drifted apart
      w.AddSummary(0, own);
      if (worker == 0) {
        w.AddValue(0, own);
      } else {
        format::FormRow row{};
        row.form = static_cast<std::uint16_t>(format::Form::kHash);
        row.values[0] = std::bit_cast<double>(HashBytes(own.data(), own.size() * sizeof(float)));
        w.batch.forms.push_back(row);
      }
      w.Step();
    }
    w.Close();
  }
  const auto trial = Open(run);
  for (int step = 0; step < 2; ++step) {
    for (std::uint32_t worker = 0; worker < 2; ++worker) {
      const auto value = trial->ReadValue(0, step, kGlobal, worker);
      ASSERT_TRUE(value.ok()) << value.status().ToString();
      EXPECT_EQ(Floats(value->bytes), Some(static_cast<float>(step)));
      EXPECT_EQ(trial->Shape(0, step, kGlobal, worker)->worker, worker);
    }
  }
  EXPECT_TRUE(trial->ReadValue(0, 2, kGlobal).ok());
  const auto differs = trial->ReadValue(0, 2, kGlobal, 1);
  EXPECT_EQ(differs.status().code(), StatusCode::kOutOfRange);
  EXPECT_THAT(differs.status().message(), HasSubstr("its summary is there"));
}

}  // namespace
}  // namespace luff::query::history_test

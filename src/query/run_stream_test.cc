// A stream shows the same steps and phases as a trial, whatever the run went through.
#include "luff/query/run_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "luff/base/env.h"
#include "query/testing.h"

namespace luff::query::run_stream_test {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TempRun;
using testing::Writing;

constexpr std::uint64_t kSmall = 16 << 10;  // of a segment, so that runs have several

/// Adds phases to the step that comes next: how long it took says which one it is.
void Phases(Writing* w, std::int64_t ns) {
  w->batch.phases.head = {ns, -1, -1, -1, 1, 1, format::kNoId, 0};
  w->batch.phases.rows[0] = {static_cast<std::uint8_t>(format::Phase::kForward), 0, 1, format::kNoId, 0, ns};
}

void Steps(Writing* w, std::int64_t from, std::int64_t to, std::int64_t ns) {
  w->global_step = from;
  for (std::int64_t step = from; step < to; ++step) {
    Phases(w, ns + step);
    w->Step();
  }
}

using Seen = std::tuple<std::uint32_t, std::int64_t, std::int64_t>;  // worker, global step, time

std::vector<Seen> OfTrial(const TempRun& run) {
  std::vector<Seen> seen;
  const auto trial = Trial::Open(run.path());
  EXPECT_TRUE(trial.ok()) << trial.status().ToString();
  EXPECT_TRUE(VisitPhases(**trial, [&](const StepInfo& info, const StepPhases& phases) {
                seen.emplace_back(phases.worker, info.global_step, phases.head.wall_ns);
              }).ok());
  return seen;
}

struct Streamed {
  std::vector<Seen> phases;
  std::vector<std::pair<std::uint32_t, std::int64_t>> steps;
};

Streamed OfStream(const TempRun& run) {
  Streamed seen;
  const auto stream = RunStream::Open(run.path());
  EXPECT_TRUE(stream.ok()) << stream.status().ToString();
  const Status status = (*stream)->Visit(
      [&](const StepInfo& info, const StepPhases& phases) {
        seen.phases.emplace_back(phases.worker, info.global_step, phases.head.wall_ns);
      },
      [&](const StepInfo& info, std::uint32_t worker) { seen.steps.emplace_back(worker, info.global_step); });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return seen;
}

TEST(RunStreamTest, SeveralSegmentsAreReadInTheirOrder) {
  TempRun run;
  Writing w(run.path(), 0, 1, false, true, kSmall);
  Steps(&w, 0, 500, 1000);
  w.Step(Mode::kEval);  // without phases
  w.Close();
  EXPECT_TRUE(std::filesystem::exists(run.path() + "/w0000/m-000003.lfm")) << "one segment is no test";
  const Streamed seen = OfStream(run);
  EXPECT_EQ(seen.phases, OfTrial(run));
  EXPECT_THAT(seen.phases, SizeIs(500));
  EXPECT_THAT(seen.steps, SizeIs(501));
  EXPECT_EQ(seen.steps.back(), std::pair(0U, std::int64_t{500}));
  // A second pass reads the same.
  EXPECT_EQ(OfStream(run).steps, seen.steps);
}

TEST(RunStreamTest, StepsThatAResumedRunTakesAgainAreThereOnce) {
  TempRun run;
  {
    Writing w(run.path(), 0, 1, false, true, kSmall);
    Steps(&w, 0, 400, 1'000);
    w.Close(format::EndReason::kSignal);
  }
  {
    Writing w(run.path(), 0, 1, true, true, kSmall);
    Steps(&w, 150, 350, 100'000);
    w.Close(format::EndReason::kSignal);
  }
  {
    Writing w(run.path(), 0, 1, true, true, kSmall);
    Steps(&w, 300, 320, 1'000'000);
    w.Close();
  }
  const Streamed seen = OfStream(run);
  EXPECT_EQ(seen.phases, OfTrial(run));
  EXPECT_THAT(seen.phases, SizeIs(400));
  EXPECT_THAT(seen.steps, SizeIs(400));
}

TEST(RunStreamTest, ManyLivesThatTakeOneStepAgainShowItOnce) {
  TempRun run;
  for (std::int64_t life = 0; life < 20; ++life) {
    Writing w(run.path(), 0, 1, life > 0, true, kSmall);
    Steps(&w, 0, 1, 1'000 * life);
    Steps(&w, 10'000 - 10 * life, 10'001 - 10 * life, 1'000 * life);  // their ranges overlap, no more
    w.Close(format::EndReason::kSignal);
  }
  const Streamed seen = OfStream(run);
  EXPECT_EQ(seen.phases, OfTrial(run));
  EXPECT_THAT(seen.phases, SizeIs(21));
}

TEST(RunStreamTest, OfTwoWorkersEachHasItsSteps) {
  TempRun run;
  Writing a(run.path(), 0, 2, false, true, kSmall), b(run.path(), 1, 2, false, true, kSmall);
  Steps(&a, 0, 200, 1'000);
  Steps(&b, 0, 200, 5'000);
  a.Close();
  b.Close();
  EXPECT_EQ(OfStream(run).phases, OfTrial(run));
  EXPECT_THAT(OfStream(run).phases, SizeIs(400));
}

TEST(RunStreamTest, AWorkerThatIsNotResumedLosesTheStepsThatOthersTakeAgain) {
  TempRun run;
  {
    Writing a(run.path(), 0, 2, false, true, kSmall), b(run.path(), 1, 2, false, true, kSmall);
    Steps(&a, 0, 200, 1'000);
    Steps(&b, 0, 200, 5'000);
    a.Close();
    b.Close();
  }
  Writing w(run.path(), 0, 2, true, true, kSmall);
  Steps(&w, 50, 250, 100'000);
  w.Close();
  EXPECT_EQ(OfStream(run).phases, OfTrial(run));
}

TEST(RunStreamTest, WhatNotAllWorkersHavePassedIsNotThereYet) {
  TempRun run;
  store::RunInfo info;  // which begins in an hour: however long the test takes, nobody is late
  info.world_size = 2;
  info.run_id = {7};
  info.created_unix_ns = Env::Real().NowUnixNs() + 3'600'000'000'000;
  ASSERT_TRUE(store::CreateRun(run.path(), info, true, false).ok());
  Writing a(run.path(), 0, 2, false, true, kSmall), b(run.path(), 1, 2, false, true, kSmall);
  Steps(&a, 0, 120, 1'000);
  EXPECT_THAT(OfStream(run).steps, IsEmpty()) << "the other one has not begun";
  Steps(&b, 0, 7, 5'000);
  EXPECT_EQ(OfStream(run).phases, OfTrial(run));
  EXPECT_THAT(OfStream(run).phases, SizeIs(14));
  b.Close();
  EXPECT_EQ(OfStream(run).phases, OfTrial(run));
  EXPECT_THAT(OfStream(run).phases, SizeIs(127));
}

TEST(RunStreamTest, MergedStepsAreReadAsTheyAre) {
  TempRun run;
  Writing w(run.path(), 0, 1, false, true, kSmall, 48 << 10);
  Steps(&w, 0, 3'000, 1'000);
  w.Close();
  const Streamed seen = OfStream(run);
  EXPECT_EQ(seen.phases, OfTrial(run));
  EXPECT_LT(seen.phases.size(), 3'000U) << "nothing was merged";
}

TEST(RunStreamTest, DocumentsAreThoseOfTheWorker) {
  TempRun run;
  Writing a(run.path(), 0, 2), b(run.path(), 1, 2);
  Steps(&a, 0, 1, 1'000);
  Steps(&b, 0, 1, 1'000);
  b.batch.documents.emplace_back("traces", "[1]");
  b.Loose();
  a.Close();
  b.Close();
  const auto stream = RunStream::Open(run.path());
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ((*stream)->Document(1, "traces"), "[1]");
  EXPECT_EQ((*stream)->Document(0, "traces"), "");
  EXPECT_EQ((*stream)->Document(7, "traces"), "");
}

TEST(RunStreamTest, ASegmentThatVanishesIsAnError) {
  TempRun run;
  Writing w(run.path(), 0, 1, false, true, kSmall);
  Steps(&w, 0, 500, 1000);
  w.Close();
  const auto stream = RunStream::Open(run.path());
  ASSERT_TRUE(stream.ok());
  // Cut off first: a file that is open is read on although it was removed.
  std::filesystem::resize_file(run.path() + "/w0000/m-000001.lfm", 0);
  std::filesystem::remove(run.path() + "/w0000/m-000001.lfm");
  const Status status = (*stream)->Visit([](const auto&, const auto&) {}, [](const auto&, auto) {});
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("m-000001.lfm"));
}

TEST(RunStreamTest, ASegmentThatIsRemovedMeanwhileIsReadOn) {
  TempRun run;
  Writing w(run.path(), 0, 1, false, true, kSmall);
  Steps(&w, 0, 500, 1000);
  w.Close();
  const auto stream = RunStream::Open(run.path());
  ASSERT_TRUE(stream.ok());
  std::filesystem::remove(run.path() + "/w0000/m-000001.lfm");
  std::size_t steps = 0;
  const Status status =
      (*stream)->Visit([](const auto&, const auto&) {}, [&](const auto&, auto) { ++steps; });
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(steps, 500U);
}

TEST(RunStreamTest, ADirectoryThatIsNoRunIsRefused) {
  EXPECT_EQ(RunStream::Open("/nonexistent").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(RunStream::Open(std::filesystem::temp_directory_path()).status().code(),
            StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace luff::query::run_stream_test

#include "luff/profile/phase_table.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "luff/query/run_pieces.h"
#include "luff/store/writer.h"
#include "store/test_run.h"

namespace luff::profile {
namespace {

using format::Mode;
using format::Phase;
using Milliseconds = std::vector<std::pair<Phase, std::int64_t>>;

/// A run that is written step by step.
class Written {
 public:
  explicit Written(std::uint64_t segment_bytes = 8 << 20, std::uint64_t summary_max_bytes = 0)
      : segment_bytes_(segment_bytes),
        summary_max_bytes_(summary_max_bytes) {
    auto info = store::CreateRun(path(), {}, false, false);
    EXPECT_TRUE(info.ok());
    run_ = *info;
    Worker(0);
  }
  [[nodiscard]] std::string path() const { return directory_.path() + "/run"; }
  void Worker(std::uint32_t worker) {
    if (writer_ != nullptr) {
      EXPECT_TRUE(writer_->Close(format::EndReason::kCompleted).ok());
    }
    store::WriterOptions options;
    options.run_path = path();
    options.worker = worker;
    options.segment_bytes_meta = segment_bytes_;
    options.summary_max_bytes = summary_max_bytes_;
    options.max_bytes = summary_max_bytes_ * 4;
    auto writer = store::WorkerWriter::Open(options, run_);
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    writer_ = std::move(*writer);
    step_ = train_ = 0;
  }
  void Step(Mode mode, const Milliseconds& ms, std::int64_t queue_ms = -1) {
    store::StepBatch batch;
    batch.mark.global_step = step_++;
    batch.mark.mode_step = mode == Mode::kTrain ? train_++ : 0;
    batch.mark.mode = static_cast<std::uint8_t>(mode);
    format::PhasesHead& head = batch.phases.head;
    head = {0, queue_ms < 0 ? -1 : 0, queue_ms < 0 ? -1 : queue_ms * 1'000'000, -1, 1, 0, format::kNoId, 0};
    for (const auto& [phase, took] : ms) {
      batch.phases.rows[head.rows++] = {
          static_cast<std::uint8_t>(phase), 0, 1, format::kNoId, 0, took * 1'000'000};
      head.wall_ns += took * 1'000'000;
    }
    EXPECT_TRUE(writer_->PublishStep(batch).ok());
  }
  [[nodiscard]] std::unique_ptr<query::Trial> Read() {
    EXPECT_TRUE(writer_->Close(format::EndReason::kCompleted).ok());
    auto trial = query::Trial::Open(path());
    EXPECT_TRUE(trial.ok()) << trial.status().ToString();
    return std::move(*trial);
  }

 private:
  const std::uint64_t segment_bytes_, summary_max_bytes_;
  store::TemporaryDirectory directory_;
  store::RunInfo run_;
  std::unique_ptr<store::WorkerWriter> writer_;
  std::int64_t step_ = 0, train_ = 0;
};

TEST(PhaseTable, SharesMediansAndEvaluations) {
  Written run;
  for (int i = 0; i < 100; ++i) {
    run.Step(Mode::kTrain,
             {{Phase::kDataWait, 30}, {Phase::kForward, 10}, {Phase::kOther, i == 50 ? 500 : 10}}, 5);
    if (i == 60) run.Step(Mode::kEval, {{Phase::kForward, 200}});
  }
  run.Step(Mode::kEval, {{Phase::kForward, 200}});  // after the last TRAIN step: not between them
  const auto trial = run.Read();
  const auto table = TableOf(*trial, {});
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(table->steps, 100U);
  EXPECT_NEAR(table->wall_s, 5.49, 1e-6);
  EXPECT_NEAR(table->median_s, 0.05, 1e-6);
  EXPECT_EQ(table->other_steps, 1U);
  EXPECT_NEAR(table->other_s, 0.2, 1e-9);
  EXPECT_NEAR(table->run_queue_s, 0.5, 1e-6);
  ASSERT_EQ(table->lines.size(), 3U);  // what was not seen has no line
  EXPECT_EQ(table->lines[0].phase, Phase::kDataWait);
  EXPECT_NEAR(table->lines[0].share, 3.0 / 5.49, 1e-6);
  EXPECT_EQ(table->lines[1].phase, Phase::kOther);
  EXPECT_NEAR(table->lines[1].median_s, 0.01, 1e-6);
  double sum = 0;
  for (const PhaseLine& line : table->lines) sum += line.share;
  EXPECT_NEAR(sum, 1, 1e-9);
}

TEST(PhaseTable, StepsAndWorkersAreChosen) {
  Written run;
  for (int i = 0; i < 10; ++i) run.Step(Mode::kTrain, {{Phase::kForward, i < 5 ? 10 : 20}});
  run.Worker(1);
  for (int i = 0; i < 10; ++i) run.Step(Mode::kTrain, {{Phase::kForward, 70}});
  const auto trial = run.Read();
  const auto half = TableOf(*trial, {.worker = {}, .from = 5, .to = 8});
  ASSERT_TRUE(half.ok());
  EXPECT_EQ(half->steps, 4U);
  EXPECT_NEAR(half->median_s, 0.02, 1e-6);
  EXPECT_EQ(half->workers, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_NEAR(TableOf(*trial, {.worker = 1, .from = 0})->median_s, 0.07, 1e-6);
  const auto none = TableOf(*trial, {.worker = 7, .from = 0});
  EXPECT_FALSE(none.ok());
  EXPECT_NE(none.status().ToString().find("these did: 0, 1"), std::string::npos) << none.status().ToString();
}

TEST(PhaseTable, MergedStepsKeepTheirTimes) {
  Written run(32 << 10, 160 << 10);
  for (int i = 0; i < 3000; ++i) {
    run.Step(Mode::kTrain, {{Phase::kForward, 10}, {Phase::kOther, 5}}, 1);
    if (i % 100 == 99) run.Step(Mode::kEval, {{Phase::kForward, 50}});
  }
  run.Step(Mode::kTrain, {{Phase::kCheckpoint, 700}}, 1);
  const auto trial = run.Read();
  const auto table = TableOf(*trial, {});
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  std::size_t rows = 0;
  ASSERT_TRUE(query::VisitPhases(*trial, [&](const auto&, const auto&) { ++rows; }).ok());
  EXPECT_LT(rows, 2000U);  // most were merged
  EXPECT_EQ(table->steps, 3001U);
  EXPECT_NEAR(table->wall_s, 45.7, 1e-6);
  EXPECT_NEAR(table->median_s, 0.015, 1e-6);
  EXPECT_NEAR(table->run_queue_s, 3.001, 1e-6);
  EXPECT_EQ(table->other_steps, 30U);
  EXPECT_TRUE(trial->Problems().empty());
}

TEST(PhaseTable, ARunWithoutPhasesIsEmpty) {
  Written run;
  run.Step(Mode::kTrain, {});
  const auto table = TableOf(*run.Read(), {});
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->steps, 0U);
  EXPECT_TRUE(table->workers.empty());
}

}  // namespace
}  // namespace luff::profile

#include "luff/actions/stop.h"

#include <vector>

#include <gtest/gtest.h>

namespace luff::actions {
namespace {

constexpr std::int64_t kMs = 1'000'000;
using Acks = std::vector<std::pair<std::uint32_t, format::AckRow>>;
using Signal = StopCoordinator::Signal;
using State = StopCoordinator::State;

query::WorkerInfo Worker(std::uint32_t number, std::int64_t last_step) {
  query::WorkerInfo worker;
  worker.worker = number;
  worker.alive = true;
  worker.last_train_step = last_step;
  return worker;
}

std::pair<std::uint32_t, format::AckRow> Ack(std::uint32_t worker, std::uint64_t control,
                                             std::uint32_t verdict) {
  format::AckRow row{};
  row.control = control;
  row.verdict = verdict;
  return {worker, row};
}

class StopTest : public ::testing::Test {
 protected:
  Result<std::uint64_t> Write(const store::ControlRecord& record) {
    if (broken) return IoError("disk full");
    records.push_back(record);
    return records.size();
  }
  Signal PollAt(std::int64_t ms, std::vector<query::WorkerInfo> workers, const Acks& acks = {}) {
    return coordinator.Poll(ms * kMs, workers, acks);
  }

  bool broken = false;
  std::vector<store::ControlRecord> records;
  StopSettings settings;
  StopCoordinator coordinator{settings, [this](const store::ControlRecord& record) { return Write(record); }};
};

TEST_F(StopTest, NothingIsWrittenBeforeItIsWanted) {
  EXPECT_EQ(PollAt(0, {Worker(0, 10)}), Signal::kNone);
  EXPECT_TRUE(records.empty());
}

TEST_F(StopTest, ProposesAheadOfTheFastestWorkerByItsRate) {
  PollAt(0, {Worker(0, 0), Worker(1, 0)});
  PollAt(1000, {Worker(0, 100), Worker(1, 90)});
  coordinator.Request("NaN", "id");
  PollAt(1001, {Worker(0, 100), Worker(1, 90)});
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].phase, "propose");
  EXPECT_EQ(records[0].train_step, 100 + 2 + 25);  // 100 steps a second, a lead of 0.25 s
}

TEST_F(StopTest, CommitsOnlyWhenEveryLivingWorkerAccepted) {
  coordinator.Request("NaN", "id");
  PollAt(0, {Worker(0, 5), Worker(1, 5)});
  PollAt(10, {Worker(0, 5), Worker(1, 5)}, {Ack(0, 1, 1)});
  EXPECT_EQ(coordinator.state(), State::kProposed);
  query::WorkerInfo ended = Worker(2, 3);
  ended.ended = true;
  PollAt(20, {Worker(0, 5), Worker(1, 5), ended}, {Ack(0, 1, 1), Ack(1, 1, 1)});
  EXPECT_EQ(coordinator.state(), State::kCommitted);
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1].phase, "commit");
  EXPECT_EQ(records[1].proposal, 1U);
}

TEST_F(StopTest, OneWorkerTooLate_AbortsAndProposesFurtherAhead) {
  coordinator.Request("NaN", "id");
  PollAt(0, {Worker(0, 5), Worker(1, 5)});
  PollAt(10, {Worker(0, 9), Worker(1, 5)}, {Ack(0, 1, 2), Ack(1, 1, 1)});
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[1].phase, "abort");
  EXPECT_EQ(records[2].phase, "propose");
  EXPECT_GT(records[2].train_step, 9);
  EXPECT_EQ(coordinator.state(), State::kProposed);
}

TEST_F(StopTest, WorkersThatNeverAnswer_AreEndedBySignals) {
  coordinator.Request("NaN", "id");
  std::int64_t ms = 0;
  Signal signal = Signal::kNone;
  while (signal == Signal::kNone && ms < 100'000) signal = PollAt(ms += 100, {Worker(0, 5)});
  EXPECT_EQ(signal, Signal::kTerminate);
  EXPECT_LE(ms, 5 * 5000 + 1000);
  EXPECT_EQ(PollAt(ms + 9000, {Worker(0, 5)}), Signal::kNone);
  EXPECT_EQ(PollAt(ms + 10'000, {Worker(0, 5)}), Signal::kKill);
  EXPECT_EQ(PollAt(ms + 20'000, {Worker(0, 5)}), Signal::kNone);  // each is asked for once
  for (const auto& record : records) EXPECT_NE(record.phase, "commit");
}

TEST_F(StopTest, ScriptThatGoesOnBeyondTheStep_IsTerminated) {
  coordinator.Request("NaN", "id");
  PollAt(0, {Worker(0, 5)});
  PollAt(10, {Worker(0, 5)}, {Ack(0, 1, 1)});
  const std::int64_t beyond = coordinator.committed_step() + 2;
  EXPECT_EQ(PollAt(100, {Worker(0, beyond)}, {Ack(0, 1, 3)}), Signal::kNone);
  EXPECT_EQ(PollAt(3200, {Worker(0, beyond + 9)}, {Ack(0, 1, 3)}), Signal::kTerminate);
  EXPECT_NE(coordinator.remark().find("swallowed"), std::string::npos);
}

TEST_F(StopTest, RequestsAreTakenOnce) {
  coordinator.Request("first", "1");
  PollAt(0, {Worker(0, 5)});
  coordinator.Request("second", "2");
  PollAt(10, {Worker(0, 5)}, {Ack(0, 1, 1)});
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1].reason, "first");
}

TEST_F(StopTest, UnwritableRun_EndsBySignalAfterTheDeadline) {
  broken = true;
  coordinator.Request("NaN", "id");
  Signal signal = Signal::kNone;
  std::int64_t ms = 0;
  while (signal == Signal::kNone && ms < 100'000) signal = PollAt(ms += 100, {Worker(0, 5)});
  EXPECT_EQ(signal, Signal::kTerminate);
}

}  // namespace
}  // namespace luff::actions

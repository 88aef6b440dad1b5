#include "luff/actions/coordinator.h"

#include <vector>

#include <gtest/gtest.h>

namespace luff::actions::coordinator_test {
namespace {

constexpr std::int64_t kMs = 1'000'000;
using Acks = std::vector<std::pair<std::uint32_t, format::AckRow>>;
using Signal = Coordinator::Signal;
using State = Coordinator::State;

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

class CoordinatorTest : public ::testing::Test {
 protected:
  Result<std::uint64_t> Write(const store::ControlRecord& record) {
    if (broken) return IoError("disk full");
    records.push_back(record);
    records.back().number = records.size();
    return records.size();
  }
  Result<store::ControlRecord> Decide(const store::ControlRecord& record) {
    if (broken) return IoError("disk full");
    for (const auto& other : records) {
      if (other.proposal == record.proposal) return other;
    }
    records.push_back(record);
    records.back().number = records.size();
    return records.back();
  }
  Signal PollAt(std::int64_t ms, std::vector<query::WorkerInfo> workers, const Acks& acks = {}) {
    return coordinator.Poll(ms * kMs, world, workers, acks);
  }
  void Stop(const std::string& reason) { coordinator.Request({"stop", "", reason, "id", ""}); }
  /// A stop that the only worker has obeyed; its process is still there.
  void StopAndEnd() {
    Stop("NaN");
    PollAt(0, {Worker(0, 5)});
    PollAt(10, {Worker(0, 5)}, {Ack(0, 1, 1)});
    ASSERT_EQ(coordinator.state(), State::kCommitted);
    gone = Worker(0, 7);
    gone.ended = true;
    gone.alive = false;
    gone.reason = format::EndReason::kStopped;
  }
  void Lower(const std::string& id) {
    coordinator.Request({"lower_lr", id, "because", "id", R"({"factor":0.5})"});
  }
  std::vector<std::string> Phases() const {
    std::vector<std::string> phases;
    for (const auto& record : records) phases.push_back(record.kind + " " + record.phase);
    return phases;
  }
  std::string News() {
    std::string text;
    for (const ActionNews& news : coordinator.TakeNews())
      text += "PCAORF"[static_cast<int>(news.what)] + (news.detail.empty() ? "" : "(" + news.detail + ")");
    return text;
  }

  bool broken = false;
  std::int64_t coordinator_ms = 0;
  std::uint32_t world = 2;
  std::vector<store::ControlRecord> records;
  StopSettings settings;
  query::WorkerInfo gone;
  std::uint64_t updates = 0;  // after the stop
  Coordinator coordinator{settings,
                          {[this](const store::ControlRecord& record) { return Write(record); },
                           [this](const store::ControlRecord& record) { return Decide(record); },
                           [this](std::uint32_t) { return updates; }}};
};

TEST_F(CoordinatorTest, NothingIsWrittenBeforeItIsWanted) {
  EXPECT_EQ(PollAt(0, {Worker(0, 10)}), Signal::kNone);
  EXPECT_TRUE(records.empty());
}

TEST_F(CoordinatorTest, ProposesAheadOfTheFastestWorkerByItsRate) {
  PollAt(0, {Worker(0, 0), Worker(1, 0)});
  PollAt(1000, {Worker(0, 100), Worker(1, 90)});
  Stop("NaN");
  PollAt(1001, {Worker(0, 100), Worker(1, 90)});
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].phase, "propose");
  EXPECT_EQ(records[0].train_step, 100 + 2 + 25);  // 100 steps a second, a lead of 0.25 s
}

TEST_F(CoordinatorTest, CommitsOnlyWhenEveryLivingWorkerAccepted) {
  Stop("NaN");
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

TEST_F(CoordinatorTest, OneWorkerTooLate_AbortsAndProposesFurtherAhead) {
  Stop("NaN");
  PollAt(0, {Worker(0, 5), Worker(1, 5)});
  PollAt(10, {Worker(0, 9), Worker(1, 5)}, {Ack(0, 1, 2), Ack(1, 1, 1)});
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[1].phase, "abort");
  EXPECT_EQ(records[2].phase, "propose");
  EXPECT_GT(records[2].train_step, 9);
  EXPECT_EQ(coordinator.state(), State::kProposed);
  // The audit explains why a stop was proposed twice.
  EXPECT_EQ(News(), "PA(every proposed step was too late)P");
}

TEST_F(CoordinatorTest, WorkersThatNeverAnswer_AreEndedBySignals) {
  Stop("NaN");
  std::int64_t ms = 0;
  Signal signal = Signal::kNone;
  while (signal == Signal::kNone && ms < 100'000) signal = PollAt(ms += 100, {Worker(0, 5)});
  EXPECT_EQ(signal, Signal::kTerminate);
  EXPECT_LE(ms, 5 * 5000 + 1000);
  EXPECT_EQ(PollAt(ms + 9000, {Worker(0, 5)}), Signal::kNone);
  EXPECT_EQ(PollAt(ms + 10'000, {Worker(0, 5)}), Signal::kKill);
  EXPECT_EQ(PollAt(ms + 20'000, {Worker(0, 5)}), Signal::kNone);  // each signal is requested once
  for (const auto& record : records) EXPECT_NE(record.phase, "commit");
}

TEST_F(CoordinatorTest, ScriptThatGoesOnBeyondTheStep_IsTerminated) {
  Stop("NaN");
  PollAt(0, {Worker(0, 5)});
  PollAt(10, {Worker(0, 5)}, {Ack(0, 1, 1)});
  const std::int64_t beyond = coordinator.committed_step() + 2;
  EXPECT_EQ(PollAt(100, {Worker(0, beyond)}, {Ack(0, 1, 3)}), Signal::kNone);
  EXPECT_EQ(PollAt(3200, {Worker(0, beyond + 9)}, {Ack(0, 1, 3)}), Signal::kTerminate);
  EXPECT_NE(coordinator.remark().find("swallowed"), std::string::npos);
}

TEST_F(CoordinatorTest, ScriptThatTrainsAfterItsWorkerHasEnded_IsTerminated) {
  StopAndEnd();
  updates = 2;
  EXPECT_EQ(PollAt(100, {gone}), Signal::kNone);
  Signal signal = Signal::kNone;
  std::int64_t ms = 100;
  for (; signal == Signal::kNone && ms < 30'000; ms += 100, updates += 9) signal = PollAt(ms, {gone});
  EXPECT_EQ(signal, Signal::kTerminate);
  EXPECT_GT(ms, 3100);
  EXPECT_LT(ms, 6000);
  EXPECT_NE(coordinator.remark().find("swallowed"), std::string::npos);
}

TEST_F(CoordinatorTest, ScriptThatTrainsNoMore_HasItsTimeToLeave) {
  StopAndEnd();
  updates = 1;  // of the step that was stopped
  EXPECT_EQ(PollAt(100, {gone}), Signal::kNone);
  EXPECT_EQ(PollAt(30'000, {gone}), Signal::kNone);
  updates = 5;
  EXPECT_EQ(PollAt(30'100, {gone}), Signal::kNone);
  EXPECT_EQ(PollAt(59'000, {gone}), Signal::kNone);  // none since then
  EXPECT_EQ(PollAt(61'000, {gone}), Signal::kTerminate);
  EXPECT_NE(coordinator.remark().find("had not left"), std::string::npos);
}

TEST_F(CoordinatorTest, ScriptThatTrainsToTheEndOfItsEpoch_HasItsTimeToLeave) {
  StopAndEnd();
  for (std::int64_t ms = 100; ms <= 2900; ms += 100) {
    updates += 3;
    EXPECT_EQ(PollAt(ms, {gone}), Signal::kNone);
  }
  EXPECT_EQ(PollAt(3150, {gone}), Signal::kNone);
  updates += 1;  // what a slow writer still had, of several workers
  EXPECT_EQ(PollAt(3300, {gone}), Signal::kNone);
  updates += 1;
  EXPECT_EQ(PollAt(4100, {gone}), Signal::kNone);
  for (std::int64_t ms = 4200; ms < 60'000; ms += 100) ASSERT_EQ(PollAt(ms, {gone}), Signal::kNone);
  EXPECT_EQ(PollAt(61'000, {gone}), Signal::kTerminate);
  EXPECT_NE(coordinator.remark().find("had not left"), std::string::npos);
}

TEST_F(CoordinatorTest, AProcessThatStaysAfterItsEnd_IsTerminated) {
  StopAndEnd();
  EXPECT_EQ(PollAt(59'000, {gone}), Signal::kNone);
  EXPECT_EQ(PollAt(61'000, {gone}), Signal::kTerminate);
}

TEST_F(CoordinatorTest, AProcessThatTrainsTheNextTrial_IsLeftAlone) {
  StopAndEnd();
  gone.goes_on = true;
  EXPECT_EQ(PollAt(61'000, {gone}), Signal::kNone);
  EXPECT_EQ(PollAt(600'000, {gone}), Signal::kNone);
}

TEST_F(CoordinatorTest, RequestsAreTakenOnce) {
  Stop("first");
  PollAt(0, {Worker(0, 5)});
  Stop("second");
  PollAt(10, {Worker(0, 5)}, {Ack(0, 1, 1)});
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1].reason, "first");
}

TEST_F(CoordinatorTest, UnwritableRun_EndsBySignalAfterTheDeadline) {
  broken = true;
  Stop("NaN");
  Signal signal = Signal::kNone;
  std::int64_t ms = 0;
  while (signal == Signal::kNone && ms < 100'000) signal = PollAt(ms += 100, {Worker(0, 5)});
  EXPECT_EQ(signal, Signal::kTerminate);
}

TEST_F(CoordinatorTest, ACorrectionIsProposedCommittedAndSeenThrough) {
  Lower("a");
  PollAt(0, {Worker(0, 5), Worker(1, 5)});
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].kind, "lower_lr");
  EXPECT_EQ(records[0].body, R"({"factor":0.5})");
  PollAt(10, {Worker(0, 5), Worker(1, 5)}, {Ack(0, 1, 1), Ack(1, 1, 1)});
  EXPECT_EQ(News(), "PC");
  PollAt(20, {Worker(0, 40), Worker(1, 40)}, {Ack(0, 1, 3), Ack(1, 1, 1)});
  EXPECT_TRUE(coordinator.busy());
  PollAt(30, {Worker(0, 40), Worker(1, 40)}, {Ack(0, 1, 3), Ack(1, 1, 3)});
  EXPECT_EQ(News(), "O");
  EXPECT_FALSE(coordinator.busy());
  EXPECT_FALSE(coordinator.stop_decided());
}

TEST_F(CoordinatorTest, OneRefusalEndsACorrectionForAll) {
  Lower("a");
  PollAt(0, {Worker(0, 5), Worker(1, 5)});
  PollAt(10, {Worker(0, 5), Worker(1, 5)}, {Ack(0, 1, 1), Ack(1, 1, 4)});
  EXPECT_EQ(Phases(), (std::vector<std::string>{"lower_lr propose", "lower_lr abort"}));
  EXPECT_NE(News().find("worker 1 has not opted in"), std::string::npos);
  EXPECT_FALSE(coordinator.busy());
}

TEST_F(CoordinatorTest, ARankThatCannotAnswerIsWaitedForAndThenRefused) {
  query::WorkerInfo silent = Worker(1, 5);
  silent.alive = false;
  for (const std::vector<query::WorkerInfo>& workers :
       {std::vector{Worker(0, 5)}, std::vector{Worker(0, 5), silent},
        std::vector{Worker(0, 5), Worker(1, 5)}}) {
    records.clear();
    coordinator.Request(
        {"lower_lr", std::to_string(workers.size()) + (workers.back().alive ? "a" : "b"), "", "", ""});
    const std::int64_t begin = coordinator_ms;
    while (coordinator.busy() && coordinator_ms < begin + 100'000) {
      Acks acks;
      for (std::uint64_t n = 1; n <= records.size(); ++n) acks.push_back(Ack(0, n, 1));
      PollAt(coordinator_ms += 100, workers, acks);
    }
    EXPECT_FALSE(coordinator.busy());
    for (const auto& record : records) EXPECT_NE(record.phase, "commit");
    EXPECT_EQ(News().back(), ')');
  }
}

TEST_F(CoordinatorTest, AWorkerThatWasFasterWithItsAbortIsObeyed) {
  Lower("a");
  PollAt(0, {Worker(0, 5), Worker(1, 5)});
  store::ControlRecord abort = records[0];
  abort.phase = "abort";
  abort.proposal = 1;
  abort.author = "worker 1";
  abort.number = 2;
  records.push_back(abort);
  PollAt(10, {Worker(0, 5), Worker(1, 5)}, {Ack(0, 1, 1), Ack(1, 1, 1)});
  EXPECT_EQ(Phases(), (std::vector<std::string>{"lower_lr propose", "lower_lr abort", "lower_lr propose"}));
  EXPECT_EQ(News().substr(0, 2), "PA");
}

TEST_F(CoordinatorTest, ACommitThatStandsInTheLogIsNotTakenForAnAbort) {
  Lower("a");
  PollAt(0, {Worker(0, 5), Worker(1, 5)});
  store::ControlRecord commit = records[0];
  commit.phase = "commit";
  commit.proposal = 1;
  records.push_back(commit);  // written, although the writer got an error
  PollAt(6000, {Worker(0, 5), Worker(1, 5)}, {Ack(0, 1, 1)});
  EXPECT_EQ(News(), "PC");
}

TEST_F(CoordinatorTest, CorrectionsWaitInALineAndAStopGoesFirst) {
  Lower("a");
  Lower("a");
  Lower("b");
  PollAt(0, {Worker(0, 5), Worker(1, 5)});
  Stop("NaN");
  PollAt(10, {Worker(0, 5), Worker(1, 5)}, {Ack(0, 1, 1), Ack(1, 1, 1)});
  PollAt(20, {Worker(0, 40), Worker(1, 40)}, {Ack(0, 1, 3), Ack(1, 1, 3)});
  PollAt(30, {Worker(0, 40), Worker(1, 40)});
  EXPECT_EQ(Phases(), (std::vector<std::string>{"lower_lr propose", "lower_lr commit", "stop propose"}));
  EXPECT_TRUE(coordinator.stopping());
}

TEST_F(CoordinatorTest, AFailedCallBackIsSaidWithItsWorker) {
  Lower("a");
  PollAt(0, {Worker(0, 5), Worker(1, 5)});
  PollAt(10, {Worker(0, 5), Worker(1, 5)}, {Ack(0, 1, 1), Ack(1, 1, 1)});
  PollAt(20, {Worker(0, 40), Worker(1, 40)}, {Ack(0, 1, 3), Ack(1, 1, 5)});
  EXPECT_EQ(News(), "PCF(the call-back failed in worker 1; 1 carried it out)");
}

TEST_F(CoordinatorTest, AnUnwritableRunGivesACorrectionUpWithoutASignal) {
  broken = true;
  Lower("a");
  std::int64_t ms = 0;
  while (coordinator.busy() && ms < 100'000)
    EXPECT_EQ(PollAt(ms += 100, {Worker(0, 5), Worker(1, 5)}), Signal::kNone);
  EXPECT_FALSE(coordinator.busy());
}

}  // namespace
}  // namespace luff::actions::coordinator_test

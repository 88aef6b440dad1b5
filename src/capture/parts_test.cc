// Tests the small parts: gap book, governor, two-phase actions, polling, pool, scaling, pieces, file thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "capture/action_gate.h"
#include "capture/block_pool.h"
#include "capture/control_poll.h"
#include "capture/file_thread.h"
#include "capture/governor.h"
#include "capture/pieces.h"
#include "capture/scale.h"
#include "luff/store/gap_book.h"

namespace luff::capture::parts_test {
namespace {

using Verdict = ActionGate::Verdict;

format::GapRow Gap(std::uint32_t tensor) {
  format::GapRow row{};
  row.tensor = tensor;
  row.collection = format::kNoId;
  row.reason = static_cast<std::uint16_t>(format::GapReason::kPoolFull);
  row.count = 1;
  row.bytes = 10;
  row.first_step = row.last_step = -1;
  return row;
}

TEST(GapBookTest, TheFirstAtOnceThenJoined) {
  store::GapBook book;
  std::vector<format::GapRow> out;
  book.Add(Gap(1), 5);
  book.Collect(1'000, false, &out);
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].first_step, 5);
  for (std::int64_t step = 6; step < 16; ++step) book.Add(Gap(1), step);
  book.Collect(2'000, false, &out);
  EXPECT_EQ(out.size(), 1U);
  book.Collect(3'000, true, &out);
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(out[1].count, 10U);
  EXPECT_EQ(out[1].bytes, 100U);
  EXPECT_EQ(out[1].first_step, 6);
  EXPECT_EQ(out[1].last_step, 15);
}

TEST(GapBookTest, IsBoundedAndLosesNoCount) {
  store::GapBook book;
  for (std::uint32_t i = 0; i < 20'000; ++i) book.Add(Gap(i), 0);
  std::vector<format::GapRow> out;
  book.Collect(1, true, &out);
  EXPECT_LE(out.size(), 10'001U);
  std::uint64_t count = 0;
  for (const auto& row : out) count += row.count;
  EXPECT_EQ(count, 20'000U);
}

TEST(GovernorTest, NotInTheFirstStepsAndNotBelowTheFloor) {
  Governor early(0.05);
  for (int i = 0; i < 200; ++i) early.EndStep(5'000'000, 10'000'000);
  EXPECT_EQ(early.stride(), 1U);
  Governor small(0.05);
  for (int i = 0; i < 2000; ++i) small.EndStep(100'000, 200'000);
  EXPECT_EQ(small.stride(), 1U);
  Governor unlimited(0);
  for (int i = 0; i < 2000; ++i) unlimited.EndStep(5'000'000, 10'000'000);
  EXPECT_EQ(unlimited.stride(), 1U);
}

TEST(GovernorTest, WidensUntilTheShareHoldsAndComesBack) {
  Governor governor(0.05);
  int taken = 0;
  for (int i = 0; i < 4000; ++i) {
    const bool raw = governor.AllowRaw();
    taken += raw ? 1 : 0;
    governor.EndStep(raw ? 10'000'000 : 0, 50'000'000 + (raw ? 10'000'000 : 0));
  }
  EXPECT_GE(governor.stride(), 4U);
  EXPECT_LE(governor.stride(), 16U);
  EXPECT_GT(taken, 100);
  for (int i = 0; i < 4000; ++i) {
    const bool raw = governor.AllowRaw();
    governor.EndStep(raw ? 1'000'000 : 0, 50'000'000);
  }
  EXPECT_EQ(governor.stride(), 1U);
}

store::ControlRecord Record(std::uint64_t number, std::string phase, std::uint64_t proposal,
                            std::int64_t step) {
  store::ControlRecord record;
  record.number = number;
  record.kind = "stop";
  record.phase = std::move(phase);
  record.proposal = proposal;
  record.train_step = step;
  record.deadline_s = 20;
  record.reason = "because";
  return record;
}

TEST(ActionGateTest, ProposeCommitStopsAtTheStepAndNotBefore) {
  ActionGate gate;
  std::vector<format::AckRow> acks;
  gate.StepFinished(3);
  gate.Take(Record(1, "propose", 0, 5), 0, &acks);
  ASSERT_EQ(acks.size(), 1U);
  EXPECT_EQ(acks[0].verdict, static_cast<std::uint32_t>(Verdict::kAccepted));
  EXPECT_EQ(acks[0].train_step, 3);
  EXPECT_EQ(gate.state(), StopState::kWait);
  EXPECT_EQ(gate.AtBoundary(4), StopState::kNone);
  std::thread other([&] { gate.Take(Record(2, "commit", 1, 5), 0, &acks); });
  EXPECT_EQ(gate.AtBoundary(5), StopState::kStop);
  other.join();
  std::vector<format::AckRow> answers;
  gate.TakeAnswers(&answers);
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].verdict, static_cast<std::uint32_t>(Verdict::kCarriedOut));
  EXPECT_EQ(gate.reason(), "because");
}

TEST(ActionGateTest, AProposalForAPastStepIsTooLate) {
  ActionGate gate;
  std::vector<format::AckRow> acks;
  gate.StepFinished(5);
  gate.Take(Record(1, "propose", 0, 5), 0, &acks);
  EXPECT_EQ(acks.at(0).verdict, static_cast<std::uint32_t>(Verdict::kTooLate));
  EXPECT_EQ(gate.state(), StopState::kNone);
  gate.Take(Record(2, "commit", 1, 5), 0, &acks);
  EXPECT_EQ(gate.AtBoundary(6), StopState::kNone);
}

TEST(ActionGateTest, AProposalIsTooLate_NotRefused_WhileTheTrainingLeavesAnAbortedOne) {
  ActionGate gate;
  std::vector<format::AckRow> acks;
  gate.Take(Record(1, "propose", 0, 2), 0, &acks);
  gate.Take(Record(2, "propose", 0, 4), 0, &acks);  // another one is open
  EXPECT_EQ(acks.at(1).verdict, static_cast<std::uint32_t>(Verdict::kRefused));
  gate.StepFinished(2);
  gate.Take(Record(3, "abort", 1, 2), 0, &acks);
  gate.Take(Record(4, "propose", 0, 6), 0, &acks);
  EXPECT_EQ(acks.at(2).verdict, static_cast<std::uint32_t>(Verdict::kTooLate));
  EXPECT_EQ(gate.AtBoundary(2), StopState::kNone);
  gate.Take(Record(5, "propose", 0, 8), 0, &acks);
  EXPECT_EQ(acks.at(3).verdict, static_cast<std::uint32_t>(Verdict::kAccepted));
}

TEST(ActionGateTest, AbortAndDeadlineLetTheTrainingGoOn) {
  ActionGate gate(0.02);
  std::vector<format::AckRow> acks;
  gate.Take(Record(1, "propose", 0, 2), 0, &acks);
  gate.Take(Record(2, "abort", 1, 2), 0, &acks);
  EXPECT_EQ(gate.AtBoundary(2), StopState::kNone);
  store::ControlRecord hasty = Record(3, "propose", 0, 4);
  hasty.deadline_s = 0.02;
  gate.Take(hasty, 0, &acks);
  EXPECT_EQ(gate.AtBoundary(4), StopState::kNone);
  EXPECT_EQ(gate.state(), StopState::kNone);
  gate.Take(Record(4, "commit", 3, 4), 0, &acks);  // too late: nothing happens
  EXPECT_EQ(gate.AtBoundary(5), StopState::kNone);
}

TEST(ActionGateTest, NothingStopsWithoutACommitOfTheSameProposal) {
  ActionGate gate;
  std::vector<format::AckRow> acks;
  gate.Take(Record(1, "commit", 7, 1), 0, &acks);
  EXPECT_EQ(gate.AtBoundary(1), StopState::kNone);
}

store::ControlRecord Correction(std::uint64_t number, std::int64_t step, double deadline_s = 20) {
  store::ControlRecord record = Record(number, "propose", 0, step);
  record.kind = "lower_lr";
  record.deadline_s = deadline_s;
  record.body = R"({"factor":0.5})";
  return record;
}

std::vector<std::uint32_t> Verdicts(const std::vector<format::AckRow>& acks) {
  std::vector<std::uint32_t> verdicts;
  for (const format::AckRow& ack : acks) verdicts.push_back(ack.verdict);
  return verdicts;
}

TEST(ActionGateTest, ACorrectionIsRefusedUnlessTheTrainingOptedIn) {
  ActionGate gate;
  std::vector<format::AckRow> acks;
  gate.Take(Correction(1, 5), 0, &acks);
  EXPECT_EQ(Verdicts(acks), (std::vector<std::uint32_t>{4}));
  EXPECT_EQ(gate.state(), StopState::kNone);
  const std::vector<std::string> kinds = {"lower_lr"};
  gate.Accept(kinds);
  gate.Take(Correction(2, 5), 0, &acks);
  gate.Take(Record(3, "propose", 0, 6), 0, &acks);  // while another one is open
  EXPECT_EQ(Verdicts(acks), (std::vector<std::uint32_t>{4, 1, 4}));
}

TEST(ActionGateTest, ACommittedCorrectionIsHandedOverOnceAtItsStep) {
  ActionGate gate;
  std::vector<format::AckRow> acks;
  gate.Accept(std::vector<std::string>{"lower_lr"});
  gate.Take(Correction(1, 2), 0, &acks);
  gate.Take(Record(2, "commit", 1, 2), 0, &acks);
  gate.Take(Record(3, "abort", 1, 2), 0, &acks);  // the first decision counts
  EXPECT_EQ(gate.AtBoundary(1), StopState::kNone);
  EXPECT_FALSE(gate.TakeAction());
  EXPECT_EQ(gate.AtBoundary(2), StopState::kAct);
  const auto action = gate.TakeAction();
  ASSERT_TRUE(action);
  EXPECT_EQ(action->control, 1U);
  EXPECT_EQ(action->kind, "lower_lr");
  EXPECT_EQ(action->body, R"({"factor":0.5})");
  EXPECT_FALSE(gate.TakeAction());
  gate.ActionDone(1, true);
  EXPECT_EQ(gate.AtBoundary(3), StopState::kNone);
  std::vector<format::AckRow> answers;
  gate.TakeAnswers(&answers);
  EXPECT_EQ(Verdicts(answers), (std::vector<std::uint32_t>{3}));
  gate.Take(Correction(4, 5), 0, &acks);  // and the next one may come
  EXPECT_EQ(acks.back().verdict, 1U);
}

TEST(ActionGateTest, WhoseTimeIsUpObeysWhatTheLogSays) {
  for (const char* counts : {"commit", "abort"}) {
    ActionGate gate;
    std::vector<format::AckRow> acks;
    gate.Accept(std::vector<std::string>{"lower_lr"});
    gate.Take(Correction(1, 2, 0.001), 0, &acks);
    EXPECT_FALSE(gate.AbortWanted());
    const StopState state = gate.AtBoundary(2, [&] {
      const auto wanted = gate.AbortWanted();
      if (!wanted) return;
      EXPECT_EQ(wanted->phase, "abort");
      EXPECT_EQ(wanted->proposal, 1U);
      gate.Take(Record(2, counts, 1, 2), 0, &acks);
    });
    EXPECT_EQ(state, std::string(counts) == "commit" ? StopState::kAct : StopState::kNone) << counts;
    EXPECT_FALSE(gate.AbortWanted());
  }
}

TEST(ActionGateTest, ALogThatCannotBeReadEndsTheWaitAndIsSaid) {
  ActionGate gate(0.02);
  std::vector<format::AckRow> acks;
  gate.Take(Record(1, "propose", 0, 2), 0, &acks);
  gate.Take(Record(2, "abort", 1, 2), 0, &acks);
  store::ControlRecord hasty = Record(3, "propose", 0, 2);
  hasty.deadline_s = 0.01;
  gate.Take(hasty, 0, &acks);
  EXPECT_EQ(gate.AtBoundary(2), StopState::kNone);
  std::vector<format::AckRow> answers;
  gate.TakeAnswers(&answers);
  EXPECT_EQ(Verdicts(answers), (std::vector<std::uint32_t>{6}));
  EXPECT_EQ(gate.state(), StopState::kNone);
}

TEST(ControlPollTest, DecidesAnAbortForAWorkerWhoseTimeIsUp) {
  ActionGate gate;
  std::vector<format::AckRow> acks;
  int asked = 0;
  ControlPoll poll(
      "/", 0, [](std::uint64_t) { return std::vector<store::ControlRecord>{}; },
      [&](const store::ControlRecord& wanted) -> Result<store::ControlRecord> {
        if (++asked == 1) return IoError("not yet");
        store::ControlRecord other = wanted;
        other.phase = "commit";  // another worker was faster
        return other;
      },
      &gate);
  gate.Accept(std::vector<std::string>{"lower_lr"});
  gate.Take(Correction(1, 2, 0.001), 0, &acks);
  std::int64_t now = 0;
  EXPECT_EQ(gate.AtBoundary(2, [&] { poll.Poll(now += 60'000'000, &acks); }), StopState::kAct);
  EXPECT_EQ(asked, 2);
}

TEST(BlockPoolTest, ReusesTheWarmestGrowsToItsLimitAndPins) {
  BlockPool pool(1);  // four blocks at least
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.Acquire());
  for (Block* b : blocks) {
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b->data) % (2U << 20), 0U);
    b->data[kBlockBytes - 1] = std::byte{1};
  }
  EXPECT_EQ(pool.Acquire(), nullptr);
  EXPECT_TRUE(pool.under_pressure());
  EXPECT_EQ(pool.AcquireWithin(std::chrono::milliseconds(1)), nullptr);
  const std::uint64_t generation = pool.Generation(blocks[2]);
  pool.Release(blocks[1]);
  pool.Release(blocks[2]);
  ASSERT_TRUE(pool.Pin(blocks[2], generation));
  EXPECT_EQ(pool.Acquire(), blocks[1]);  // the warmer one is being read
  pool.Unpin(blocks[2]);
  EXPECT_EQ(pool.Acquire(), blocks[2]);
  EXPECT_FALSE(pool.Pin(blocks[2], generation));
}

TEST(ScaleTest, EqualsTheFrameworksArithmetic) {
  std::vector<float> values{1.5F, -3, 1e-30F, 65504};
  std::vector<float> scaled = values;
  ASSERT_TRUE(ScaleInPlace(DType::kFloat32, reinterpret_cast<std::byte*>(scaled.data()), 4, 1.0 / 1024));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(scaled[i], values[i] * (1.0F / 1024));
  std::uint16_t half[] = {0x3C00, 0x7BFF, 0x0001,
                          0xFC00, 0x7E00, 0x0400};  // 1, 65504, 2^-24, -inf, nan, 2^-14
  ASSERT_TRUE(ScaleInPlace(DType::kFloat16, reinterpret_cast<std::byte*>(half), 6, 0.5));
  EXPECT_EQ(half[0], 0x3800);
  EXPECT_EQ(half[1], 0x77FF);
  EXPECT_EQ(half[2], 0x0000);  // halfway, to even
  EXPECT_EQ(half[3], 0xFC00);
  EXPECT_EQ(half[4] & 0x7E00, 0x7E00);
  EXPECT_EQ(half[5], 0x0200);
  std::int32_t whole = 3;
  EXPECT_FALSE(ScaleInPlace(DType::kInt32, reinterpret_cast<std::byte*>(&whole), 1, 2));
}

TEST(PiecesTest, CoverEveryElementOnceInOrder) {
  const std::vector<std::int64_t> dims{3, 5, 7}, strides{1, 21, 3};
  Result<Layout> layout = Layout::Strided(DType::kUInt8, dims, strides);
  ASSERT_TRUE(layout.ok());
  std::vector<std::byte> memory(105);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i);
  for (const std::uint64_t most : {1U, 4U, 7U, 30U, 35U, 200U}) {
    std::vector<std::byte> out;
    ForEachPiece({memory.data(), *layout}, most, [&](const TensorView& piece) {
      ASSERT_LE(piece.layout.byte_count(), most);
      for (std::int64_t i = 0; i < (piece.layout.rank > 0 ? piece.layout.dims[0] : 1); ++i) {
        for (std::int64_t j = 0; j < (piece.layout.rank > 1 ? piece.layout.dims[1] : 1); ++j) {
          for (std::int64_t k = 0; k < (piece.layout.rank > 2 ? piece.layout.dims[2] : 1); ++k) {
            out.push_back(piece.data[i * piece.layout.strides[0] + j * piece.layout.strides[1] +
                                     k * piece.layout.strides[2]]);
          }
        }
      }
    });
    std::vector<std::byte> expected;
    for (std::int64_t i = 0; i < 3; ++i) {
      for (std::int64_t j = 0; j < 5; ++j) {
        for (std::int64_t k = 0; k < 7; ++k)
          expected.push_back(memory[static_cast<std::size_t>(i + 21 * j + 3 * k)]);
      }
    }
    EXPECT_EQ(out, expected) << most;
  }
}

TEST(FileThreadTest, HandlersOfTheTrainingNeverRunThere) {
  sigset_t before{};
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  const auto thread = FileThread::Start();
  sigset_t there{};
  sigset_t here{};
  ASSERT_TRUE(thread->Run([&] { pthread_sigmask(SIG_BLOCK, nullptr, &there); }, std::chrono::minutes(1)));
  pthread_sigmask(SIG_BLOCK, nullptr, &here);
  for (const int number : {SIGHUP, SIGINT, SIGTERM, SIGALRM, SIGPROF, SIGUSR1, SIGCHLD, SIGRTMIN}) {
    EXPECT_EQ(sigismember(&there, number), 1) << number;
    EXPECT_EQ(sigismember(&here, number), sigismember(&before, number)) << number;
  }
  EXPECT_EQ(sigismember(&there, SIGSEGV), 0);  // a fault of the thread itself
}

}  // namespace
}  // namespace luff::capture::parts_test

// Tests the accounting of losses: whatever the disk, the memory or the writer thread does, each requested
// step is in the run or in exactly one gap, what is in the run can be read, and what waits is bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <new>
#include <set>
#include <thread>

#include "capture/faulty_env.h"
#include "capture/testing.h"
#include "luff/store/loss.h"
#include "luff/store/reader.h"

// On request of a test, one in g_fail_one_of allocations fails (0: none), except in threads that set
// t_spared. A thread that sets t_hold blocks in its next allocation.
namespace {
[[maybe_unused]] std::atomic<std::uint32_t> g_fail_one_of{0}, g_allocations{0}, g_failed{0};
thread_local bool t_spared = false;
[[maybe_unused]] thread_local bool t_hold = false;
[[maybe_unused]] std::atomic<bool> g_held{false}, g_go_on{false};
}  // namespace

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LUFF_ALLOCATIONS_ARE_THE_SANITIZERS  // its runtime defines these, and is linked as a whole
#endif
#endif
#ifndef LUFF_ALLOCATIONS_ARE_THE_SANITIZERS
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (t_hold) {
    t_hold = false;
    g_held = true;
    while (!g_go_on) usleep(1000);
  }
  const std::uint32_t one_of = t_spared ? 0 : g_fail_one_of.load(std::memory_order_relaxed);
  const bool fails =
      one_of != 0 &&
      (g_allocations.fetch_add(1, std::memory_order_relaxed) * 2654435761U >> 8U) % one_of == 0;
  void* memory = fails ? nullptr : std::malloc(bytes);
  if (fails) g_failed.fetch_add(1, std::memory_order_relaxed);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// Without this, a sanitizer's own version would be used, which does not match the delete below.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t& /*unused*/) noexcept {
  try {
    return ::operator new(bytes);
  } catch (...) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace luff::capture::ledger_test {
namespace {

using format::GapReason;
using format::Mode;
using format::Role;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Disk;
using testing::FaultyEnv;

constexpr char kAll[] =
    R"({"defaults":false,"max_overhead":0,"collections":[
      {"name":"all","include":["."],"forms":["summary","raw"],"save":{"save_interval":1}}]})";
constexpr char kSummaries[] =
    R"({"defaults":false,"max_overhead":0,"collections":[
      {"name":"all","include":["."],"forms":["summary"],"save":{"save_interval":1}}]})";

std::uint64_t CounterOf(const Session& session, std::string_view name) {
  for (const Counter& counter : session.health().counters) {
    if (counter.name == name) return counter.value;
  }
  return 0;
}

/// The steps and gaps in a run.
struct Account {
  std::set<std::int64_t> steps;
  std::map<std::uint16_t, format::GapRow> whole;  // gaps of whole steps, by reason
  std::set<TensorId> named, used;
  std::string damage;

  void Take(const store::StepBatch& batch) {
    for (const store::TensorDef& def : batch.tensors) named.insert(def.id);
    for (const format::SummaryRow& row : batch.summaries) used.insert(row.tensor);
    for (const format::IndexRow& row : batch.index) used.insert(row.tensor);
    for (const format::GapRow& row : batch.gaps) Take(row);
  }
  void Take(const format::GapRow& row) {
    const bool steps_missing =
        row.tensor == format::kNoId && row.collection == format::kNoId && row.forms == 0;
    if (!steps_missing || row.reason == static_cast<std::uint16_t>(GapReason::kTooMany)) return;
    const auto [at, fresh] = whole.try_emplace(row.reason, row);
    if (fresh) return;
    at->second.count += row.count;
    at->second.first_step = std::min(at->second.first_step, row.first_step);
    at->second.last_step = std::max(at->second.last_step, row.last_step);
  }
  [[nodiscard]] std::uint64_t Missing() const {
    std::uint64_t count = 0;
    for (const auto& [reason, row] : whole) count += row.count;
    return count;
  }
  /// "" if steps 0 to `asked` - 1 are all accounted for, once.
  [[nodiscard]] std::string Wrong(std::int64_t asked) const {
    if (!damage.empty()) return damage;
    for (const TensorId id : used) {
      if (!named.contains(id)) return "tensor " + std::to_string(id) + " has rows and no name";
    }
    if (steps.size() + Missing() != static_cast<std::uint64_t>(asked)) {
      return std::to_string(asked) + " steps, " + std::to_string(steps.size()) + " in the run, " +
             std::to_string(Missing()) + " in gaps";
    }
    for (std::int64_t step = 0; step < asked; ++step) {
      const bool told = std::any_of(whole.begin(), whole.end(), [&](const auto& entry) {
        return entry.second.first_step <= step && step <= entry.second.last_step;
      });
      if (!told && !steps.contains(step)) return "step " + std::to_string(step) + " is nowhere";
    }
    return "";
  }
};

Account AccountOf(Disk* disk) {
  Account account;
  for (const auto& step : disk->Steps()) {
    account.Take(step.batch);
    account.steps.insert(step.batch.mark.global_step);
  }
  for (const auto& loose : disk->Loose()) account.Take(loose.batch);
  return account;
}

/// A training that defines one more tensor in each step.
class Training {
 public:
  Training(std::unique_ptr<Session> session, std::int64_t rows)
      : session_(std::move(session)),
        layout_(session_->DefineLayout(testing::MakeLayout(DType::kFloat32, {rows}))),
        values_(static_cast<std::size_t>(rows), 1.0F) {}
  void Step(std::size_t captures = 1) {
    tensors_.push_back(
        session_->DefineTensor("t" + std::to_string(tensors_.size()), Role::kWeight, "net", "Linear"));
    session_->BeginStep(Mode::kTrain, steps_);
    for (std::size_t i = 0; i < captures; ++i) {
      values_[0] = static_cast<float>(steps_ * 1000 + static_cast<std::int64_t>(i));
      const TensorRef ref{tensors_[tensors_.size() - 1 - i % tensors_.size()], layout_,
                          testing::Bytes(values_), 0, 0};
      session_->Capture({&ref, 1});
    }
    session_->EndStep({Mode::kTrain, steps_, steps_, steps_});
    ++steps_;
  }
  Session& session() { return *session_; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void End(milliseconds deadline = seconds(60)) { session_->Close(format::EndReason::kCompleted, deadline); }

 private:
  std::unique_ptr<Session> session_;
  LayoutId layout_;
  std::vector<float> values_;
  std::vector<TensorId> tensors_;
  std::int64_t steps_ = 0;
};

std::unique_ptr<Session> Start(const std::shared_ptr<Disk>& disk, const QueueLimits& limits) {
  auto session = SessionImpl::Start(
      *ParseConfigUntrusted(kSummaries), std::make_unique<testing::FakeWriter>(disk), 0, FileThread::Start(),
      "/", 0, [](std::uint64_t) { return std::vector<store::ControlRecord>{}; }, {}, limits);
  return std::move(session).value();
}

void WaitFor(const auto& condition) {
  for (int i = 0; i < 60'000 && !condition(); ++i) usleep(1000);
}

TEST(LedgerTest, AStepThatFindsNoRoomLeavesItsNamesAndIsCounted) {
  auto disk = std::make_shared<Disk>();
  Mutex gate;
  gate.Lock();
  disk->on_publish = [&] { MutexLock lock(gate); };
  Training training(Start(disk, {.items = 5, .bytes = 1U << 20}), 10);
  for (int i = 0; i < 50; ++i) training.Step();
  EXPECT_GT(CounterOf(training.session(), "dropped_steps"), 30U);
  gate.Unlock();
  ASSERT_TRUE(training.session().Flush(seconds(60)));
  for (int i = 0; i < 50; ++i) {
    training.Step(50);  // uses tensors that dropped steps defined
    ASSERT_TRUE(training.session().Flush(seconds(60)));
  }
  training.End();
  const Account account = AccountOf(disk.get());
  EXPECT_EQ(account.Wrong(training.steps()), "");
  EXPECT_EQ(account.named.size(), 100U);
  EXPECT_THAT(account.steps, ::testing::Contains(99));
}

TEST(LedgerTest, WhatWaitsForAHangingDiskIsBoundedInBytes) {
  auto disk = std::make_shared<Disk>();
  Mutex gate;
  gate.Lock();
  disk->on_publish = [&] { MutexLock lock(gate); };
  constexpr std::uint64_t kBytes = 8U << 20, kStepBytes = 1U << 20;
  Training training(Start(disk, {.items = 1024, .bytes = kBytes}), 1);
  const auto before = mallinfo2();
  for (int i = 0; i < 200; ++i) training.Step(kStepBytes / sizeof(format::SummaryRow));  // 200 MB
  const auto after = mallinfo2();
  EXPECT_LE(CounterOf(training.session(), "queued_bytes"), kBytes);
  EXPECT_LE(after.uordblks + after.hblkhd, before.uordblks + before.hblkhd + kBytes + 6 * kStepBytes);
  gate.Unlock();
  training.End();
  EXPECT_EQ(AccountOf(disk.get()).Wrong(training.steps()), "");
}

TEST(LedgerTest, AnErrorOfTheWriterThreadCostsAStepAndIsSaid) {
  auto disk = std::make_shared<Disk>();
  std::atomic<int> calls{0};
  disk->on_publish = [&] {
    if (++calls == 3) throw std::bad_alloc();
  };
  Training training(Start(disk, {}), 10);
  for (int i = 0; i < 10; ++i) training.Step();
  ASSERT_TRUE(training.session().Flush(seconds(60)));
  EXPECT_TRUE(training.session().health().accepting);
  EXPECT_THAT(training.session().health().first_error, ::testing::HasSubstr("bad_alloc"));
  training.End();
  const Account account = AccountOf(disk.get());
  EXPECT_EQ(account.Wrong(training.steps()), "");
  EXPECT_EQ(account.steps.size(), 9U);
  EXPECT_EQ(account.named.size(), 10U);
}

TEST(LedgerTest, AWriterThreadThatOnlyFailsEndsTheRecordingNotTheTraining) {
  auto disk = std::make_shared<Disk>();
  std::atomic<bool> broken{false};
  disk->on_publish = [&] {
    if (broken) throw 42;  // NOLINT(hicpp-exception-baseclass): anything
  };
  Training training(Start(disk, {}), 10);
  for (int i = 0; i < 10; ++i) training.Step();
  ASSERT_TRUE(training.session().Flush(seconds(60)));
  broken = true;
  for (int i = 0; i < 20; ++i) training.Step();
  WaitFor([&] { return !training.session().health().accepting; });
  EXPECT_FALSE(training.session().health().accepting);
  EXPECT_THAT(training.session().health().first_error, ::testing::HasSubstr("unknown exception"));
  broken = false;
  const std::uint64_t captured = CounterOf(training.session(), "captured");
  for (int i = 0; i < 20; ++i) training.Step();
  EXPECT_EQ(CounterOf(training.session(), "captured"), captured);  // nothing is captured now
  EXPECT_EQ(training.session().AtStepBoundary(50), StopState::kNone);
  training.End();
  const Account account = AccountOf(disk.get());
  EXPECT_EQ(account.Wrong(training.steps()), "");
  EXPECT_EQ(account.steps.size(), 10U);
  EXPECT_EQ(account.whole.begin()->first, static_cast<std::uint16_t>(GapReason::kRecordingFailed));
  std::string events;
  for (const auto& loose : disk->Loose()) {
    for (const std::string& json : loose.batch.event_json) events += json;
  }
  EXPECT_THAT(events, ::testing::HasSubstr(R"("kind":"hook_error","place":"recording")"));
  MutexLock lock(disk->mutex);
  EXPECT_EQ(disk->closed, 1);
  EXPECT_EQ(disk->reason, format::EndReason::kFailed);
}

TEST(LedgerTest, WhatAHangingDiskStillHasAtTheEndIsSaidWhenItComesBack) {
  auto disk = std::make_shared<Disk>();
  Mutex gate;
  gate.Lock();
  disk->on_publish = [&] { MutexLock lock(gate); };
  auto training = std::make_unique<Training>(Start(disk, {}), 10);
  for (int i = 0; i < 20; ++i) training->Step();
  training->End(milliseconds(10));
  EXPECT_THAT(training->session().health().first_error, ::testing::HasSubstr("did not answer"));
  training.reset();
  gate.Unlock();
  WaitFor([&] {
    MutexLock lock(disk->mutex);
    return disk->closed == 1;
  });
  EXPECT_EQ(AccountOf(disk.get()).Wrong(20), "");
}

TEST(LedgerTest, StepsThatFoundNoRoomAreSaidWhenTheEndComesAtOnce) {
  auto disk = std::make_shared<Disk>();
  Mutex gate;
  gate.Lock();
  disk->on_publish = [&] { MutexLock lock(gate); };
  Training training(Start(disk, {.items = 5, .bytes = 1U << 20}), 10);
  for (int i = 0; i < 50; ++i) training.Step();
  EXPECT_GT(CounterOf(training.session(), "dropped_steps"), 30U);
  bool done = false;
  std::thread end([&] { done = training.session().EndNow(format::EndReason::kSignal, seconds(60)); });
  WaitFor([&] { return !training.session().health().accepting; });
  gate.Unlock();
  end.join();
  EXPECT_TRUE(done);
  const Account account = AccountOf(disk.get());
  EXPECT_EQ(account.Wrong(50), "");
  EXPECT_EQ(account.named.size(), 50U);
}

TEST(LedgerTest, AnEndAtOnceInTheMiddleOfStepsLosesNoneUntold) {
  for (int turn = 0; turn < 50; ++turn) {
    auto disk = std::make_shared<Disk>();
    disk->on_publish = [] { usleep(100); };
    Training training(Start(disk, {.items = 3, .bytes = 1U << 20}), 10);
    std::atomic<bool> over{false};
    std::atomic<std::int64_t> ended{0};
    std::thread steps([&] {
      while (!over) {
        training.Step();
        ended = training.steps();
      }
    });
    WaitFor([&] { return ended > turn; });
    EXPECT_TRUE(training.session().EndNow(format::EndReason::kSignal, seconds(60)));
    over = true;
    steps.join();
    const Account account = AccountOf(disk.get());
    const auto told = static_cast<std::int64_t>(account.steps.size() + account.Missing());
    EXPECT_GT(told, turn);
    EXPECT_LE(told, training.steps());
    EXPECT_EQ(account.Wrong(told), "");
  }
}

// As when the handler of SIGTERM has interrupted the training there, and it never continues.
TEST(LedgerTest, AnEndAtOnceDoesNotWaitForAThreadThatStandsInEndStep) {
#ifdef LUFF_ALLOCATIONS_ARE_THE_SANITIZERS
  GTEST_SKIP() << "no thread can be held in an allocation";
#endif
  auto disk = std::make_shared<Disk>();
  Mutex gate;
  gate.Lock();
  disk->on_publish = [&] { MutexLock lock(gate); };
  Training training(Start(disk, {.items = 5, .bytes = 1U << 20}), 10);
  for (int i = 0; i < 50; ++i) training.Step();
  std::thread step([&] {
    training.session().BeginStep(Mode::kTrain, 50);
    t_hold = true;
    training.session().EndStep({Mode::kTrain, 50, 50, 50});
  });
  WaitFor([] { return g_held.load(); });
  gate.Unlock();
  static_cast<void>(training.session().EndNow(format::EndReason::kSignal, milliseconds(400)));
  WaitFor([&] {
    MutexLock lock(disk->mutex);
    return disk->closed == 1;
  });
  EXPECT_EQ(AccountOf(disk.get()).Wrong(51), "");
  g_go_on = true;
  step.join();
}

TEST(LedgerTest, RawValuesOfAStepThatFoundNoRoomAreNotThoseOfTheNext) {
  auto disk = std::make_shared<Disk>();
  std::unique_ptr<Session> session = testing::StartSession(disk, kAll);
  const TensorId id = session->DefineTensor("a", Role::kWeight, "", "");
  const LayoutId layout = session->DefineLayout(testing::MakeLayout(DType::kFloat32, {3'000'000}));
  const std::vector<float> values(3'000'000, 1.5F);  // more than a block, so handed over before the end
  const TensorRef ref{id, layout, testing::Bytes(values), 0, 0};
  session->BeginStep(Mode::kTrain, 0);
  session->Capture({&ref, 1});
  session->AbandonStep();
  session->BeginStep(Mode::kTrain, 0);
  session->EndStep({Mode::kTrain, 0, 0, 0});
  ASSERT_TRUE(session->Flush(seconds(60)));
  EXPECT_TRUE(disk->Steps().at(0).batch.index.empty());
}

TEST(LedgerTest, RowsOfAThreadThatHasEndedAreNotLost) {
  auto disk = std::make_shared<Disk>();
  std::unique_ptr<Session> session = testing::StartSession(disk, kSummaries);
  const TensorId id = session->DefineTensor("a", Role::kScalar, "", "");
  constexpr int kThreads = 200;
  session->BeginStep(Mode::kTrain, 0);
  for (int i = 0; i < kThreads; ++i) std::thread([&] { session->Scalar(id, 1); }).join();
  session->EndStep({Mode::kTrain, 0, 0, 0});
  ASSERT_TRUE(session->Flush(seconds(60)));
  EXPECT_EQ(disk->Steps().at(0).batch.scalars.size(), static_cast<std::size_t>(kThreads));
}

TEST(LedgerTest, WhatABatchHoldsIsKeptOnceInOrder) {
  store::LossLedger ledger;
  for (std::uint32_t i = 0; i < 3; ++i) {
    store::StepBatch batch;
    batch.tensors.push_back({i, Role::kWeight, "t" + std::to_string(i), "", "", {}});
    batch.documents.emplace_back("model", std::to_string(i));
    batch.acks.push_back({i, 1, 0, 0, 0});
    batch.summaries.resize(10);
    batch.mark.global_step = i;
    ASSERT_TRUE(ledger.Fold(&batch, true, GapReason::kDiskFull));
    EXPECT_TRUE(batch.summaries.empty());
  }
  store::StepBatch next;
  next.tensors.push_back({3, Role::kWeight, "t3", "", "", {}});
  ledger.Release(0, true, &next);
  EXPECT_TRUE(ledger.empty());
  ASSERT_EQ(next.tensors.size(), 4U);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(next.tensors[i].id, i);
  ASSERT_EQ(next.documents.size(), 1U);
  EXPECT_EQ(next.documents[0].second, "2");
  EXPECT_EQ(next.acks.size(), 3U);
  ASSERT_EQ(next.gaps.size(), 1U);
  EXPECT_EQ(next.gaps[0].count, 3U);
  EXPECT_EQ(next.gaps[0].first_step, 0);
  EXPECT_EQ(next.gaps[0].last_step, 2);
}

/// A directory for a run, in memory where that is possible.
struct Folder {
  Folder() {
    const bool memory = access("/dev/shm", W_OK) == 0;
    std::string name =
        (memory ? std::string("/dev/shm") : std::filesystem::temp_directory_path().string()) + "/luff-XXXXXX";
    if (mkdtemp(name.data()) != nullptr) path = name;
  }
  ~Folder() {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path;
};

Account AccountOfRun(const std::string& run) {
  Account account;
  auto opened = store::RunReader::Open(run);
  if (!opened.ok()) return account;
  (void)(*opened)->Refresh();
  const store::WorkerReader& worker = *(*opened)->workers()[0];
  for (const auto& segment : worker.segments()) {
    for (const auto step : segment->steps().global_step) {
      if (!account.steps.insert(step).second)
        account.damage = "step " + std::to_string(step) + " is there twice";
    }
    for (std::size_t slot = 0; slot < segment->slot_count(); ++slot) {
      account.used.insert(segment->slot_tensor(slot));
      const auto index = segment->Index(slot);
      if (!index.ok()) continue;
      for (std::size_t i = 0; i < index->rows.size(); ++i) {
        const auto rows = index->rows.subspan(i, 1);
        const bool readable = worker.FindLayout(1, rows[0].layout) != nullptr &&
                              worker.ReadPayload(rows, rows[0].raw_bytes).ok();
        if (!readable) account.damage = "a value of tensor " + std::to_string(rows[0].tensor) + " is lost";
      }
    }
  }
  for (const auto& def : worker.definitions()) account.named.insert(def.def.id);
  for (const auto& gap : worker.gaps()) account.Take(gap.row);
  return account;
}

/// A training that records into a new run.
Training TrainInto(const std::string& run, store::WriterOptions options, const QueueLimits& limits) {
  store::RunInfo info;
  info.run_id[0] = 1;
  RC_ASSERT(store::CreateRun(run, info, false, false).ok());
  options.run_path = run;
  auto thread = FileThread::Start();
  Result<std::unique_ptr<store::WorkerWriter>> writer = Unavailable("not opened");
  RC_ASSERT(thread->Run([&] { writer = store::WorkerWriter::Open(options, info); }, std::chrono::minutes(1)));
  RC_ASSERT(writer.ok());
  auto started = SessionImpl::Start(
      *ParseConfigUntrusted(kAll), std::move(writer).value(), 0, std::move(thread), "/", 0,
      [](std::uint64_t) { return std::vector<store::ControlRecord>{}; }, {}, limits);
  RC_ASSERT(started.ok());
  return Training(std::move(started).value(), 50);
}

RC_GTEST_PROP(LedgerProperty, NoMemoryInTheWriterThreadLosesNoStepUntold, ()) {
  t_spared = true;
  Folder folder;
  const std::string run = folder.path + "/run";
  FaultyEnv env;
  store::WriterOptions options;
  options.env = &env;
  options.segment_bytes_meta = 1 << 13;
  Training training = TrainInto(run, options, {});
  const int steps = *rc::gen::inRange(1, 40);
  for (int step = 0; step < steps; ++step) {
    const int choice = *rc::gen::inRange(0, 6);
    if (choice == 0) g_fail_one_of = *rc::gen::inRange<std::uint32_t>(1, 30);
    if (choice == 1) g_fail_one_of = 0;
    training.Step(*rc::gen::inRange<std::size_t>(0, 40));
    if (choice == 2) static_cast<void>(training.session().Flush(seconds(60)));  // false after giving up
  }
  static_cast<void>(training.session().Flush(seconds(60)));
  g_fail_one_of = 0;
  training.End();
  RC_ASSERT(AccountOfRun(run).Wrong(training.steps()) == "");
}

RC_GTEST_PROP(LedgerProperty, EachStepIsInTheRunOrInOneGap, ()) {
  t_spared = true;
  Folder folder;
  const std::string run = folder.path + "/run";
  FaultyEnv env;
  store::WriterOptions options;
  options.env = &env;
  options.segment_bytes_meta = 1 << 14;
  options.sync =
      *rc::gen::arbitrary<bool>() ? store::WriterOptions::Sync::kStep : store::WriterOptions::Sync::kNone;
  const QueueLimits limits{.items = *rc::gen::inRange<std::size_t>(1, 30),
                           .bytes = *rc::gen::inRange<std::uint64_t>(1, 200'000)};
  Training training = TrainInto(run, options, limits);
  const int steps = *rc::gen::inRange(1, 50);
  for (int step = 0; step < steps; ++step) {
    switch (*rc::gen::inRange(0, 16)) {
      case 0: env.fault = FaultyEnv::Fault::kFull; break;
      case 1: env.fault = FaultyEnv::Fault::kIo; break;
      case 2: env.fault = FaultyEnv::Fault::kTorn; break;
      case 3: env.fault = FaultyEnv::Fault::kNoMemory; break;
      case 4:
      case 5: env.fault = FaultyEnv::Fault::kNone; break;
      case 6: env.Hang(); break;
      case 7: env.GoOn(); break;
      case 8:
        env.GoOn();
        RC_ASSERT(training.session().Flush(seconds(60)));
        break;
      default: break;
    }
    training.Step(*rc::gen::inRange<std::size_t>(0, 300));
    RC_ASSERT(CounterOf(training.session(), "queued_bytes") <= limits.bytes + (256U << 10));
  }
  env.GoOn();
  RC_ASSERT(training.session().Flush(seconds(60)));
  env.fault = FaultyEnv::Fault::kNone;
  training.End();
  RC_ASSERT(AccountOfRun(run).Wrong(training.steps()) == "");
}

}  // namespace
}  // namespace luff::capture::ledger_test

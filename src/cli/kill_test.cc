// Tests that a coordinator that dies at any moment leaves no action that only one of two workers carries out.
// The workers are processes with their own sessions. LUFF_KILLS: the number of coordinators (20).
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "luff/actions/coordinator.h"
#include "luff/base/env.h"
#include "luff/capture/session.h"

namespace luff::actions::kill_test {
namespace {

using std::chrono::milliseconds;
constexpr int kMaxCarried = 4096;

struct Carried {
  std::uint64_t control;
  std::int64_t step;
};

/// Memory that the processes share.
struct Shared {
  std::atomic<bool> finish{false};
  std::array<std::atomic<std::int64_t>, 2> step{};    // workers meet here at each step, as in a collective
  std::array<std::atomic<std::int64_t>, 2> passed{};  // step boundaries
  std::array<std::atomic<int>, 2> count{};
  std::array<std::array<Carried, kMaxCarried>, 2> carried{};
};

void TrainUntilToldToFinish(const std::string& run, std::uint32_t worker, Shared* shared) {
  capture::SessionOptions options;
  options.run_path = run;
  options.worker = worker;
  options.world_size = 2;
  options.join = true;
  auto session = capture::Session::Open(options);
  if (!session.ok()) return;
  session.value()->AcceptActions(std::vector<std::string>{"lower_lr"});
  for (std::int64_t step = 0; !shared->finish; ++step) {
    while (shared->step[1 - worker] < step && !shared->finish)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    session.value()->BeginStep(format::Mode::kTrain, step);
    std::this_thread::sleep_for(milliseconds(1));
    session.value()->EndStep({format::Mode::kTrain, step, step, step});
    shared->step[worker] = step + 1;
    if (session.value()->stop_state() != capture::StopState::kNone &&
        session.value()->AtStepBoundary(step + 1) == capture::StopState::kAct) {
      const auto action = session.value()->TakeAction();
      const int n = shared->count[worker];
      if (action && n < kMaxCarried) {
        shared->carried[worker][static_cast<std::size_t>(n)] = {action->control, step + 1};
        shared->count[worker] = n + 1;
        session.value()->ActionDone(action->control, true);
      }
    }
    shared->passed[worker] = step + 1;
  }
  session.value()->Close(format::EndReason::kCompleted, milliseconds(2000));
}

/// Where a coordinator is killed.
enum class Death {
  kBeforePropose,
  kAfterPropose,
  kBeforeDecide,
  kAfterDecide,
  kAnyTime,
  kHeldUp,
  kNever,
  kCount
};

StopSettings Hasty(Death death) {
  StopSettings settings;
  settings.lead_s = 0.1;
  settings.answer_s = 0.5;
  settings.decision_s = 0.3;
  settings.leave_s = 1;
  settings.proposals = 3;
  if (death == Death::kNever) settings.lead_s = 0.3;  // finishes on a busy machine too
  return settings;
}

[[noreturn]] void Coordinate(const std::string& run, const std::string& id, Death death) {
  const auto die_at = [death](Death point) {
    if (death == point) raise(SIGKILL);
  };
  const ControlLog log = LogOf(run);
  Coordinator coordinator(Hasty(death), {[&](const store::ControlRecord& record) {
                                           die_at(Death::kBeforePropose);
                                           auto number = log.write(record);
                                           die_at(Death::kAfterPropose);
                                           return number;
                                         },
                                         [&](const store::ControlRecord& record) {
                                           die_at(Death::kBeforeDecide);
                                           if (death == Death::kHeldUp)
                                             std::this_thread::sleep_for(milliseconds(450));
                                           auto counts = log.decide(record);
                                           die_at(Death::kAfterDecide);
                                           return counts;
                                         }});
  auto trial = query::Trial::Open(run);
  if (!trial.ok()) _exit(1);
  for (int i = 0; i < 10; ++i) {  // learns the workers' rate, as the supervisor does
    const auto news = trial.value()->Refresh();
    static_cast<void>(news);
    for (const query::WorkerInfo& worker : trial.value()->workers())
      coordinator.Observe(Env::Real().NowMonotonicNs(), worker.last_train_step);
    std::this_thread::sleep_for(milliseconds(8));
  }
  coordinator.Request({"lower_lr", id, "test", "", R"({"factor":0.5})"});
  const std::int64_t begin = Env::Real().NowMonotonicNs();
  while (coordinator.busy() && Env::Real().NowMonotonicNs() - begin < 5'000'000'000) {
    const auto news = trial.value()->Refresh();
    static_cast<void>(news);
    const auto workers = trial.value()->workers();
    const auto acks = trial.value()->Acks();
    static_cast<void>(coordinator.Poll(Env::Real().NowMonotonicNs(), 2, workers, acks));
    std::this_thread::sleep_for(milliseconds(2));
  }
  _exit(0);
}

/// Waits about 20 s for `holds`; false if it did not become true.
bool Eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 20'000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

class KillTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "luff-kill-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    run_ = folder_ + "/run";
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_ = new (memory) Shared;
    for (std::uint32_t worker = 0; worker < 2; ++worker) {
      workers_[worker] = fork();
      if (workers_[worker] == 0) {
        TrainUntilToldToFinish(run_, worker, shared_);
        _exit(0);
      }
    }
    ASSERT_TRUE(Eventually([&] { return shared_->step[0] > 2 && shared_->step[1] > 2; }));
  }
  void TearDown() override {
    shared_->finish = true;
    for (const pid_t pid : workers_) waitpid(pid, nullptr, 0);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  int CarriedBy(std::size_t worker, std::uint64_t control, std::int64_t* step) const {
    int times = 0;
    for (int i = 0; i < shared_->count[worker]; ++i) {
      const Carried& one = shared_->carried[worker][static_cast<std::size_t>(i)];
      if (one.control != control) continue;
      ++times;
      *step = one.step;
    }
    return times;
  }

  std::string folder_, run_;
  Shared* shared_ = nullptr;
  std::array<pid_t, 2> workers_{};
};

TEST_F(KillTest, NoActionIsEverSplit) {
  const char* wanted = std::getenv("LUFF_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 20;
  std::uint64_t seen = 0;
  int both = 0;
  int none = 0;
  int split = 0;
  int killed = 0;
  for (int i = 0; i < kills; ++i) {
    const auto death = static_cast<Death>(i % static_cast<int>(Death::kCount));
    const pid_t coordinator = fork();
    if (coordinator == 0) Coordinate(run_, "id" + std::to_string(i), death);
    if (death == Death::kAnyTime) {
      std::this_thread::sleep_for(milliseconds(80 + i * 7 % 160));
      kill(coordinator, SIGKILL);
    }
    int status = 0;
    waitpid(coordinator, &status, 0);
    killed += WIFSIGNALED(status) ? 1 : 0;

    const auto records = store::ReadControl(run_, seen, nullptr);
    ASSERT_TRUE(records.ok());
    for (const store::ControlRecord& proposal : *records) {
      seen = std::max(seen, proposal.number);
      if (proposal.phase != "propose") continue;
      const std::int64_t at = proposal.train_step;
      ASSERT_TRUE(Eventually([&] { return shared_->passed[0] >= at && shared_->passed[1] >= at; }))
          << "a worker hangs at " << shared_->passed[0] << ", " << shared_->passed[1] << "; proposed " << at
          << " by number " << proposal.number;
      std::string decision = "none";
      const auto later = store::ReadControl(run_, proposal.number, nullptr);
      ASSERT_TRUE(later.ok());
      for (const store::ControlRecord& record : *later) {
        seen = std::max(seen, record.number);
        if (record.proposal == proposal.number && decision == "none") decision = record.phase;
      }
      std::array<std::int64_t, 2> step = {-1, -1};
      const int first = CarriedBy(0, proposal.number, &step[0]);
      const int second = CarriedBy(1, proposal.number, &step[1]);
      EXPECT_EQ(first, second) << "split: proposal " << proposal.number << ", death " << i;
      EXPECT_EQ(first, decision == "commit" ? 1 : 0) << "decision " << decision << ", death " << i;
      EXPECT_EQ(step[0], step[1]);
      if (first == 1) {
        EXPECT_EQ(step[0], at);
      }
      ++(first != second ? split : first == 1 ? both : none);
    }
  }
  std::printf(
      "%d coordinators, %d of them killed: %d actions carried out by both workers, %d by none, %d by one\n",
      kills, killed, both, none, split);
  if (kills >= 7) {
    EXPECT_GT(both, 0);
    EXPECT_GT(none, 0);
  }
}

}  // namespace
}  // namespace luff::actions::kill_test

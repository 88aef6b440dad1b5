// Phases: what a thread did adds up to its time, to the nanosecond, whatever is entered and left.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "capture/phase_clock.h"
#include "capture/thread_times.h"
#include "luff/base/env.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define LUFF_TEST_SANITIZED
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define LUFF_TEST_SANITIZED
#endif
#endif

namespace luff::capture {
namespace {

using format::Phase;

std::int64_t Sum(const store::StepPhases& phases) {
  std::int64_t sum = 0;
  for (std::uint32_t i = 0; i < phases.head.rows; ++i) sum += phases.rows[i].duration_ns;
  return sum;
}

const format::PhaseRow* RowOf(const store::StepPhases& phases, Phase phase) {
  for (std::uint32_t i = 0; i < phases.head.rows; ++i) {
    if (phases.rows[i].phase == static_cast<std::uint8_t>(phase)) return &phases.rows[i];
  }
  return nullptr;
}

void Wait(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

/// Runs `body` in a thread of its own, whose clock is new.
void InThread(void (*body)()) { std::thread(body).join(); }

TEST(Phases, ThoseInsideOthersCountOnce_AndAllAddUp) {
  InThread([] {
    PhaseSteps steps;
    EnterPhase(Phase::kForward);
    Wait(2);
    EnterPhase(Phase::kLoss);
    Wait(4);
    LeavePhase(Phase::kLoss);
    LeavePhase(Phase::kForward);
    store::StepPhases phases;
    const PhasesEnd end = steps.EndStep(&phases);
    EXPECT_EQ(Sum(phases), phases.head.wall_ns);
    ASSERT_NE(RowOf(phases, Phase::kLoss), nullptr);
    EXPECT_GE(RowOf(phases, Phase::kLoss)->duration_ns, 4'000'000);
    EXPECT_GE(RowOf(phases, Phase::kForward)->duration_ns, 2'000'000);
    EXPECT_LE(RowOf(phases, Phase::kForward)->duration_ns, phases.head.wall_ns - 4'000'000);
    EXPECT_EQ(RowOf(phases, Phase::kForward)->count, 1);
    EXPECT_GE(RowOf(phases, Phase::kLoss)->start_ns, 2'000'000);
    EXPECT_EQ(RowOf(phases, Phase::kBackward), nullptr);  // absent, not 0
    EXPECT_GT(end.thread, 0);
    store::StepPhases next;
    const PhasesEnd later = steps.EndStep(&next);
    EXPECT_EQ(later.at_ns - next.head.wall_ns, end.at_ns);  // no time between two steps is lost
  });
}

TEST(Phases, AWaitThatIsToldAfterwardsIsTakenOffThePhaseItWasPartOf) {
  InThread([] {
    PhaseSteps steps;
    EnterPhase(Phase::kCompute);
    Wait(4);
    LeavePhase(Phase::kCompute);
    store::StepPhases phases;
    steps.EndStep(&phases);
    const format::PhaseRow compute = *RowOf(phases, Phase::kCompute);
    BeganWithWait(Phase::kForward, 1'000'000, &phases);  // the step has none
    BeganWithWait(Phase::kCompute, 0, &phases);
    EXPECT_EQ(RowOf(phases, Phase::kDataWait), nullptr);
    BeganWithWait(Phase::kCompute, 3'000'000, &phases);
    EXPECT_EQ(Sum(phases), phases.head.wall_ns);
    ASSERT_NE(RowOf(phases, Phase::kDataWait), nullptr);
    EXPECT_EQ(RowOf(phases, Phase::kDataWait)->duration_ns, 3'000'000);
    EXPECT_EQ(RowOf(phases, Phase::kDataWait)->start_ns, compute.start_ns);
    EXPECT_EQ(RowOf(phases, Phase::kCompute)->duration_ns, compute.duration_ns - 3'000'000);
    EXPECT_EQ(RowOf(phases, Phase::kCompute)->start_ns, compute.start_ns + 3'000'000);
    BeganWithWait(Phase::kCompute, std::int64_t{1} << 62U, &phases);  // more than there is
    EXPECT_EQ(Sum(phases), phases.head.wall_ns);
    EXPECT_EQ(RowOf(phases, Phase::kCompute)->duration_ns, 0);
    EXPECT_EQ(RowOf(phases, Phase::kDataWait)->count, 2);
    phases.head.rows = 0;  // nothing is recorded
    BeganWithWait(Phase::kCompute, 1, &phases);
    EXPECT_EQ(phases.head.rows, 0U);
  });
}

TEST(Phases, GarbageThatIsCollectedBeforeBelongsToNoStep) {
  InThread([] {
    EnterPhase(Phase::kGc);
    LeavePhase(Phase::kGc);
    Wait(20);
    const std::int64_t before = Env::Real().NowMonotonicNs();
    PhaseSteps steps;
    EnterPhase(Phase::kForward);
    LeavePhase(Phase::kForward);
    store::StepPhases phases;
    const PhasesEnd end = steps.EndStep(&phases);
    EXPECT_LE(phases.head.wall_ns, end.at_ns - before);
  });
}

TEST(Phases, AnyOrderOfCallsAddsUp) {
  InThread([] {
    std::mt19937 random(20);
    PhaseSteps one, other;
    for (int round = 0; round < 3000; ++round) {
      const auto phase = static_cast<Phase>(random() % 20);  // some are none
      switch (random() % 6) {
        case 5: EnterWait(format::WaitSubject::Of(static_cast<std::uint32_t>(random()))); break;
        case 0:
        case 1: EnterPhase(phase); break;
        case 2:
        case 3: LeavePhase(phase); break;
        default: {
          store::StepPhases phases;
          (random() % 2 == 0 ? one : other).EndStep(&phases);
          ASSERT_EQ(Sum(phases), phases.head.wall_ns) << round;
          for (std::uint32_t i = 0; i < phases.head.rows; ++i) ASSERT_GE(phases.rows[i].duration_ns, 0);
        }
      }
    }
  });
}

TEST(Phases, WhatIsNeverLeftEndsWithWhatItIsInside) {
  InThread([] {
    PhaseSteps steps;
    EnterPhase(Phase::kDataWait);
    EnterPhase(Phase::kGc);  // its end is not told
    LeavePhase(Phase::kDataWait);
    store::StepPhases phases;
    steps.EndStep(&phases);
    Wait(1);
    steps.EndStep(&phases);
    EXPECT_EQ(RowOf(phases, Phase::kGc), nullptr);
    EnterPhase(Phase::kOptimizer);  // an update that raised
    EnterPhase(Phase::kOptimizer);
    LeavePhase(Phase::kOptimizer);
    steps.EndStep(&phases);
    Wait(1);
    phases = {};
    steps.EndStep(&phases);
    EXPECT_EQ(RowOf(phases, Phase::kOptimizer), nullptr);
    for (int i = 0; i < 100; ++i) EnterPhase(Phase::kForward);
    for (int i = 0; i < 100; ++i) LeavePhase(Phase::kForward);
    steps.EndStep(&phases);
    Wait(1);
    phases = {};
    steps.EndStep(&phases);
    EXPECT_EQ(RowOf(phases, Phase::kForward), nullptr);
  });
}

TEST(Phases, ALaterSessionBeginsWithItsOwnFirstStep) {
  InThread([] {
    PhaseSteps first;
    EnterPhase(Phase::kDataStart);  // before its first step
    Wait(2);
    LeavePhase(Phase::kDataStart);
    first.BeginOnce();
    store::StepPhases phases;
    const PhasesEnd end = first.EndStep(&phases);
    EXPECT_NE(RowOf(phases, Phase::kDataStart), nullptr);
    Wait(5);
    PhaseSteps second;
    second.BeginOnce();
    phases = {};
    const PhasesEnd later = second.EndStep(&phases);
    EXPECT_LE(phases.head.wall_ns, later.at_ns - end.at_ns - 5'000'000);
    EXPECT_EQ(Sum(phases), phases.head.wall_ns);
  });
}

TEST(Phases, WaitsAreToldApartByTheirBatch) {
  InThread([] {
    PhaseSteps steps;
    for (std::uint32_t i = 0; i < 3; ++i) {
      EnterWait({.loader = 1, .worker = i % 2, .ready = 0});
      Wait(2);
      if (i == 1) {
        EnterPhase(Phase::kGc);  // not part of the wait
        Wait(4);
        LeavePhase(Phase::kGc);
        EnterWait({.loader = 2});  // a dataset that uses a loader
        Wait(3);
        LeavePhase(Phase::kDataWait);
      }
      LeavePhase(Phase::kDataWait);
    }
    store::StepPhases phases;
    steps.EndStep(&phases);
    EXPECT_EQ(Sum(phases), phases.head.wall_ns);
    std::map<std::uint32_t, std::pair<int, std::int64_t>> seen;  // by loader and worker
    for (std::uint32_t i = 0; i < phases.head.rows; ++i) {
      if (phases.rows[i].phase != static_cast<std::uint8_t>(Phase::kDataWait)) continue;
      const auto of = format::WaitSubject::Of(phases.rows[i].subject);
      EXPECT_EQ(of.ready, of.loader == 1 ? 0U : format::WaitSubject::kNoReady);
      seen[of.loader * 10 + (of.worker == format::WaitSubject::kNoWorker ? 9 : of.worker)] = {
          phases.rows[i].count, phases.rows[i].duration_ns};
    }
    ASSERT_EQ(seen.size(), 3U);
    EXPECT_EQ(seen[10].first, 2);
    EXPECT_GE(seen[10].second, 4'000'000);
    EXPECT_EQ(seen[11].first, 1);
    EXPECT_GE(seen[11].second, 2'000'000);
    EXPECT_LT(seen[11].second, phases.head.wall_ns - 11'000'000);
    EXPECT_GE(seen[29].second, 3'000'000);
    for (std::uint32_t i = 0; i < 100; ++i) {
      EnterWait({.loader = i});
      LeavePhase(Phase::kDataWait);
    }
    phases = {};
    steps.EndStep(&phases);
    EXPECT_EQ(Sum(phases), phases.head.wall_ns);
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < phases.head.rows; ++i)
      count += phases.rows[i].phase == static_cast<std::uint8_t>(Phase::kDataWait) ? phases.rows[i].count : 0;
    EXPECT_EQ(count, 100U);
  });
}

TEST(Phases, CaptureCountsAsLuff_AndBeginsNoClock) {
  InThread([] {
    PhaseSteps steps;
    EnterLuff(Env::Real().NowMonotonicNs());
    store::StepPhases phases;
    EXPECT_EQ(steps.EndStep(&phases).thread, 0);
    EnterPhase(Phase::kForward);
    EnterLuff(Env::Real().NowMonotonicNs());
    Wait(2);
    LeaveLuff(Env::Real().NowMonotonicNs());
    LeavePhase(Phase::kForward);
    steps.EndStep(&phases);
    ASSERT_NE(RowOf(phases, Phase::kLuff), nullptr);
    EXPECT_GE(RowOf(phases, Phase::kLuff)->duration_ns, 2'000'000);
    EXPECT_EQ(Sum(phases), phases.head.wall_ns);
  });
}

/// The kernel kills this process at any system call from here on, except its end. False: it cannot.
bool ForbidSystemCalls() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// How a child ends that makes no system call while it does this, as waitpid says.
int EndWithoutSystemCalls(void (*body)()) {
  const pid_t child = fork();
  if (child == 0) {
    EnterPhase(Phase::kForward);  // a thread's clock is made once
    LeavePhase(Phase::kForward);
    body();  // what it allocates then comes from memory that it has had
    if (!ForbidSystemCalls()) _exit(2);
    body();
    syscall(SYS_exit, 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(Phases, TheTrainingThreadMakesNoSystemCall) {
#ifdef LUFF_TEST_SANITIZED
  GTEST_SKIP() << "sanitizers make some of their own";
#endif
  if (EndWithoutSystemCalls([] { (void)Env::Real().NowMonotonicNs(); }) != 0)
    GTEST_SKIP() << "this system cannot forbid system calls, or reads its clock by one";
  EXPECT_NE(EndWithoutSystemCalls([] { (void)getppid(); }), 0);
  const int status = EndWithoutSystemCalls([] {
    PhaseSteps steps;
    for (std::uint32_t step = 0; step < 200; ++step) {
      EnterWait({.loader = 0, .worker = step % 4, .ready = 1});
      LeavePhase(Phase::kDataWait);
      for (const Phase phase : {Phase::kZeroGrad, Phase::kForward, Phase::kLoss, Phase::kBackward}) {
        EnterPhase(phase);
        LeavePhase(phase);
      }
      EnterLuff(Env::Real().NowMonotonicNs());
      LeaveLuff(Env::Real().NowMonotonicNs());
      store::StepPhases phases;
      steps.EndStep(&phases);
    }
  });
  EXPECT_EQ(status, 0) << "killed by signal " << WTERMSIG(status);
}

TEST(Phases, AThreadThatEnteredNoneHasNone) {
  InThread([] {
    PhaseSteps steps;
    store::StepPhases phases;
    EXPECT_EQ(steps.EndStep(&phases).thread, 0);
    EXPECT_EQ(phases.head.rows, 0U);
    LeavePhase(Phase::kForward);
  });
}

TEST(Phases, AChildForgetsWhatItsParentDid) {
  InThread([] {
    PhaseSteps steps;
    EnterPhase(Phase::kDataStart);
    ForgetPhases();
    Wait(1);
    store::StepPhases phases;
    steps.EndStep(&phases);
    EXPECT_EQ(RowOf(phases, Phase::kDataStart), nullptr);
    EXPECT_EQ(Sum(phases), phases.head.wall_ns);
  });
}

ThreadTimes::Counters g_counters;
int g_reads = 0;
std::optional<ThreadTimes::Counters> Given(std::int32_t) {
  ++g_reads;
  return g_counters;
}

TEST(ThreadTimes, StepsShareWhatTheCountersGrewBy) {
  constexpr std::int64_t kMs = 1'000'000;
  g_reads = 0;
  ThreadTimes times(&Given);
  store::StepPhases phases;
  std::int64_t cpu = 0, queue = 0, faults = 0;
  for (std::int64_t step = 1; step <= 100; ++step) {
    const std::int64_t now = step * 10 * kMs;
    g_counters = {now / 2, now / 10, step / 20};
    phases.head = {10 * kMs, -1, -1, -1, 1, 1, format::kNoId, 0};
    times.FillIn({now, 7}, now, &phases);
    EXPECT_EQ(phases.head.cpu_ns < 0, step == 1);  // it began before the first reading
    cpu += std::max<std::int64_t>(phases.head.cpu_ns, 0);
    queue += std::max<std::int64_t>(phases.head.run_queue_ns, 0);
    if (phases.head.major_faults != format::kNoId) faults += phases.head.major_faults;
  }
  EXPECT_NEAR(static_cast<double>(faults), 5, 1);
  EXPECT_NEAR(static_cast<double>(cpu), 495e6, 26e6);  // all but the first step, and what was not read yet
  EXPECT_NEAR(static_cast<double>(queue), 99e6, 6e6);
  EXPECT_LE(g_reads, 27);  // at most every 40 ms
}

TEST(ThreadTimes, AThreadThatIsNotThereHasNone) {
  EXPECT_FALSE(ThreadTimes::ReadKernel(-1));
  // There is no schedstat in some sandboxes.
  if (const auto own = ThreadTimes::ReadKernel(gettid())) {
    EXPECT_GE(own->major_faults, 0);
  }
  ThreadTimes times([](std::int32_t) { return std::optional<ThreadTimes::Counters>(); });
  store::StepPhases phases;
  phases.head = {5, -1, -1, -1, 1, 1, format::kNoId, 0};
  times.FillIn({100, 7}, 100, &phases);
  times.FillIn({105, 7}, 200'000'000, &phases);
  EXPECT_EQ(phases.head.cpu_ns, -1);
}

}  // namespace
}  // namespace luff::capture

// Stacks: tables of lines, memory that is not there, what the kernel says of threads, when a stand is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <thread>

#include "capture/phase_clock.h"
#include "capture/stacks/code_lines.h"
#include "capture/stacks/kernel_view.h"
#include "capture/stacks/line_sampler.h"
#include "capture/stacks/process_memory.h"
#include "capture/stacks/python_stacks.h"
#include "capture/stacks/stall_watch.h"

namespace luff::capture::stacks_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Documents = std::vector<std::pair<std::string, std::string>>;

constexpr std::int64_t kSecond = 1'000'000'000;

std::vector<std::byte> Table(std::initializer_list<int> bytes) {
  std::vector<std::byte> out;
  for (const int byte : bytes) out.push_back(static_cast<std::byte>(byte));
  return out;
}

TEST(CodeLines, TheTableOf311) {
  // Two units on line 10 + 1, one without a line, three on the next line, two after a long step back by 5.
  const auto table = Table({0x80 | 11 << 3 | 1, 0, 0, 0x80 | 15 << 3, 0x80 | 11 << 3 | 2, 0, 0,
                            0x80 | 14 << 3 | 1, (5 << 1) | 1, 0, 0, 0});
  const auto line = [&](std::int64_t at) { return LineOfUntrusted(table, 0x030B, 10, at); };
  EXPECT_EQ(line(-1), 10);
  EXPECT_EQ(line(0), 11);
  EXPECT_EQ(line(1), 11);
  EXPECT_EQ(line(2), -1);
  EXPECT_EQ(line(5), 12);
  EXPECT_EQ(line(6), 7);
  EXPECT_EQ(line(8), -1);  // beyond the table
}

TEST(CodeLines, TheTableOf310) {
  const auto table = Table({4, 1, 2, 0x80, 6, 0xFF});  // two units on +1, one without a line, three on -1
  const auto line = [&](std::int64_t at) { return LineOfUntrusted(table, 0x030A, 10, at); };
  EXPECT_EQ(line(1), 11);
  EXPECT_EQ(line(2), -1);
  EXPECT_EQ(line(3), 10);
  EXPECT_EQ(line(6), -1);
}

TEST(ProcessMemory, WhatIsNotMappedIsNoCrash) {
  ProcessMemory memory(getpid());
  int value = 41;
  EXPECT_EQ(memory.Get<int>(reinterpret_cast<std::uintptr_t>(&value)), 41);
  EXPECT_EQ(memory.Get<int>(0), std::nullopt);
  EXPECT_EQ(memory.Get<int>(16), std::nullopt);
  EXPECT_EQ(memory.Get<int>(~std::uint64_t{0} - 2), std::nullopt);
  const long page = sysconf(_SC_PAGESIZE);
  void* gone = mmap(nullptr, static_cast<std::size_t>(page), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  munmap(gone, static_cast<std::size_t>(page));
  EXPECT_EQ(memory.Get<int>(reinterpret_cast<std::uintptr_t>(gone)), std::nullopt);
  EXPECT_FALSE(memory.refused());
  // A span that ends in a hole is read as far as it goes.
  const auto size = static_cast<std::size_t>(page);
  void* two = mmap(nullptr, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(two, MAP_FAILED);
  munmap(static_cast<char*>(two) + size, size);
  std::array<std::byte, 16> bytes{};
  EXPECT_EQ(memory.Read(reinterpret_cast<std::uintptr_t>(two) + size - 4, bytes), 4U);
  munmap(two, size);
}

/// Ends this process at `call`, as a service's policy does with calls that it does not list.
bool KillAt(unsigned call) {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(ProcessMemory, IsReadUnderAPolicyThatEndsTheProcess_AndOfAChild) {
  int value = 41;
  const auto address = reinterpret_cast<std::uintptr_t>(&value);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    value = 42;
    char result = 'n';  // not known here: filters are not allowed
    if (KillAt(SYS_process_vm_readv)) result = ProcessMemory(getpid()).Get<int>(address) == 42 ? 'y' : 'x';
    static_cast<void>(!write(pipe_ends[1], &result, 1));
    pause();
    _exit(0);
  }
  close(pipe_ends[1]);
  char result = 0;
  EXPECT_EQ(read(pipe_ends[0], &result, 1), 1);  // else the child was ended
  EXPECT_NE(result, 'x');
  ProcessMemory memory(child);
  if (!memory.refused()) {
    EXPECT_EQ(memory.Get<int>(address), 42);
  }
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  close(pipe_ends[0]);
  EXPECT_EQ(memory.Get<int>(address), std::nullopt);
  EXPECT_TRUE(ProcessMemory(child).refused());
}

/// An interpreter as 3.13 has it, whose pointers a test can bend.
struct FakePython {
  struct Object {
    std::uint64_t count = 1, type = 0, size = 0;
  };
  struct Text {
    std::uint64_t count = 1, type = 2, length = 0, hash = 0;
    std::uint32_t state = 0, pad = 0;
    char data[32] = {};
  };
  struct Bytes {
    Object head{1, 3, 0};
    std::uint8_t data[16] = {};
  };
  struct Code {
    std::uint64_t count = 1, type = 1, file = 0, name = 0;
    std::int32_t first_line = 7, pad = 0;
    std::uint64_t lines = 0;
    std::uint16_t instructions[4] = {};
  };
  struct Frame {
    std::uint64_t code = 0, previous = 0, instruction = 0;
  };
  struct Thread {
    std::uint64_t next = 0, native = 5, pthread = 6, frame = 0;
  };
  template <typename T>
  static std::uint64_t At(const T& of) {
    return reinterpret_cast<std::uintptr_t>(&of);
  }

  FakePython() {
    file.length = 4;
    std::memcpy(file.data, "t.py", 4);
    name.length = 1;
    name.data[0] = 'f';
    file.state = name.state = 1U << 0 | 1U << 1 | 1U << 2;
    lines.head.size = 1;
    lines.data[0] = 0x80 | 11 << 3 | 3;
    code.file = At(file);
    code.name = At(name);
    code.lines = At(lines);
    inner = {At(code), At(outer), At(code.instructions)};
    outer = inner;
    outer.previous = 0;
    thread.frame = At(inner);
    interpreter = At(thread);
    layout.version = 0x030D;
    layout.why = "";
    layout.interpreter = At(interpreter);
    layout.next_thread = 0;
    layout.native_id = 8;
    layout.pthread_id = 16;
    layout.frame = 24;
    layout.current = -1;
    layout.previous = 8;
    layout.code = 0;
    layout.instruction = 16;
    layout.instruction_size = 8;
    layout.owner = -1;
    layout.file_name = 16;
    layout.name = 24;
    layout.first_line = 32;
    layout.lines = 40;
    layout.instructions = 48;
    layout.type = 8;
    layout.size = 16;
    layout.code_type = 1;
    layout.text_type = 2;
    layout.bytes_type = 3;
    layout.text_length = 16;
    layout.text_state = 32;
    layout.compact_mask = 1;
    layout.ascii_mask = 2;
    layout.kind_mask = 28;
    layout.kind_shift = 2;
    layout.ascii_data = layout.compact_data = 40;
    layout.bytes_data = 24;
  }
  [[nodiscard]] std::vector<PythonThread> Read() const {
    ProcessMemory memory(getpid());
    return ReadStacksUntrusted(&memory, layout);
  }

  Text file, name;
  Bytes lines;
  Code code;
  Frame inner, outer;
  Thread thread;
  std::uint64_t interpreter = 0;
  LuffPythonLayout layout{};
};

TEST(PythonStacks, FramesAreReadFromMemory) {
  const FakePython python;
  const auto threads = python.Read();
  ASSERT_EQ(threads.size(), 1U);
  EXPECT_EQ(threads[0].native, 5);
  const PythonFrame frame{"f", "t.py", 8};
  EXPECT_THAT(threads[0].frames, ElementsAre(frame, frame));
}

TEST(PythonStacks, BentPointersGiveNoFrames_AndAnEnd) {
  const auto frames = [](void (*bend)(FakePython*)) {
    FakePython python;
    bend(&python);
    const auto threads = python.Read();
    return threads.empty() ? 0 : threads[0].frames.size();
  };
  EXPECT_EQ(frames([](FakePython* p) { p->interpreter = 0; }), 0U);
  EXPECT_EQ(frames([](FakePython* p) { p->interpreter = 12345; }), 0U);
  EXPECT_EQ(frames([](FakePython* p) { p->inner.code = 8; }), 0U);
  EXPECT_EQ(frames([](FakePython* p) { p->code.type = 9; }), 0U);
  EXPECT_EQ(frames([](FakePython* p) { p->file.state = 0; }), 0U);
  EXPECT_EQ(frames([](FakePython* p) { p->file.length = ~0ULL; }), 0U);
  EXPECT_EQ(frames([](FakePython* p) { p->layout.version = 0; }), 0U);
  EXPECT_EQ(frames([](FakePython* p) { p->lines.head.size = ~0ULL; }), 2U);  // only the lines are lost
  EXPECT_EQ(frames([](FakePython* p) { p->outer.previous = FakePython::At(p->inner); }), kMaxFrames);
  EXPECT_EQ(frames([](FakePython* p) { p->thread.next = FakePython::At(p->thread); }), 2U);
}

TEST(KernelView, CallsAndConnectionsAreRead) {
  std::string call;
  EXPECT_EQ(ParseCallUntrusted(std::to_string(SYS_read) + " 0x1f 0x7ffe 0x1 0x0", &call), 31);
  EXPECT_EQ(call, "read");
  EXPECT_EQ(ParseCallUntrusted(std::to_string(SYS_futex) + " 0x1f", &call), -1);
  EXPECT_EQ(call, "futex");
  EXPECT_EQ(ParseCallUntrusted("100000 0x1", &call), -1);
  EXPECT_EQ(call, "syscall 100000");
  for (const char* text : {"running\n", "", "-1 0x7", "0", "0 ", "0 0xfffffffffffffffffff"}) {
    call = "";
    EXPECT_EQ(ParseCallUntrusted(text, &call), -1) << text;
  }
  const std::string table =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
      "   0: 0100007F:A1B2 0400000A:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0\n"
      "   1: 00000000000000000000000001000000:A1B2 0000000000000000FFFF00000400000A:0050 01 0:0 0:0 0 0 0 12 "
      "1\n"
      "   2: 00000000000000000000000001000000:A1B2 000080FE000000000000000001000000:0050 01 0:0 0:0 0 0 0 13 "
      "1\n"
      "   3: x";
  EXPECT_EQ(PeerInTableUntrusted(table, 4711), "10.0.0.4:8080");
  EXPECT_EQ(PeerInTableUntrusted(table, 12), "10.0.0.4:80");
  EXPECT_EQ(PeerInTableUntrusted(table, 13), "[fe80:0:0:0:0:0:0:1]:80");
  EXPECT_EQ(PeerInTableUntrusted(table, 14), "");
}

TEST(KernelView, AThreadThatReadsAPipeIsSeen) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  std::atomic<std::int32_t> number{0};
  std::thread reader([&] {
    number = static_cast<std::int32_t>(syscall(SYS_gettid));
    char byte = 0;
    EXPECT_EQ(read(pipe_ends[0], &byte, 1), 1);
  });
  KernelThread seen;
  for (int i = 0; i < 100'000 && seen.call != "read"; ++i) {
    if (number != 0) seen = ThreadOf(getpid(), number);
    std::this_thread::yield();
  }
  EXPECT_EQ(write(pipe_ends[1], "x", 1), 1);
  reader.join();
  EXPECT_EQ(seen.call, "read");
  EXPECT_EQ(seen.state, 'S');
  EXPECT_THAT(seen.on, HasSubstr("pipe:["));
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST(StallWatch, TellsAfterItsTime_AgainAfterTwice_AndForgetsWithAStep) {
  StallWatch watch(0, kSecond);
  Documents told;
  watch.OnStep(4, kSecond / 100);
  watch.Look(kSecond / 2, 5, 0, &told);  // the step is progress
  watch.Look(kSecond, 5, 0, &told);
  EXPECT_THAT(told, IsEmpty());
  watch.Look(3 * kSecond / 2, 5, 0, &told);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].first, "stall");
  EXPECT_THAT(told[0].second, HasSubstr("\"after_step\":4,\"seconds\":1.0"));
  EXPECT_THAT(told[0].second, HasSubstr("no Python in this process"));
  EXPECT_THAT(told[0].second, HasSubstr("\"trains\":true"));
  watch.Look(2 * kSecond, 5, 0, &told);
  EXPECT_EQ(told.size(), 1U);
  watch.Look(5 * kSecond / 2, 5, 0, &told);
  EXPECT_EQ(told.size(), 2U);
  watch.Look(3 * kSecond, 6, 0, &told);
  watch.Look(4 * kSecond - 1, 6, 0, &told);
  EXPECT_EQ(told.size(), 2U);
}

TEST(StallWatch, LongStepsAreNoStand) {
  StallWatch watch(0, kSecond);
  Documents told;
  for (int i = 0; i < 5; ++i) watch.OnStep(i, kSecond);
  watch.Look(1, 5, 0, &told);
  watch.Look(19 * kSecond, 5, 0, &told);
  EXPECT_THAT(told, IsEmpty());
  watch.Look(21 * kSecond, 5, 0, &told);
  EXPECT_EQ(told.size(), 1U);
}

TEST(StallWatch, LooksAreBounded) {
  StallWatch watch(0, kSecond);
  Documents told;
  for (std::int64_t at = 1; at < 1'000'000; ++at) watch.Look(at * kSecond, 0, 0, &told);
  EXPECT_EQ(told.size(), 12U);
}

TEST(StallWatch, ATrainingThatPausesInEachEpochIsToldOfSeldom) {
  StallWatch watch(0, kSecond);
  Documents told;
  std::int64_t now = 0;
  std::uint64_t steps = 0;
  const auto pause = [&](std::int64_t seconds) {
    watch.Look(now, ++steps, 0, &told);
    for (std::int64_t i = 0; i < seconds; ++i) watch.Look(now += kSecond, steps, 0, &told);
  };
  for (int epoch = 0; epoch < 1000; ++epoch) pause(3);
  EXPECT_EQ(told.size(), 16U * 2 + 16U);  // after 1 s and 2 s, then after 2 s
  told.clear();
  pause(5);
  EXPECT_EQ(told.size(), 1U);  // a longer one is told
}

TEST(LineSampler, CountsTheTrainingsOwnLine_WithinBounds) {
  LineSampler sampler;
  const PythonFrame library{"get", "/v/lib/python3.11/queue.py", 3}, own{"log", "/jobs/train.py", 88};
  for (int i = 0; i < 3; ++i) sampler.Count(format::Phase::kOther, {library, own});
  for (int i = 0; i < 1000; ++i) sampler.Count(format::Phase::kDataWait, {{"f", "/a.py", i}});
  Documents told;
  sampler.Tell(0, false, &told);
  sampler.Tell(1, true, &told);  // nothing new
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0].second, HasSubstr(R"({"samples":1003,"elsewhere":745)"));
  EXPECT_THAT(told[0].second,
              HasSubstr(R"("file":"/jobs/train.py","line":88,"function":"log","inside":"get","count":3)"));
}

TEST(Phases, AnotherThreadSeesWhatAThreadDoes) {
  std::atomic<std::int32_t> number{0};
  std::atomic<bool> go_on{false};
  std::thread other([&] {
    EnterPhase(format::Phase::kDataWait);
    number = static_cast<std::int32_t>(syscall(SYS_gettid));
    while (!go_on) std::this_thread::yield();
    LeavePhase(format::Phase::kDataWait);
  });
  while (number == 0) std::this_thread::yield();
  const auto now = NowOf(number);
  go_on = true;
  other.join();
  ASSERT_TRUE(now);
  EXPECT_EQ(now->phase, format::Phase::kDataWait);
  EXPECT_EQ(NowOf(number), std::nullopt);  // it has ended
  EXPECT_EQ(NowOf(0), std::nullopt);
}

}  // namespace

}  // namespace luff::capture::stacks_test

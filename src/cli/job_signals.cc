#include "cli/job_signals.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/process_tree.h"
#include "luff/base/env.h"

namespace luff::cli {
namespace {

constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
constexpr std::array kStops = {SIGTSTP, SIGTTIN, SIGTTOU};
constexpr std::int64_t kStopsSoonNs = 10'000'000'000;  // a command may restore the screen before it stops
constexpr useconds_t kSettleUs = 5'000;
constexpr useconds_t kOneByOneUs = 20'000;

std::uint32_t Bit(int number) { return 1U << static_cast<unsigned>(number); }

bool IsStop(int number) { return std::find(kStops.begin(), kStops.end(), number) != kStops.end(); }

void Mask(int how, int number) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  sigprocmask(how, &one, nullptr);
}

std::int64_t NowNs() { return Env::Real().NowMonotonicNs(); }

/// Changes the command line of this process, so that searching for luff by name does not find it.
void Rename(const char* name) {
  const int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  std::size_t length = 0;
  char text[4096];
  for (ssize_t got = 0; file >= 0 && (got = read(file, text, sizeof(text))) > 0;)
    length += static_cast<std::size_t>(got);
  prctl(PR_SET_NAME, name);
  if (length < std::strlen(name) + 1) return;
  std::memset(program_invocation_name, 0, length);  // argv[0]; the other arguments follow it in memory
  std::memcpy(program_invocation_name, name, std::strlen(name));
}

}  // namespace

void Witness::Start() {
  End();
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ != 0) return;
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  Rename("job-witness");
#ifdef SYS_close_range
  syscall(SYS_close_range, 0U, ~0U, 0U);  // other processes would wait for the end of inherited pipes
#endif
  while (true) pause();
}

void Witness::End() noexcept {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  WaitFor(pid_);
  pid_ = -1;
}

bool Witness::Got(int number) const noexcept {
  if (pid_ <= 0) return false;
  const std::string status = ReadKernelFile(fmt::format("/proc/{}/status", pid_));
  unsigned long long pending = 0;
  if (const std::size_t at = status.find("\nShdPnd:"); at != std::string::npos)
    std::sscanf(status.c_str() + at, "\nShdPnd: %llx", &pending);
  return ((pending >> static_cast<unsigned>(number - 1)) & 1U) != 0;
}

JobSignals::JobSignals() : alive_ns_(NowNs()) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGCHLD, SIGCONT}) sigaddset(&set, number);
  for (const int number : kStops) sigaddset(&set, number);
  for (const int number : kForwarded) {
    struct sigaction now{};
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&set, number);
  }
  sigprocmask(SIG_BLOCK, &set, &at_start_.mask);
  at_start_.pipe = signal(SIGPIPE, SIG_IGN);
  at_start_.child = signal(SIGCHLD, SIG_DFL);  // if ignored, waitpid could not tell how the command ended
  fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  witness_.Start();
}

JobSignals::~JobSignals() {
  if (fd_ >= 0) close(fd_);
}

JobSignals::Asked JobSignals::Take() {
  Asked asked;
  const std::uint32_t before = group_;
  group_ = 0;
  signalfd_siginfo info{};
  while (read(fd_, &info, sizeof(info)) == sizeof(info))
    TakeOne(static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL, &asked);
  if (group_ != 0) witness_.Start();  // these signals stay pending in the old one
  group_ |= before;
  alive_ns_ = NowNs();
  return asked;
}

void JobSignals::TakeOne(int number, bool from_kernel, Asked* asked) {
  if (number == SIGCHLD) return;
  if (number == SIGCONT) {
    away_ns_ += std::max<std::int64_t>(NowNs() - alive_ns_, 0);
    alive_ns_ = NowNs();
    stop_ = 0;
    return;
  }
  bool for_group = from_kernel || witness_.Got(number);
  if (!for_group && command_ > 0) {  // a cgroup's processes may be signalled one by one, us first
    usleep(kOneByOneUs);
    for_group = witness_.Got(number);
  }
  if (for_group) group_ |= Bit(number);
  if (IsStop(number)) {
    stop_ = number;
    stop_ns_ = NowNs();
  }
  if (command_ > 0) {
    if (!for_group) kill(command_, number);
    return;
  }
  const bool leave = !IsStop(number) && number != SIGUSR1 && number != SIGUSR2;
  asked->leave = asked->leave || leave;
  if (leave) asked->number = number;
  if (leave && !for_group) asked->alone = number;
}

void JobSignals::StopWithCommand(const std::function<void()>& before) {
  if (stop_ == 0 || NowNs() - stop_ns_ > kStopsSoonNs || (!stopped_ && command_ > 0)) return;
  const int number = std::exchange(stop_, 0);
  before();
  alive_ns_ = NowNs();
  Mask(SIG_UNBLOCK, number);
  raise(number);  // returns when the job continues
  Mask(SIG_BLOCK, number);
  stopped_ = false;
  usleep(kSettleUs);  // a shell continues the whole group; a SIGCONT to us alone is meant for the job
  for (const BelowProcess& one : ProcessesBelow(getpid())) {
    if (one.pid == command_ && one.stopped) kill(0, SIGCONT);
  }
}

std::int64_t JobSignals::RunningNs() noexcept { return NowNs() - away_ns_; }

bool JobSignals::InForeground(int fd) noexcept {
  const pid_t group = tcgetpgrp(fd);
  return group < 0 || group == getpgrp();
}

void JobSignals::DieAsCommand(int number) const noexcept {
  if (number <= 0 || number >= 32 || (group_ & Bit(number)) == 0) return;
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  signal(number, SIG_DFL);
  raise(number);
  Mask(SIG_UNBLOCK, number);
}

}  // namespace luff::cli

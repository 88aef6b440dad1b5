#include "rules/own/signal_shield.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <set>

#include "base/process_tree.h"

namespace luff::rules {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kMachine = AUDIT_ARCH_X86_64;
constexpr std::uint32_t kOtherCalls = 0x40000000;  // x32 calls have their own numbers
#elif defined(__aarch64__)
constexpr std::uint32_t kMachine = AUDIT_ARCH_AARCH64;
constexpr std::uint32_t kOtherCalls = ~0U;
#else
constexpr std::uint32_t kMachine = 0;  // unknown machine: no filter
constexpr std::uint32_t kOtherCalls = ~0U;
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434  // the same on all machines
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

constexpr std::size_t kMostAbove = 60;  // pids and groups; a jump in a filter spans at most 255 instructions
constexpr std::uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM;

/// Offset of the lower 32 bits of an argument; a pid has no more.
std::uint32_t OffsetOfArgument(int number) {
  const std::size_t offset = offsetof(seccomp_data, args) + static_cast<std::size_t>(number) * 8;
  return static_cast<std::uint32_t>(std::endian::native == std::endian::little ? offset : offset + 4);
}

sock_filter Do(int code, std::uint32_t value) { return {static_cast<std::uint16_t>(code), 0, 0, value}; }
sock_filter Load(std::uint32_t offset) { return Do(BPF_LD | BPF_W | BPF_ABS, offset); }
sock_filter Return(std::uint32_t what) { return Do(BPF_RET | BPF_K, what); }
/// `then`, `otherwise`: how many instructions to skip if the comparison holds, and if not.
sock_filter If(int comparison, std::uint32_t value, std::size_t then, std::size_t otherwise) {
  return {static_cast<std::uint16_t>(BPF_JMP | comparison | BPF_K), static_cast<std::uint8_t>(then),
          static_cast<std::uint8_t>(otherwise), value};
}

/// Pids and process groups of this process and its ancestors; if there are too many, of the nearest ones.
std::set<std::uint32_t> Above() {
  std::set<std::uint32_t> numbers = {1};  // a pid of -1 means all processes, and is compared as 1
  for (const pid_t pid : ProcessesAbove(getpid())) {
    if (numbers.size() + 2 > kMostAbove) break;
    numbers.insert(static_cast<std::uint32_t>(pid));
    if (const pid_t group = getpgid(pid); group > 0) numbers.insert(static_cast<std::uint32_t>(group));
  }
  return numbers;
}

}  // namespace

SignalShield::SignalShield() {
  filter_ = {Load(offsetof(seccomp_data, arch)), If(BPF_JEQ, kMachine, 1, 0),
             Return(SECCOMP_RET_KILL_PROCESS),  // another architecture, with other numbers than those below
             Load(offsetof(seccomp_data, nr)), If(BPF_JGE, kOtherCalls, 0, 1),
             Return(SECCOMP_RET_ERRNO | ENOSYS),
             // A process descriptor does not show which process it belongs to.
             If(BPF_JEQ, SYS_pidfd_send_signal, 0, 1), Return(kRefuse)};
  const std::vector<int> calls = {
      SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_pidfd_open};
  for (std::size_t i = 0; i < calls.size(); ++i)
    filter_.push_back(If(BPF_JEQ, static_cast<std::uint32_t>(calls[i]), calls.size() - i, 0));
  filter_.push_back(Return(SECCOMP_RET_ALLOW));
  filter_.push_back(Load(OffsetOfArgument(0)));
  filter_.push_back(If(BPF_JSET, 0x80000000, 0, 1));  // negative: a process group
  filter_.push_back(Do(BPF_ALU | BPF_NEG, 0));
  const std::set<std::uint32_t> above = Above();
  std::size_t left = above.size();
  for (const std::uint32_t number : above) filter_.push_back(If(BPF_JEQ, number, left--, 0));
  filter_.push_back(Return(SECCOMP_RET_ALLOW));
  filter_.push_back(Return(kRefuse));
}

SignalShield::~SignalShield() = default;

int SignalShield::PutOn() const noexcept {
  if (kMachine == 0) return ENOSYS;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;  // required of an unprivileged user
  const sock_fprog program = {static_cast<std::uint16_t>(filter_.size()),
                              const_cast<sock_filter*>(filter_.data())};
  unsigned int flags = 0;
#ifdef SECCOMP_FILTER_FLAG_SPEC_ALLOW
  flags = SECCOMP_FILTER_FLAG_SPEC_ALLOW;  // it holds no secrets that would need slower branches
#endif
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0) return 0;
  if (flags != 0 && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0U, &program) == 0) return 0;
  return errno;
}

}  // namespace luff::rules

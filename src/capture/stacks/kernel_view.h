#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// What the kernel says of threads: whether they run, and what they wait in. Nothing is asked of the threads
/// themselves.
namespace luff::capture {

/// One thread. "" is what is not known.
struct KernelThread {
  std::int32_t thread = 0;
  std::string name;
  char state = '?';   // R runs or could run, S sleeps, D waits for a disk, T is stopped, Z has ended
  std::string call;   // the system call that it is in, e.g. "futex"; "syscall 441" for others
  std::string place;  // where in the kernel it waits, e.g. "pipe_read"
  std::string on;  // the file or connection that the call is about, e.g. "/data/x.tar", "tcp 10.0.0.4:29500"
};

inline constexpr std::size_t kMaxKernelThreads = 512, kMaxKernelProcesses = 64;

/// The numbers of a process's threads, ascending; at most kMaxKernelThreads, the first one (the process
/// itself) always.
[[nodiscard]] std::vector<std::int32_t> ThreadsOf(pid_t process);
[[nodiscard]] KernelThread ThreadOf(pid_t process, std::int32_t thread);
/// Processes that the threads of a process have started and that have not been waited for, ascending.
[[nodiscard]] std::vector<pid_t> ChildrenOf(pid_t process);

/// The remote address of a connection, from the text of /proc/net/tcp or tcp6; "" if `inode` is not in it.
[[nodiscard]] std::string PeerInTableUntrusted(std::string_view table, std::uint64_t inode);
/// Fills in `call`, and returns the number of the file that it is about, from the text of
/// /proc/PID/task/TID/syscall; -1 if it is about none.
[[nodiscard]] int ParseCallUntrusted(std::string_view text, std::string* call);

}  // namespace luff::capture

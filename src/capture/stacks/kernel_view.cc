#include "capture/stacks/kernel_view.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <optional>

#include "base/bounded_read.h"
#include "luff/base/env.h"

namespace luff::capture {
namespace {

struct Call {
  long number;
  const char* name;
  bool on_file;  // the first argument is the number of a file
};
constexpr Call kCalls[] = {
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, "epoll_wait", true},
#endif
#ifdef SYS_poll
    {SYS_poll, "poll", false},
#endif
#ifdef SYS_select
    {SYS_select, "select", false},
#endif
#ifdef SYS_pause
    {SYS_pause, "pause", false},
#endif
#ifdef SYS_open
    {SYS_open, "open", false},
#endif
    {SYS_accept, "accept", true},
    {SYS_accept4, "accept4", true},
    {SYS_clock_nanosleep, "clock_nanosleep", false},
    {SYS_connect, "connect", true},
    {SYS_epoll_pwait, "epoll_pwait", true},
    {SYS_fdatasync, "fdatasync", true},
    {SYS_flock, "flock", true},
    {SYS_fsync, "fsync", true},
    {SYS_futex, "futex", false},
    {SYS_ioctl, "ioctl", true},
    {SYS_mmap, "mmap", false},
    {SYS_munmap, "munmap", false},
    {SYS_nanosleep, "nanosleep", false},
    {SYS_openat, "openat", false},
    {SYS_ppoll, "ppoll", false},
    {SYS_pread64, "pread64", true},
    {SYS_preadv, "preadv", true},
    {SYS_pselect6, "pselect6", false},
    {SYS_pwrite64, "pwrite64", true},
    {SYS_read, "read", true},
    {SYS_readv, "readv", true},
    {SYS_recvfrom, "recvfrom", true},
    {SYS_recvmsg, "recvmsg", true},
    {SYS_rt_sigsuspend, "rt_sigsuspend", false},
    {SYS_rt_sigtimedwait, "rt_sigtimedwait", false},
    {SYS_semtimedop, "semtimedop", false},
    {SYS_sendfile, "sendfile", true},
    {SYS_sendmsg, "sendmsg", true},
    {SYS_sendto, "sendto", true},
    {SYS_wait4, "wait4", false},
    {SYS_waitid, "waitid", false},
    {SYS_write, "write", true},
    {SYS_writev, "writev", true},
};

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return text;
}

std::string FolderOf(pid_t process) { return "/proc/" + std::to_string(process); }

std::string TargetOf(const std::string& link) {
  std::array<char, 1024> target{};
  const ssize_t length = readlink(link.c_str(), target.data(), target.size());
  return length <= 0 ? "" : std::string(target.data(), static_cast<std::size_t>(length));
}

/// What a number of a file refers to, in words.
std::string FileText(pid_t process, std::int32_t thread, int number) {
  std::string target =
      TargetOf(FolderOf(process) + "/task/" + std::to_string(thread) + "/fd/" + std::to_string(number));
  constexpr std::string_view kSocket = "socket:[";
  if (!target.starts_with(kSocket)) return target;
  std::uint64_t inode = 0;
  std::from_chars(target.data() + kSocket.size(), target.data() + target.size(), inode);
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    if (const std::string peer = PeerInTableUntrusted(ReadKernelFile(FolderOf(process) + table), inode);
        !peer.empty())
      return "tcp " + peer;
  }
  return "a socket";
}

/// The words of a line.
std::optional<std::string_view> Word(std::string_view* line) {
  while (!line->empty() && line->front() == ' ') line->remove_prefix(1);
  if (line->empty()) return std::nullopt;
  const std::size_t end = std::min(line->find(' '), line->size());
  const std::string_view word = line->substr(0, end);
  line->remove_prefix(end);
  return word;
}

/// "0100007F:1F90" as "127.0.0.1:8080": groups of four bytes, each as the processor keeps it.
std::string AddressText(std::string_view hex) {
  const std::size_t colon = hex.find(':');
  if (colon != 8 && colon != 32) return "";
  std::array<unsigned, 16> bytes{};
  for (std::size_t i = 0; i < colon / 2; ++i) {
    const char* at = hex.data() + 2 * i;
    if (std::from_chars(at, at + 2, bytes[i / 4 * 4 + 3 - i % 4], 16).ptr != at + 2) return "";
  }
  unsigned port = 0;
  std::from_chars(hex.data() + colon + 1, hex.data() + hex.size(), port, 16);
  const bool mapped = colon == 32 && bytes[10] == 0xFF && bytes[11] == 0xFF &&
                      std::all_of(bytes.begin(), bytes.begin() + 10, [](unsigned b) { return b == 0; });
  std::string out;
  if (colon == 8 || mapped) {
    const std::size_t from = mapped ? 12 : 0;
    for (std::size_t i = 0; i < 4; ++i) out += (i == 0 ? "" : ".") + std::to_string(bytes[from + i]);
  } else {
    out = "[";
    for (std::size_t i = 0; i < 16; i += 2) {
      std::array<char, 8> group{};
      std::snprintf(group.data(), group.size(), i == 0 ? "%x" : ":%x", bytes[i] << 8U | bytes[i + 1]);
      out += group.data();
    }
    out += "]";
  }
  return out + ":" + std::to_string(port);
}

}  // namespace

int ParseCallUntrusted(std::string_view text, std::string* call) {
  long number = -1;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number < 0) return -1;  // "running", or outside of a call
  const Call* const known = std::find_if(std::begin(kCalls), std::end(kCalls),
                                         [&](const Call& one) { return one.number == number; });
  if (known == std::end(kCalls)) {
    *call = "syscall " + std::to_string(number);
    return -1;
  }
  *call = known->name;
  if (!known->on_file || end - after < 3) return -1;
  unsigned long file = 0;  // " 0x3 ..."
  if (std::from_chars(after + 3, end, file, 16).ec != std::errc() || file > 1U << 20) return -1;
  return static_cast<int>(file);
}

std::string PeerInTableUntrusted(std::string_view table, std::uint64_t inode) {
  // "  0: LOCAL REMOTE STATE QUEUES TIMER RETRANSMITS UID TIMEOUT INODE ..."
  constexpr int kRemote = 2, kInode = 9;
  while (!table.empty()) {
    const std::size_t length = std::min(table.find('\n'), table.size());
    std::string_view line = table.substr(0, length);
    table.remove_prefix(std::min(length + 1, table.size()));
    std::string_view remote;
    for (int i = 0; i <= kInode; ++i) {
      const auto word = Word(&line);
      if (!word) break;
      if (i == kRemote) remote = *word;
      std::uint64_t found = 0;
      if (i == kInode &&
          std::from_chars(word->data(), word->data() + word->size(), found).ec == std::errc() &&
          found == inode)
        return AddressText(remote);
    }
  }
  return "";
}

KernelThread ThreadOf(pid_t process, std::int32_t thread) {
  const std::string folder = FolderOf(process) + "/task/" + std::to_string(thread) + "/";
  KernelThread out;
  out.thread = thread;
  const std::string stat = ReadKernelFile(folder + "stat", 1024);
  const std::size_t open = stat.find('('), close = stat.rfind(')');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    out.name = stat.substr(open + 1, close - open - 1);
    if (close + 2 < stat.size()) out.state = stat[close + 2];
  }
  const int file = ParseCallUntrusted(ReadKernelFile(folder + "syscall", 256), &out.call);
  if (file >= 0) out.on = FileText(process, thread, file);
  const std::string place = ReadKernelFile(folder + "wchan", 128);
  if (Trimmed(place) != "0") out.place = Trimmed(place);
  return out;
}

std::vector<std::int32_t> ThreadsOf(pid_t process) {
  std::vector<std::int32_t> threads;
  const auto names = Env::Real().List(FolderOf(process) + "/task");
  if (!names.ok()) return threads;
  for (const std::string& name : *names) {
    std::int32_t thread = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), thread).ec == std::errc())
      threads.push_back(thread);
  }
  std::ranges::sort(threads);
  if (threads.size() > kMaxKernelThreads) threads.resize(kMaxKernelThreads);
  return threads;
}

std::vector<pid_t> ChildrenOf(pid_t process) {
  std::vector<pid_t> out;
  const auto threads = Env::Real().List(FolderOf(process) + "/task");
  if (!threads.ok()) return out;
  for (std::size_t i = 0; i < std::min(threads->size(), kMaxKernelThreads); ++i) {
    const std::string text = ReadKernelFile(FolderOf(process) + "/task/" + (*threads)[i] + "/children", 4096);
    std::string_view line = text;
    while (const auto word = Word(&line)) {
      pid_t child = 0;
      if (std::from_chars(word->data(), word->data() + word->size(), child).ec == std::errc() && child > 0)
        out.push_back(child);
    }
  }
  std::ranges::sort(out);
  if (out.size() > kMaxKernelProcesses) out.resize(kMaxKernelProcesses);
  return out;
}

}  // namespace luff::capture

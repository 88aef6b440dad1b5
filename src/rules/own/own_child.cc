#include "rules/own/own_child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <set>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/interrupted.h"
#include "base/process_tree.h"
#include "luff/base/mutex.h"
#include "luff/base/process.h"
#include "rules/own/signal_shield.h"

namespace luff::rules {
namespace {

constexpr std::size_t kMaxQueued = 1U << 20;
constexpr std::size_t kMaxTaken = 4U << 20;  // bytes in one call
constexpr std::size_t kKeptOutput = 4096;
constexpr int kNice = 5;  // the training comes first

void CloseAll(std::initializer_list<int> fds) {
  for (const int fd : fds) {
    if (fd >= 0) close(fd);
  }
}

/// A problem at the start of a child, reported on a pipe that a successful exec closes.
struct Report {
  enum class What { kNoShield, kNoProgram } what;
  int error;
};

bool Say(int pipe, Report::What what, int error) {
  const Report report{what, error};
  return Uninterrupted([&] { return write(pipe, &report, sizeof(report)); }) == sizeof(report);
}

/// Returns false when nothing more comes.
bool Hear(int pipe, Report* report) {
  return Uninterrupted([&] { return read(pipe, report, sizeof(*report)); }) == sizeof(*report);
}

/// Runs in the child between fork and exec, so it makes only calls that are safe there.
[[noreturn]] void Become(char* const* argv, char* const* environment, int socket, int output, int report,
                         std::uint64_t memory_bytes, pid_t parent, const SignalShield& shield) {
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // processes that it starts stay below it, also after exec
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  // Moves descriptors above those that are filled below, so that none overwrites another.
  const int nothing = fcntl(open("/dev/null", O_RDONLY | O_CLOEXEC), F_DUPFD_CLOEXEC, 10);
  socket = fcntl(socket, F_DUPFD_CLOEXEC, 10);
  output = fcntl(output, F_DUPFD_CLOEXEC, 10);
  report = fcntl(report, F_DUPFD_CLOEXEC, 10);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  dup2(socket, OwnChild::kSocket);
#ifdef SYS_close_range
  syscall(SYS_close_range, 4U, ~0U, 4U);  // CLOSE_RANGE_CLOEXEC: `report` stays open until exec
#endif
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  if (memory_bytes > 0) {
    const rlimit data{memory_bytes, memory_bytes};
    setrlimit(RLIMIT_DATA, &data);
  }
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNice);
  for (int number = 1; number < 32; ++number) {
    if (number != SIGKILL && number != SIGSTOP) signal(number, SIG_DFL);
  }
  sigset_t empty;
  sigemptyset(&empty);
  sigprocmask(SIG_SETMASK, &empty, nullptr);
  if (const int error = shield.PutOn(); error != 0 && !Say(report, Report::What::kNoShield, error))
    _exit(126);
  execvpe(argv[0], argv, environment);
  _exit(Say(report, Report::What::kNoProgram, errno) ? 127 : 126);
}

/// Processes that EndOrphans must not end: rules that run, and those that existed before the first rule. Held
/// while a rule's process starts, so that no other thread takes it for an orphan.
struct Known {
  Mutex mutex;
  std::set<pid_t> pids LUFF_GUARDED_BY(mutex);
  std::set<pid_t> rules LUFF_GUARDED_BY(mutex);  // of these

  Known() {
    for (const BelowProcess& one : ProcessesBelow(getpid())) pids.insert(one.pid);
  }
  static Known& Ours() {
    // Never destroyed: processes that are kept until the end of this one are ended after it would be.
    static auto* const known = new Known;  // NOLINT(cppcoreguidelines-owning-memory)
    return *known;
  }
};

/// Ends processes that a rule's process left behind. They are our children now: Start made us their reaper.
void EndOrphans(pid_t ended) noexcept {
  Known& known = Known::Ours();
  const MutexLock lock(known.mutex);
  known.pids.erase(ended);
  known.rules.erase(ended);
  try {
    const std::set<pid_t> spared = known.pids;
    const auto is_known = [&spared](pid_t pid) { return spared.contains(pid); };
    const std::vector<BelowProcess> orphans = ProcessesBelow(getpid(), is_known);
    if (orphans.empty()) return;
    KillBelow(getpid(), is_known);
    for (const BelowProcess& one : orphans) waitpid(one.pid, nullptr, WNOHANG);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): out of memory: leaves them
  }
}

}  // namespace

Result<std::unique_ptr<OwnChild>> OwnChild::Start(const Options& options) {
  const ExecTexts argv(options.argv);
  const ExecTexts environment(EnvironmentWith(options.environment));
  const SignalShield shield;
  int sockets[2] = {-1, -1};
  int output[2] = {-1, -1};
  int report[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0 || pipe2(output, O_CLOEXEC) != 0 ||
      pipe2(report, O_CLOEXEC) != 0) {
    const int error = errno;
    CloseAll({sockets[0], sockets[1], output[0], output[1], report[0], report[1]});
    return ResourceExhausted(fmt::format("no pipes for a rule's process: {}", std::strerror(error)));
  }
  const pid_t parent = getpid();
  Known& known = Known::Ours();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  pid_t pid = -1;
  {
    const MutexLock lock(known.mutex);
    pid = fork();
    if (pid == 0) {
      Become(argv.get(), environment.get(), sockets[1], output[1], report[1], options.memory_bytes, parent,
             shield);
    }
    if (pid > 0) known.pids.insert(pid), known.rules.insert(pid);
  }
  const int fork_error = errno;
  CloseAll({sockets[1], output[1], report[1]});
  if (pid < 0) {
    CloseAll({sockets[0], output[0], report[0]});
    return ResourceExhausted(fmt::format("cannot start a rule's process: {}", std::strerror(fork_error)));
  }
  Report told{};
  int no_shield = 0;
  int no_program = 0;
  while (Hear(report[0], &told)) (told.what == Report::What::kNoShield ? no_shield : no_program) = told.error;
  close(report[0]);
  fcntl(sockets[0], F_SETFL, O_NONBLOCK);
  fcntl(output[0], F_SETFL, O_NONBLOCK);
  std::unique_ptr<OwnChild> child(new OwnChild(pid, sockets[0], output[0], options.show_output));
  if (no_shield != 0) child->unshielded_ = std::strerror(no_shield);
  if (no_program != 0) {
    const std::string what = fmt::format("cannot run '{}': {}", options.argv[0], std::strerror(no_program));
    return no_program == ENOENT ? NotFound(what) : FailedPrecondition(what);
  }
  return child;
}

bool IsProcessOfOwnRule(pid_t pid) {
  Known& known = Known::Ours();
  const MutexLock lock(known.mutex);
  return known.rules.contains(pid);
}

Result<pid_t> StartSpared(const ProcessOptions& options) {
  Known& known = Known::Ours();
  const MutexLock lock(known.mutex);
  Result<pid_t> started = StartProcess(options);
  if (started.ok()) known.pids.insert(*started);
  return started;
}

void NoLongerSpared(pid_t pid) {
  Known& known = Known::Ours();
  const MutexLock lock(known.mutex);
  known.pids.erase(pid);
}

OwnChild::~OwnChild() {
  Kill();
  CloseAll({socket_, output_});
}

void OwnChild::Kill() noexcept {
  if (!ended_.empty()) return;
  kill(pid_, SIGSTOP);  // so that it starts nothing more
  KillBelow(pid_);
  kill(pid_, SIGKILL);
  WaitFor(pid_);
  ended_ = "killed";
  EndOrphans(pid_);
}

std::string OwnChild::Ended() {
  if (!ended_.empty()) return ended_;
  int status = 0;
  const pid_t got = Uninterrupted([&] { return waitpid(pid_, &status, WNOHANG); });
  if (got == 0) return "";
  TakeOutput();
  EndOrphans(pid_);  // its children end with it
  if (got < 0) {
    ended_ = "gone";
  } else if (WIFSIGNALED(status)) {
    ended_ = fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  } else {
    ended_ = fmt::format("exit code {}", WEXITSTATUS(status));
  }
  return ended_;
}

bool OwnChild::Send(std::string_view line) {
  if (to_send_.size() + line.size() > kMaxQueued && !to_send_.empty()) return false;
  to_send_.append(line);
  to_send_ += '\n';
  Flush();
  return true;
}

void OwnChild::Flush() {
  while (!to_send_.empty()) {
    const ssize_t sent = Uninterrupted(
        [&] { return send(socket_, to_send_.data(), to_send_.size(), MSG_NOSIGNAL | MSG_DONTWAIT); });
    if (sent <= 0) return;  // the socket is full, or the child is gone, which Ended notices
    to_send_.erase(0, static_cast<std::size_t>(sent));
  }
}

bool OwnChild::Receive(int wait_ms, std::vector<std::string>* lines) {
  Flush();
  if (wait_ms > 0) {
    const short events = to_send_.empty() ? POLLIN : POLLIN | POLLOUT;
    pollfd fds[2] = {{socket_, events, 0}, {output_, POLLIN, 0}};
    poll(fds, output_ >= 0 ? 2 : 1, wait_ms);
    Flush();
  }
  TakeOutput();
  bool any = false;
  std::size_t taken = 0;
  char buffer[65536];
  while (taken < kMaxTaken) {
    const ssize_t got = Uninterrupted([&] { return recv(socket_, buffer, sizeof(buffer), MSG_DONTWAIT); });
    if (got <= 0) break;
    any = true;
    taken += static_cast<std::size_t>(got);
    heard_.append(buffer, static_cast<std::size_t>(got));
  }
  std::size_t from = 0;
  for (std::size_t end = 0; (end = heard_.find('\n', from)) != std::string::npos; from = end + 1)
    lines->push_back(heard_.substr(from, end - from));
  heard_.erase(0, from);
  broken_ = broken_ || heard_.size() > kMaxLine;
  return any;
}

void OwnChild::TakeOutput() {
  if (output_ < 0) return;
  char buffer[16384];
  for (int turn = 0; turn < 64; ++turn) {  // bounded: a rule may print without end
    const ssize_t got = Uninterrupted([&] { return read(output_, buffer, sizeof(buffer)); });
    if (got == 0) {
      close(output_);
      output_ = -1;
    }
    if (got <= 0) return;
    if (show_output_) std::fwrite(buffer, 1, static_cast<std::size_t>(got), stderr);
    printed_.append(buffer, static_cast<std::size_t>(got));
    if (printed_.size() > kKeptOutput) printed_.erase(0, printed_.size() - kKeptOutput);
  }
}

std::uint64_t OwnChild::ResidentBytes() const {
  if (!ended_.empty()) return 0;
  const std::string text = ReadKernelFile(fmt::format("/proc/{}/statm", pid_));
  unsigned long long size = 0;
  unsigned long long resident = 0;
  unsigned long long shared = 0;
  const int fields = std::sscanf(text.c_str(), "%llu %llu %llu", &size, &resident, &shared);
  if (fields != 3 || shared > resident) return 0;
  // Mapped files do not count.
  return (resident - shared) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

std::string OwnChild::LastWords() const {
  std::size_t end = printed_.find_last_not_of("\n ");
  if (end == std::string::npos) return "";
  const std::size_t begin = printed_.find_last_of('\n', end);
  const std::size_t from = begin == std::string::npos ? 0 : begin + 1;
  return printed_.substr(from, std::min<std::size_t>(end + 1 - from, 300));
}

}  // namespace luff::rules

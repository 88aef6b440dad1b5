#include "luff/base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/format.h"
#include "base/interrupted.h"

extern char** environ;

namespace luff {
namespace {

/// In the child: restores the signals of `at_start`, or resets all to their defaults if it is null.
void SetSignals(const SignalsAtStart* at_start) {
  sigset_t mask;
  sigemptyset(&mask);
  if (at_start != nullptr) {
    signal(SIGPIPE, at_start->pipe);
    signal(SIGCHLD, at_start->child);
    mask = at_start->mask;
  } else {
    for (int number = 1; number < 32; ++number) {
      if (number != SIGKILL && number != SIGSTOP) signal(number, SIG_DFL);
    }
  }
  sigprocmask(SIG_SETMASK, &mask, nullptr);
}

}  // namespace

ExecTexts::ExecTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {
  for (std::string& text : texts_) pointers_.push_back(text.data());
  pointers_.push_back(nullptr);
}

std::vector<std::string> EnvironmentWith(const Variables& changes) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (std::ranges::find(changes, name, &Variables::value_type::first) == changes.end())
      all.emplace_back(text);
  }
  for (const auto& [name, value] : changes) all.push_back(name + "=" + value);
  return all;
}

void HoldStandardStreams() noexcept {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (fd > STDERR_FILENO) close(fd);
}

void LoseWhatStderrCannotTake() noexcept {
  cookie_io_functions_t functions{};
  functions.write = [](void*, const char* bytes, std::size_t size) noexcept -> ssize_t {
    for (std::size_t at = 0; at < size;) {
      const ssize_t count = write(STDERR_FILENO, bytes + at, size - at);
      if (count > 0) {
        at += static_cast<std::size_t>(count);
      } else if (count < 0 && errno == EAGAIN) {
        pollfd fd{STDERR_FILENO, POLLOUT, 0};
        if (poll(&fd, 1, 1000) <= 0) break;
      } else if (count == 0 || errno != EINTR) {
        break;
      }
    }
    return static_cast<ssize_t>(size);
  };
  std::FILE* file = fopencookie(nullptr, "w", functions);
  if (file == nullptr) return;
  std::setvbuf(file, nullptr, _IONBF, 0);
  stderr = file;
}

Result<pid_t> StartProcess(const ProcessOptions& options) {
  if (options.argv.empty()) return InvalidArgument("no command to run");
  const ExecTexts argv(options.argv);
  const ExecTexts environment(EnvironmentWith(options.environment));
  // The child reports through this pipe why exec failed; a successful exec closes it.
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0)
    return IoError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    const int error = errno;
    close(report[0]);
    close(report[1]);
    return ResourceExhausted(fmt::format("cannot start a process: {}", std::strerror(error)));
  }
  if (pid == 0) {
    if (options.new_session) {
      setsid();
    } else if (options.in_our_group == nullptr) {
      setpgid(0, 0);
    }
    if (options.dies_with_parent) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != parent) _exit(127);
    }
    if (options.stdin_fd >= 0) dup2(options.stdin_fd, STDIN_FILENO);
    if (options.stdout_fd >= 0) dup2(options.stdout_fd, STDOUT_FILENO);
    if (options.stderr_fd >= 0) dup2(options.stderr_fd, STDERR_FILENO);
    SetSignals(options.in_our_group);
    execvpe(*argv.get(), argv.get(), environment.get());
    const int error = errno;
    const ssize_t written = write(report[1], &error, sizeof(error));
    _exit(written == sizeof(error) ? 127 : 126);
  }
  close(report[1]);
  if (!options.new_session && options.in_our_group == nullptr)
    setpgid(pid, pid);  // in both processes, so that it is set before either continues
  int error = 0;
  const ssize_t got = Uninterrupted([&] { return read(report[0], &error, sizeof(error)); });
  close(report[0]);
  if (got == sizeof(error)) {
    WaitFor(pid);
    if (error == ENOENT) return NotFound(fmt::format("there is no command '{}'", options.argv[0]));
    return FailedPrecondition(fmt::format("cannot run '{}': {}", options.argv[0], std::strerror(error)));
  }
  return pid;
}

bool SignalGroup(pid_t group, int number) noexcept { return kill(-group, number) == 0; }

int WaitFor(pid_t pid) noexcept {
  int status = 0;
  static_cast<void>(Uninterrupted([&] { return waitpid(pid, &status, 0); }));
  return status;
}

ExitState DecodeStatus(int status) noexcept {
  if (WIFSIGNALED(status)) return {128 + WTERMSIG(status), WTERMSIG(status)};
  return {WEXITSTATUS(status), 0};
}

void BecomeReaper() noexcept { prctl(PR_SET_CHILD_SUBREAPER, 1); }

}  // namespace luff

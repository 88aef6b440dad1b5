#pragma once
#include <signal.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "luff/base/result.h"

/// Child processes. Single-threaded programs only (fork without exec in between).
namespace luff {

/// Texts as exec takes them. Made before fork: a child may allocate nothing.
class ExecTexts {
 public:
  explicit ExecTexts(std::vector<std::string> texts);
  ExecTexts(const ExecTexts&) = delete;
  ExecTexts& operator=(const ExecTexts&) = delete;
  [[nodiscard]] char* const* get() const noexcept { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

using Variables = std::vector<std::pair<std::string, std::string>>;  // name and value

/// The environment of this process with variables added or replaced.
[[nodiscard]] std::vector<std::string> EnvironmentWith(const Variables& changes);

/// What a program was started with, of what it has changed for itself.
struct SignalsAtStart {
  sigset_t mask{};
  sighandler_t pipe = SIG_DFL, child = SIG_DFL;
};

struct ProcessOptions {
  std::vector<std::string> argv;
  Variables environment;     // added to the current one
  bool new_session = false;  // setsid: no terminal, no signals from it
  /// In our own process group, so that the terminal treats both as one job, and with these signals.
  const SignalsAtStart* in_our_group = nullptr;
  int stdin_fd = -1;  // -1: inherited
  int stdout_fd = -1;
  int stderr_fd = -1;
  bool dies_with_parent = false;
};

/// How a process ended.
struct ExitState {
  int code = 0;    // exit status, or 128 + signal
  int signal = 0;  // 0: it exited by itself
};

/// Starts a process, unless told otherwise in a process group of its own (its pid is the group's id) and with
/// all signals reset to their defaults. Errors: kNotFound (no such command), kFailedPrecondition (not
/// executable), kIo.
[[nodiscard]] Result<pid_t> StartProcess(const ProcessOptions& options);
/// Sends to the whole group. False when nobody is left in it.
bool SignalGroup(pid_t group, int signal) noexcept;
/// Waits until a child ends; waitpid's status.
int WaitFor(pid_t pid) noexcept;
/// From waitpid's status.
[[nodiscard]] ExitState DecodeStatus(int status) noexcept;
/// Orphans of our children become our children, so that nothing can be left running unseen.
void BecomeReaper() noexcept;

}  // namespace luff

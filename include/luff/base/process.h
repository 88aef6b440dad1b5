#pragma once
#include <signal.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "luff/base/result.h"

/// Child processes. For single-threaded programs only: the child runs code between fork and exec.
namespace luff {

/// Strings in the form that exec takes. Make them before fork: the child must not allocate.
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

/// For main(), before anything else: gives standard streams that are closed a place that nothing comes from
/// or goes to, since the next files that are opened would take their numbers. Commands see them closed as
/// before.
void HoldStandardStreams() noexcept;

/// The signal state that this program inherited and has since changed for itself.
struct SignalsAtStart {
  sigset_t mask{};
  sighandler_t pipe = SIG_DFL, child = SIG_DFL;
};

struct ProcessOptions {
  std::vector<std::string> argv;
  Variables environment;     // added to the current one
  bool new_session = false;  // setsid: no terminal, no signals from it
  /// If set, the process joins our process group, so that the terminal treats both as one job, and starts
  /// with these signals.
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

/// Starts a process. By default it gets its own process group, whose id is its pid, and all signals at their
/// defaults. Errors: kInvalidArgument (empty argv), kNotFound (no such command), kFailedPrecondition (not
/// executable), kResourceExhausted (fork failed), kIo.
[[nodiscard]] Result<pid_t> StartProcess(const ProcessOptions& options);
/// Sends a signal to the whole group. Returns false if that fails, e.g. because no process is left in it.
bool SignalGroup(pid_t group, int signal) noexcept;
/// Waits until a child ends. Returns its status as waitpid reports it.
int WaitFor(pid_t pid) noexcept;
/// Decodes a status that waitpid reported.
[[nodiscard]] ExitState DecodeStatus(int status) noexcept;
/// Makes orphaned descendants our children, so that none keeps running unnoticed.
void BecomeReaper() noexcept;

}  // namespace luff

#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>

#include "luff/actions/process.h"

/// Signals and the terminal while a job runs. The command is in our own process group, as under env or time:
/// the terminal's signals reach both of us, and nobody hands the terminal over
/// (docs/adr/0014-signals-and-job-control.md).
namespace luff::cli {

/// A process of our group that does nothing. A signal that it has got as well was meant for the group, and so
/// the command has it already.
class Witness {
 public:
  Witness() = default;
  ~Witness() { End(); }
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  void Start();
  void End() noexcept;
  /// From waitpid: somebody has killed it, and its number is nobody's now.
  void Ended() noexcept { pid_ = -1; }
  [[nodiscard]] bool Got(int number) const noexcept;
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

 private:
  pid_t pid_ = -1;
};

/// Single-threaded programs only.
class JobSignals {
 public:
  /// From now on signals are read, by Take. What is ignored (nohup, background jobs of scripts) stays so.
  JobSignals();
  ~JobSignals();
  JobSignals(const JobSignals&) = delete;
  JobSignals& operator=(const JobSignals&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_; }
  /// What the command is to be started with: what we were.
  [[nodiscard]] const actions::SignalsAtStart& at_start() const noexcept { return at_start_; }
  [[nodiscard]] bool IsWitness(pid_t pid) const noexcept { return pid == witness_.pid(); }

  void Started(pid_t command) noexcept { command_ = command; }
  void Ended() noexcept { command_ = -1; }
  void WitnessEnded() {
    witness_.Ended();
    witness_.Start();
  }

  /// What was asked for when the command had ended.
  struct Asked {
    bool leave = false;  // what is still going on
    int number = 0;      // of the signal that asked for it
    int alone = 0;  // 0, or what was sent to us alone: processes that the command has left do not know of it
  };
  /// Reads what came, and hands on to the command what was sent to us alone.
  [[nodiscard]] Asked Take();
  /// From waitpid: the command was stopped, or goes on.
  void CommandStopped(bool stopped) noexcept { stopped_ = stopped; }
  /// When the terminal has stopped the command, we stop too, so that the shell takes note. Returns when the
  /// job goes on. `before` is called first.
  void StopWithCommand(const std::function<void()>& before);

  /// Monotonic time without that for which we were stopped.
  [[nodiscard]] std::int64_t RunningNs() noexcept;
  /// We may write to the terminal on `fd` unasked: it is none, or we are in its foreground.
  [[nodiscard]] static bool InForeground(int fd) noexcept;
  /// Dies of the signal that ended the command when our whole group got it, so that a script that runs us
  /// ends too.
  void DieAsCommand(int number) const noexcept;

 private:
  void TakeOne(int number, bool from_kernel, Asked* asked);

  int fd_ = -1;
  actions::SignalsAtStart at_start_;
  Witness witness_;
  pid_t command_ = -1;
  bool stopped_ = false;
  int stop_ = 0;  // the terminal asked us to stop
  std::int64_t stop_ns_ = 0, alive_ns_ = 0, away_ns_ = 0;
  std::uint32_t group_ = 0;  // signals that our group got, a bit each
};

}  // namespace luff::cli

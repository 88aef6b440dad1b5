#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>

#include "luff/base/process.h"

/// Signals and the terminal while a job runs. The command is in our own process group, as under env or time:
/// the terminal's signals reach both, and the terminal never changes hands
/// (docs/adr/0014-signals-and-job-control.md).
namespace luff::cli {

/// An idle process in our group. A signal that it received as well was sent to the group, so the command
/// already has it.
class Witness {
 public:
  Witness() = default;
  ~Witness() { End(); }
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  void Start();
  void End() noexcept;
  /// Call when waitpid reports that it was killed: its pid is no longer valid.
  void Ended() noexcept { pid_ = -1; }
  [[nodiscard]] bool Got(int number) const noexcept;
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

 private:
  pid_t pid_ = -1;
};

/// Single-threaded programs only.
class JobSignals {
 public:
  /// From now on Take reads signals. Ignored signals (nohup, background jobs of scripts) stay ignored.
  JobSignals();
  ~JobSignals();
  JobSignals(const JobSignals&) = delete;
  JobSignals& operator=(const JobSignals&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_; }
  /// The state to start the command with: the one that we were started with.
  [[nodiscard]] const SignalsAtStart& at_start() const noexcept { return at_start_; }
  [[nodiscard]] bool IsWitness(pid_t pid) const noexcept { return pid == witness_.pid(); }

  void Started(pid_t command) noexcept { command_ = command; }
  void Ended() noexcept { command_ = -1; }
  void WitnessEnded() {
    witness_.Ended();
    witness_.Start();
  }

  /// What signals requested after the command had ended.
  struct Asked {
    bool leave = false;  // abandon unfinished work
    int number = 0;      // of the signal that requested it
    int alone = 0;       // 0, or a signal sent to us alone, which processes left by the command did not get
  };
  /// Reads pending signals, and forwards those sent to us alone to the command.
  [[nodiscard]] Asked Take();
  /// Call when waitpid reports that the command was stopped or continued.
  void CommandStopped(bool stopped) noexcept { stopped_ = stopped; }
  /// If the terminal has stopped the command, stops this process too, so that the shell notices. Calls
  /// `before` first; returns when the job continues.
  void StopWithCommand(const std::function<void()>& before);

  /// Monotonic time, without the time for which we were stopped.
  [[nodiscard]] std::int64_t RunningNs() noexcept;
  /// True if we may write to `fd` at any time: it is not a terminal, or we are in its foreground.
  [[nodiscard]] static bool InForeground(int fd) noexcept;
  /// If our whole group got the signal that ended the command, dies of the same signal, so that a calling
  /// script ends too.
  void DieAsCommand(int number) const noexcept;

 private:
  void TakeOne(int number, bool from_kernel, Asked* asked);

  int fd_ = -1;
  SignalsAtStart at_start_;
  Witness witness_;
  pid_t command_ = -1;
  bool stopped_ = false;
  int stop_ = 0;  // the signal by which the terminal stops us
  std::int64_t stop_ns_ = 0, alive_ns_ = 0, away_ns_ = 0;
  std::uint32_t group_ = 0;  // one bit for each signal that our group got
};

}  // namespace luff::cli

#pragma once
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "luff/base/process.h"
#include "luff/base/result.h"

namespace luff::rules {

/// A child process that runs one of the user's own rules. Lines go both ways over one socket, which is its
/// descriptor 3 (docs/spec/rule-child.md). What it prints goes to a pipe; the last 4 KiB are kept. Neither it
/// nor its children can send signals to the processes above it (SignalShield).
/// **Thread-compatible**, but all instances must be used by one thread: they share the list of processes that
/// must not be ended. The destructor kills the process with all its children.
class OwnChild {
 public:
  static constexpr int kSocket = 3;
  static constexpr int kNoMemory = 77;  // exit code of one that got no more memory
  static constexpr std::size_t kMaxLine = 4U << 20;

  struct Options {
    std::vector<std::string> argv;
    std::vector<std::pair<std::string, std::string>> environment;  // added to the current one
    std::uint64_t memory_bytes = 0;                                // limit of its data (RLIMIT_DATA); 0: none
    bool show_output = false;  // also write what it prints to our standard error
  };
  /// Errors: kNotFound (no such program), kFailedPrecondition, kResourceExhausted.
  [[nodiscard]] static Result<std::unique_ptr<OwnChild>> Start(const Options& options);
  ~OwnChild();
  OwnChild(const OwnChild&) = delete;
  OwnChild& operator=(const OwnChild&) = delete;

  /// Queues a line; never waits. Returns false if the child reads too slowly and 1 MiB is queued.
  bool Send(std::string_view line);
  /// Sends what is queued and appends complete lines that have arrived. Waits at most `wait_ms` for something
  /// to happen. Returns true if any byte arrived.
  bool Receive(int wait_ms, std::vector<std::string>* lines);
  /// Why the signal shield could not be installed; "" if it was.
  [[nodiscard]] const std::string& unshielded() const noexcept { return unshielded_; }
  /// Whether it sent a line longer than kMaxLine.
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  /// "" while it runs; then how it ended, e.g. "exit code 1" or "signal 9 (Killed)".
  [[nodiscard]] std::string Ended();
  void Kill() noexcept;
  /// Resident memory in bytes; 0 if unknown.
  [[nodiscard]] std::uint64_t ResidentBytes() const;
  /// The last line that it printed, at most 300 bytes; "" if none.
  [[nodiscard]] std::string LastWords() const;

 private:
  OwnChild(pid_t pid, int socket, int output, bool show) noexcept
      : pid_(pid),
        socket_(socket),
        output_(output),
        show_output_(show) {}
  void TakeOutput();
  void Flush();

  pid_t pid_;
  int socket_, output_;
  bool show_output_, broken_ = false;
  std::string to_send_, heard_, printed_, ended_, unshielded_;
};

/// True for the process of a rule: its OwnChild waits for it, and nobody else may.
[[nodiscard]] bool IsProcessOfOwnRule(pid_t pid);
/// As StartProcess, for a process that is none of a rule's and must not be ended as what one has left behind.
[[nodiscard]] Result<pid_t> StartSpared(const ProcessOptions& options);
/// A process of StartSpared has ended.
void NoLongerSpared(pid_t pid);

}  // namespace luff::rules

#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/owned_fd.h"
#include "luff/base/result.h"
#include "server/job_log.h"

/// `luff run --log`: both streams of the job go into files of the run, RUN/log, and a process of its own, the
/// keeper, shows them by following. Nothing that happens to the supervisor or to the keeper reaches the job:
/// it writes into files (docs/adr/0030-logs-are-followed.md).
namespace luff::cli {

inline constexpr std::uint64_t kLogBytes = 256ULL << 20;

/// The files that the job writes into; they are appended to.
struct LogFiles {
  OwnedFd out, err;
  server::LogPlace begin{};  // how long they are: earlier output of a run that goes on
};
/// Errors: kResourceExhausted if the disk has no room for some megabytes, or files may not grow (ulimit -f):
/// the job would fail as it prints.
[[nodiscard]] Result<LogFiles> OpenLog(const std::string& run);

/// The keeper, as the supervisor sees it. **Thread-compatible.**
class LogKeeper {
 public:
  /// Starts it. `job`: the job's command, which it outlives if this process dies.
  [[nodiscard]] Status Start(const std::string& run, pid_t job, std::uint64_t bytes,
                             const server::LogPlace& begin);
  /// The job has printed all that it will: the keeper, which has not been waited for, shows the rest and
  /// ends.
  void JobEnded() noexcept;
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Started, and not told yet that the job has ended: the keeper must not end now.
  [[nodiscard]] bool follows() const noexcept { return to_.valid(); }

 private:
  pid_t pid_ = -1;
  OwnedFd to_;
};

/// The keeper's main function: follows the log until standard input says that the job has ended, or it is
/// closed and the process `job` is gone. Keeps at most about `bytes` of each stream on disk, and what nobody
/// has read yet. `begin`: how long the files were before the job.
[[nodiscard]] Status KeepLog(const std::string& run, pid_t job, std::uint64_t bytes,
                             const server::LogPlace& begin);

}  // namespace luff::cli

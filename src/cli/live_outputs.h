#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "luff/base/process.h"
#include "luff/base/result.h"

/// Outputs for others, written while a job runs. A process `luff export --follow` (`luff metrics --otlp`,
/// `luff sync`) writes each one beside the training, never inside it.
namespace luff::cli {

struct LiveOutput {
  std::string format;          // smdebug, tensorboard, kOtlp or kSync
  std::string directory;       // absolute; "" for kOtlp, the URL for kSync
  Variables environment = {};  // what its process is told, of [bucket]
  std::string config = {};     // the file that says so, for the command that goes on; "" if none
  std::optional<std::uint64_t> keep_local = {};  // of kSync: bytes of values that stay here; nothing: all
  std::string job = {};  // of kSync: name of the job whose hosts talk to each other by the bucket; "" if none
  std::size_t training = 1;  // of the job
};
/// Not files, but metrics that are pushed while the job runs.
inline constexpr const char* kOtlp = "otlp";
/// Not another format, but the run itself, uploaded into a bucket (docs/buckets.md). Also what rules find
/// after the job's end.
inline constexpr const char* kSync = "sync";

/// Errors, before the job begins: kFailedPrecondition for a directory that holds something else, or where
/// what uploads is not installed; kInvalidArgument for a URL that names no bucket.
[[nodiscard]] Status CheckLiveOutput(const LiveOutput& output, bool resume);

/// Used by the supervisor. **Thread-compatible.**
class LiveOutputs {
 public:
  LiveOutputs() = default;
  LiveOutputs(const LiveOutputs&) = delete;
  LiveOutputs& operator=(const LiveOutputs&) = delete;
  ~LiveOutputs() { Close(true), Close(false); }

  /// Starts the processes. The returned lines report those that cannot be started.
  [[nodiscard]] std::vector<std::string> Start(const std::string& run, const std::vector<LiveOutput>& wanted);
  [[nodiscard]] bool Owns(pid_t pid) const noexcept;
  [[nodiscard]] bool living() const noexcept;
  /// Whether an upload is alive.
  [[nodiscard]] bool uploading() const noexcept;
  /// CPU time of those that are alive, in nanoseconds: one that hangs needs none.
  [[nodiscard]] std::int64_t cpu_ns() const noexcept;
  /// Takes the end of a child. Returns a message if the output failed, or "".
  [[nodiscard]] std::string Ended(pid_t pid, const ExitState& state);
  /// Closes their standard input, so that they write the rest and end; that of uploads not yet.
  void JobEnded() noexcept;
  /// Likewise of uploads, once the run has its last findings.
  void RunEnded() noexcept;
  /// Kills those that are still alive. Returns a message for each.
  [[nodiscard]] std::vector<std::string> Kill();

 private:
  void Close(bool uploads) noexcept;
  struct Child {
    LiveOutput output;
    pid_t pid = -1;
    int to = -1;  // closed when the job has ended
  };
  std::vector<Child> children_;
  std::string run_;
};

}  // namespace luff::cli

#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/upload_ends.h"
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

/// Used by the supervisor. An upload that ends before the run does is begun again, and the run says how often
/// (cli/upload_ends.h). `now_ns`: monotonic. **Thread-compatible.**
class LiveOutputs {
 public:
  LiveOutputs() = default;
  LiveOutputs(const LiveOutputs&) = delete;
  LiveOutputs& operator=(const LiveOutputs&) = delete;
  ~LiveOutputs() { Close(true), Close(false); }

  /// Starts the processes. The returned lines report those that cannot be started.
  [[nodiscard]] std::vector<std::string> Start(const std::string& run, const std::vector<LiveOutput>& wanted,
                                               std::int64_t now_ns);
  /// Begins uploads again whose time has come. Returns lines as above.
  [[nodiscard]] std::vector<std::string> Look(std::int64_t now_ns);
  [[nodiscard]] bool Owns(pid_t pid) const noexcept;
  [[nodiscard]] bool living() const noexcept;
  /// Whether an upload is alive, or will be begun again.
  [[nodiscard]] bool uploading() const noexcept;
  /// CPU time of those that are alive, in nanoseconds: one that hangs needs none.
  [[nodiscard]] std::int64_t cpu_ns() const noexcept;
  /// Takes the end of a child. Returns a message if the output failed, or "".
  [[nodiscard]] std::string Ended(pid_t pid, const ExitState& state, std::int64_t now_ns);
  /// Closes their standard input, so that they write the rest and end; that of uploads not yet.
  void JobEnded() noexcept;
  /// Likewise of uploads, once the run has its last findings. One that waits to be begun again is begun now,
  /// for the rest.
  [[nodiscard]] std::vector<std::string> RunEnded(std::int64_t now_ns);
  /// Kills those that are still alive. Returns a message for each.
  [[nodiscard]] std::vector<std::string> Kill();

 private:
  struct Child {
    LiveOutput output;
    pid_t pid = -1;
    int to = -1;  // closed when the job has ended
    // Of an upload:
    std::string owner;  // 16 hexadecimal digits by which it knows those that were begun before it
    UploadTries tries{FirstUploadPauseNs()};
    std::int64_t begun_ns = 0;
    std::optional<std::int64_t> again_ns;  // when it is begun again
    UploadEnds ends;
    bool noted = true;  // the run says so
    bool rest = false;  // one was begun after the run, for what is missing
  };
  void Close(bool uploads) noexcept;
  /// Starts the process of an output. Errors: those of PythonCommand and StartProcess; kIo.
  [[nodiscard]] Status Launch(Child* child, std::int64_t now_ns);
  /// Has the run say how often an upload has ended, once there is a run.
  void Note(Child* child);
  /// After an upload has ended, or could not be begun again. Returns what to say of it, or "".
  [[nodiscard]] std::string TryLater(Child* child, const std::string& how, std::int64_t now_ns);
  /// Of an upload that had ended before, and does not go on: the run says what is left to do.
  void IsOver(Child* child, const std::string& how);
  std::vector<Child> children_;
  std::string run_;
};

}  // namespace luff::cli

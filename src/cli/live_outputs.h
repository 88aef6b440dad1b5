#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "luff/actions/process.h"
#include "luff/base/result.h"

/// Outputs in the formats of others that are written while a job runs: for each a process `luff export
/// --follow` beside the training, never in it.
namespace luff::cli {

struct LiveOutput {
  std::string format;     // smdebug or tensorboard
  std::string directory;  // absolute
};

/// Errors: kFailedPrecondition for a directory that holds something else, before the job begins.
[[nodiscard]] Status CheckLiveOutput(const LiveOutput& output, bool resume);

/// **Thread-compatible.** Of the supervisor.
class LiveOutputs {
 public:
  LiveOutputs() = default;
  LiveOutputs(const LiveOutputs&) = delete;
  LiveOutputs& operator=(const LiveOutputs&) = delete;
  ~LiveOutputs() { JobEnded(); }

  /// What cannot be started is told in the returned lines.
  [[nodiscard]] std::vector<std::string> Start(const std::string& run, const std::vector<LiveOutput>& wanted);
  [[nodiscard]] bool Owns(pid_t pid) const noexcept;
  [[nodiscard]] bool living() const noexcept;
  /// A child has ended; "" or what there is to say of it.
  [[nodiscard]] std::string Ended(pid_t pid, const actions::ExitState& state);
  /// They write what is still missing and end.
  void JobEnded() noexcept;
  /// Ends those that live on. Returns what there is to say.
  [[nodiscard]] std::vector<std::string> Kill();

 private:
  struct Child {
    LiveOutput output;
    pid_t pid = -1;
    int to = -1;  // closed when the job has ended
  };
  std::vector<Child> children_;
  std::string run_;
};

}  // namespace luff::cli

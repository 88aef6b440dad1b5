#pragma once
#include <sys/types.h>

#include <string>

#include "base/owned_fd.h"
#include "luff/base/process.h"

namespace luff::cli {

/// The process that measures the machine beside a training (`luff _sample`). It ends when we do, however that
/// happens: its standard input is a pipe that only we hold. If it dies it is started once more.
class MachineSampler {
 public:
  void Start(const std::string& run);
  [[nodiscard]] bool Owns(pid_t pid) const noexcept { return pid > 0 && pid == pid_; }
  /// Takes the end of the process.
  void Ended(pid_t pid, const ExitState& state);
  /// The training has ended: it writes what it has and ends.
  void JobEnded() noexcept;
  [[nodiscard]] bool living() const noexcept { return pid_ > 0; }

 private:
  void Launch();
  std::string run_;
  pid_t pid_ = 0;
  OwnedFd pipe_;  // the end that we hold
  int starts_ = 0;
};

}  // namespace luff::cli

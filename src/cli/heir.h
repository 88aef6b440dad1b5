#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/owned_fd.h"
#include "keys/public_key.h"
#include "luff/actions/coordinator.h"
#include "luff/base/process.h"
#include "luff/base/status.h"

namespace luff::cli {

/// The process that obeys in our place what the hosts of the job decide, if we die after we may have
/// consented
/// (`luff _heir`). It lives for the seconds in which a decision is awaited. Its standard input is a pipe that
/// only we hold: it is told when it is not needed any more, and acts if it ends without a word.
class Heir {
 public:
  /// `job`, `instance`: as the messages of this host have them. `keys`: of the job.
  Heir(std::string run, std::string job, std::string instance, actions::StopSettings stop,
       const std::vector<keys::PublicKey>& keys);
  /// Starts and ends it as the bequest wants. Call it after each turn of the coordinator. Errors: kIo,
  /// kResourceExhausted, once for each bequest, if there is none.
  [[nodiscard]] Status Follow(const std::optional<actions::Coordinator::Bequest>& bequest);
  [[nodiscard]] bool Owns(pid_t pid) const noexcept;
  /// Takes the end of the process.
  void Ended(pid_t pid) noexcept;
  ~Heir() { Dismiss(); }
  Heir(const Heir&) = delete;
  Heir& operator=(const Heir&) = delete;

 private:
  Status Start(const actions::Coordinator::Bequest& bequest);
  void Dismiss() noexcept;

  const std::string run_, job_, instance_, keys_;
  const actions::StopSettings stop_;
  std::string followed_;       // what it was started for
  std::vector<pid_t> living_;  // the one that is needed, and those that were told to leave
  OwnedFd pipe_;               // to the one that is needed
};

}  // namespace luff::cli

#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "luff/base/env.h"
#include "luff/base/result.h"

/// Who may command a job: the owner of its run, one supervisor at a time (docs/spec/control.md).
namespace luff::store {

/// Checks that the user (effective uid) owns the run's directory and the folders in it that hold commands,
/// and that nobody else may write into them. Checks by descriptor; a missing folder is no error. Errors:
/// kFailedPrecondition with the remedy; kNotFound, kIo.
[[nodiscard]] Status CheckOwner(const std::string& run_path);

/// The lock of the run's supervisor. The object holds it as long as it lives; child processes do not, and the
/// kernel frees it when the process dies.
class SupervisorLock {
 public:
  /// Errors: kAlreadyExists if another supervisor holds it (the message names its process); kIo.
  [[nodiscard]] static Result<std::unique_ptr<SupervisorLock>> Take(const std::string& run_path);
  /// True if a living supervisor holds it. Does not take it.
  [[nodiscard]] static bool IsTaken(const std::string& run_path) noexcept;
  /// Removes the lock's file, for a run that never began.
  void Remove() noexcept;

  ~SupervisorLock();
  SupervisorLock(const SupervisorLock&) = delete;
  SupervisorLock& operator=(const SupervisorLock&) = delete;

 private:
  SupervisorLock(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  const int fd_;
  const std::string path_;
};

/// True if it is certain that no process writes in the worker's folder: who did ran on this machine since it
/// booted, perhaps in a container, and the folder's lock is free. Holds that lock for a moment, so that a
/// writer which opens the folder just then is refused.
[[nodiscard]] bool IsAbandoned(const std::string& run_path, std::uint32_t worker);

}  // namespace luff::store

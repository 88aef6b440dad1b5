#pragma once
#include <memory>
#include <string>

#include "luff/base/env.h"
#include "luff/base/result.h"

/// Who may command a job: the owner of its run, one supervisor at a time (docs/spec/control.md).
namespace luff::store {

/// Whether the run's directory and the folders in it that hold commands are the user's own (effective uid),
/// and nobody else may write into them. They are looked at by descriptor; a folder that is missing is fine.
/// Errors: kFailedPrecondition with the remedy; kNotFound, kIo.
[[nodiscard]] Status CheckOwner(const std::string& run_path);

/// The lock of the run's supervisor, held as long as the object lives and by no process that it starts; the
/// kernel frees it when the process dies.
class SupervisorLock {
 public:
  /// Errors: kAlreadyExists when another supervisor has it, with its process; kIo.
  [[nodiscard]] static Result<std::unique_ptr<SupervisorLock>> Take(const std::string& run_path);
  /// True when a living supervisor has it. Takes nothing.
  [[nodiscard]] static bool IsTaken(const std::string& run_path) noexcept;
  /// Removes its file: of a run that never began.
  void Remove() noexcept;

  ~SupervisorLock();
  SupervisorLock(const SupervisorLock&) = delete;
  SupervisorLock& operator=(const SupervisorLock&) = delete;

 private:
  SupervisorLock(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  const int fd_;
  const std::string path_;
};

}  // namespace luff::store

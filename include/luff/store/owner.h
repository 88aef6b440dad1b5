#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "luff/base/env.h"
#include "luff/base/result.h"

/// Decides who may command a job: only the owner of its run, and only one supervisor at a time
/// (docs/spec/control.md).
namespace luff::store {

/// Checks that the user (effective uid) owns the run's directory and the folders in it that hold commands,
/// and that nobody else may write into them. Checks by descriptor; a missing folder is no error. Errors:
/// kFailedPrecondition with the remedy; kNotFound, kIo.
[[nodiscard]] Status CheckOwner(const std::string& run_path);

/// The lock of the run's supervisor. The object holds it for its lifetime. Child processes do not hold it,
/// and the kernel releases it when the process dies.
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

/// Returns true if it is certain that no process writes to the worker's folder: its last writer ran on this
/// machine since the last boot, perhaps in a container, and the folder's lock is free. Holds that lock
/// briefly, so a writer that opens the folder at that moment is refused.
[[nodiscard]] bool IsAbandoned(const std::string& run_path, std::uint32_t worker);

/// The process that writes, or last wrote, a worker's or host's folder, as its live page says.
struct FolderWriter {
  std::uint64_t pid = 0, start_ticks = 0;  // start_ticks 0: the process cannot be looked up from here
  bool here = false;                       // on this machine, since its last boot
  bool ended = false;                      // the page says so, or the process is gone
};
/// None if there is no whole page. `folder`: RUN/wNNNN or RUN/hNNNN.
[[nodiscard]] std::optional<FolderWriter> WriterOf(const std::string& folder);

/// The number of the folder in which the sampler of this machine, boot and namespace of process ids writes.
[[nodiscard]] std::uint32_t ThisHostNumber() noexcept;

}  // namespace luff::store

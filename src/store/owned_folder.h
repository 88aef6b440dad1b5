#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/result.h"

namespace luff::store {

/// A folder of a run, open by descriptor and proved: the user's own, and writable by nobody else. What is
/// read through it is what was proved, whatever becomes of the path. **Thread-compatible.**
class OwnedFolder {
 public:
  /// The run's directory; a link to it is followed. Errors: kFailedPrecondition with the remedy, kNotFound,
  /// kIo.
  [[nodiscard]] static Result<OwnedFolder> Open(const std::string& path);
  /// A folder in it; a link is refused.
  [[nodiscard]] Result<OwnedFolder> Below(const std::string& name) const;
  /// Names in it, without "." and "..", unsorted.
  [[nodiscard]] Result<std::vector<std::string>> List() const;
  /// Whole content of a regular file of the user's that nobody else may write. Errors: kOutOfRange when it is
  /// larger than `limit`, as above.
  [[nodiscard]] Result<std::string> Read(const std::string& name, std::uint64_t limit) const;

  OwnedFolder(OwnedFolder&& other) noexcept;
  OwnedFolder& operator=(OwnedFolder&&) = delete;
  ~OwnedFolder();

 private:
  OwnedFolder(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  [[nodiscard]] static Result<OwnedFolder> Prove(int fd, std::string path);
  int fd_;
  std::string path_;
};

}  // namespace luff::store

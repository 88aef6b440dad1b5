#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/result.h"

namespace luff::store {

/// A folder of a run, held by descriptor and checked: the user owns it and nobody else may write into it.
/// Reads go through the descriptor, so they reach the checked folder whatever happens to the path.
/// **Thread-compatible.**
class OwnedFolder {
 public:
  /// Opens the run's directory; follows a link to it. Errors: kFailedPrecondition with the remedy, kNotFound,
  /// kIo.
  [[nodiscard]] static Result<OwnedFolder> Open(const std::string& path);
  /// Opens a folder in it; refuses a link.
  [[nodiscard]] Result<OwnedFolder> Below(const std::string& name) const;
  /// Names in it, without "." and "..", unsorted.
  [[nodiscard]] Result<std::vector<std::string>> List() const;
  /// Reads a whole regular file that the user owns and nobody else may write. Errors: kOutOfRange if it is
  /// larger than `limit`, and those above.
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

#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "luff/base/result.h"

namespace luff {

/// A file of this user's own caches, mapped for reading. Only for files that nobody shortens: they are made
/// whole, renamed into place and removed, never written again. **Immutable**, thread-safe.
class MappedFile {
 public:
  /// Errors: kNotFound; kCorruption for a link, an empty file, anything but a regular file, or a file of
  /// somebody else; kOutOfRange beyond `limit` bytes; kIo.
  [[nodiscard]] static Result<std::shared_ptr<const MappedFile>> Open(const std::string& path,
                                                                      std::size_t limit);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  /// As long as the object lives. Aligned to a page.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  const std::span<const std::byte> bytes_;
};

}  // namespace luff

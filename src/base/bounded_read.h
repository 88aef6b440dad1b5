#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/posix_file.h"
#include "luff/base/result.h"

/// The one reader of files that others may have made: regular files only, and never more bytes than asked
/// for. A pipe is not waited for, a device not read.
///
/// `inside`: how many of the last names of a path lie in a directory that others may have made, e.g. 2 of
/// RUN/w0000/live. None of these may be a link, for it may lead out of that directory; 0 for a file that the
/// user named.
///
/// Errors: kNotFound; kCorruption (a link, or no regular file); kOutOfRange (more than `limit` bytes);
/// kResourceExhausted (no descriptor is left); kIo.
namespace luff {

/// An open regular file. **Immutable**, thread-safe. A number that somebody else in the process closed, and
/// that leads elsewhere since, is not closed again.
class RegularFile {
 public:
  [[nodiscard]] static Result<std::unique_ptr<RegularFile>> Open(const std::string& path, std::size_t inside);
  ~RegularFile() = default;
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  /// Both of the moment when it was opened.
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::int64_t mtime_ns() const noexcept { return mtime_ns_; }
  /// Reads up to the end of the file as it is now; the number of bytes read.
  [[nodiscard]] Result<std::size_t> ReadAt(std::span<std::byte> to, std::uint64_t offset) const;
  /// All of `to`. kIo where the file has become shorter.
  [[nodiscard]] Status ReadAllAt(std::span<std::byte> to, std::uint64_t offset) const;

 private:
  RegularFile(int fd, std::string path) : descriptor_(fd), path_(std::move(path)) {}
  const Descriptor descriptor_;
  const std::string path_;
  std::uint64_t size_ = 0;
  std::int64_t mtime_ns_ = 0;
};

/// The whole file; nothing of what it grows while it is read.
[[nodiscard]] Result<std::string> ReadRegular(const std::string& path, std::uint64_t limit,
                                              std::size_t inside);

/// A file of the kernel (/proc, /sys), whose size nobody knows before; "" if it cannot be read.
[[nodiscard]] std::string ReadKernelFile(const std::string& path, std::size_t limit = 1 << 20);

/// `names` beneath the directory `root`, followed name by name for kernels that have no openat2. A
/// descriptor, or -1 and errno: ELOOP for a link, EXDEV for "..".
[[nodiscard]] int OpenBeneathByWalking(int root, const std::string& names) noexcept;

}  // namespace luff

#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/posix_file.h"
#include "luff/base/result.h"

/// The only reader of files that others may have made. Reads regular files only, and never more bytes than
/// asked for; never waits for a pipe or reads a device.
///
/// `inside`: how many of the last names of a path lie in a directory that others may have made, e.g. 2 for
/// RUN/w0000/live. None of these may be a link, which might lead out of that directory. 0 for a file that the
/// user named.
///
/// Errors: kNotFound; kCorruption (a link, or not a regular file); kOutOfRange (more than `limit` bytes);
/// kResourceExhausted (out of descriptors); kIo.
namespace luff {

/// An open regular file. **Immutable**, thread-safe. If other code in the process has closed its descriptor
/// and the number now refers to another file, it is not closed again.
class RegularFile {
 public:
  [[nodiscard]] static Result<std::unique_ptr<RegularFile>> Open(const std::string& path, std::size_t inside);
  ~RegularFile() = default;
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  /// Both as of the time it was opened.
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::int64_t mtime_ns() const noexcept { return mtime_ns_; }
  /// Reads up to the current end of the file. Returns the number of bytes read.
  [[nodiscard]] Result<std::size_t> ReadAt(std::span<std::byte> to, std::uint64_t offset) const;
  /// Fills all of `to`. kIo if the file has become shorter.
  [[nodiscard]] Status ReadAllAt(std::span<std::byte> to, std::uint64_t offset) const;

 private:
  RegularFile(int fd, std::string path) : descriptor_(fd), path_(std::move(path)) {}
  const Descriptor descriptor_;
  const std::string path_;
  std::uint64_t size_ = 0;
  std::int64_t mtime_ns_ = 0;
};

/// Reads the whole file, but not what is appended meanwhile.
[[nodiscard]] Result<std::string> ReadRegular(const std::string& path, std::uint64_t limit,
                                              std::size_t inside);

/// Reads a kernel file (/proc, /sys), whose size is not known in advance; "" if it cannot be read.
[[nodiscard]] std::string ReadKernelFile(const std::string& path, std::size_t limit = 1 << 20);

/// Opens `names` beneath the directory `root`, name by name, for kernels without openat2. Returns a
/// descriptor, or -1 and errno: ELOOP for a link, EXDEV for "..".
[[nodiscard]] int OpenBeneathByWalking(int root, const std::string& names) noexcept;

}  // namespace luff

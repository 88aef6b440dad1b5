#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "luff/base/result.h"

/// Files of somebody else's directory: what is there may be anything, of any size, and may go away.
namespace luff::query {

/// Names in a folder, sorted, and whether each is a folder; false (errno) when it cannot be listed.
[[nodiscard]] bool ListFolder(const std::string& path, std::vector<std::pair<std::string, bool>>* names);
/// Time of the last change, -1 for what is not there.
[[nodiscard]] std::int64_t MtimeNs(const std::string& path) noexcept;
[[nodiscard]] std::int64_t NowNs() noexcept;
/// A whole small file and its time.
[[nodiscard]] Status ReadSmallFile(const std::string& path, std::string* text, std::int64_t* mtime_ns);

/// A regular file that is open for reading. **Thread-safe** once open.
class InputFile {
 public:
  InputFile() = default;
  InputFile(InputFile&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        size_(other.size_),
        mtime_ns_(other.mtime_ns_),
        path_(std::move(other.path_)) {}
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();
  /// kNotFound, kIo; kCorruption for what is no file (and nothing blocks: a pipe is not waited for).
  [[nodiscard]] static Result<InputFile> Open(const std::string& path);
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::int64_t mtime_ns() const noexcept { return mtime_ns_; }
  /// All of `to`. kIo when the file has become shorter.
  [[nodiscard]] Status ReadAt(std::uint64_t offset, std::span<std::byte> to) const;

 private:
  int fd_ = -1;
  std::uint64_t size_ = 0;
  std::int64_t mtime_ns_ = 0;
  std::string path_;
};

}  // namespace luff::query

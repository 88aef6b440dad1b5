#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/bounded_read.h"

namespace luff::store {

/// A file of a run that readers come back to, read by calls and never mapped: whoever cuts a mapped file off
/// kills everybody that looks at it. **Thread-compatible.**
///
/// It stays open between calls, but for those beyond the number that a process may keep of its kind: a run
/// has any number of segments and workers.
class ReaderFile {
 public:
  enum class Kind : std::uint8_t { kSegment, kPayload };
  ReaderFile(Kind kind, std::string path) : kind_(kind), path_(std::move(path)) {}
  ~ReaderFile() { Close(); }
  ReaderFile(const ReaderFile&) = delete;
  ReaderFile& operator=(const ReaderFile&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Asks a network file system for the newest state; the file's length. Errors: as RegularFile::Open.
  [[nodiscard]] Result<std::uint64_t> Reopen();
  /// Up to the end of the file as it is now; the number of bytes read. Errors: as RegularFile.
  [[nodiscard]] Result<std::size_t> ReadAt(std::span<std::byte> to, std::uint64_t offset);
  /// All of `to`. kCorruption, which names file and place, where the file ends before; that of a file that
  /// was replaced or has grown on another host is not told before it was opened anew.
  [[nodiscard]] Status ReadAllAt(std::span<std::byte> to, std::uint64_t offset);

 private:
  [[nodiscard]] Status Open();
  void Close() noexcept;
  void CloseBeyondLimit() noexcept;

  const Kind kind_;
  const std::string path_;
  std::unique_ptr<RegularFile> file_;
};

}  // namespace luff::store

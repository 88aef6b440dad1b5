#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/bounded_read.h"

namespace luff::store {

/// A file of a run that readers return to. It is read by system calls and never mapped, because truncating a
/// mapped file kills every process that reads it. **Thread-compatible.**
///
/// It stays open between calls, up to a limit on such files in a process, since a run may have any number of
/// segments and workers.
class ReaderFile {
 public:
  enum class Kind : std::uint8_t { kSegment, kPayload };
  ReaderFile(Kind kind, std::string path) : kind_(kind), path_(std::move(path)) {}
  ~ReaderFile() { Close(); }
  ReaderFile(const ReaderFile&) = delete;
  ReaderFile& operator=(const ReaderFile&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Opens the file again, so that a network file system shows its newest state. Returns its length. Errors:
  /// as RegularFile::Open.
  [[nodiscard]] Result<std::uint64_t> Reopen();
  /// Reads up to the current end of the file. Returns the number of bytes read. Errors: as RegularFile.
  [[nodiscard]] Result<std::size_t> ReadAt(std::span<std::byte> to, std::uint64_t offset);
  /// Fills all of `to`. If the file ends earlier: kCorruption that names file and place. Before it reports
  /// that, it reopens the file, which may have been replaced or have grown on another host.
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

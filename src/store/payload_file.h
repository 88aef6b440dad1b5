#pragma once
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "luff/base/env.h"
#include "luff/format/layout.h"

namespace luff::store {

/// How blocks are written to disk; shared by all payload files of a writer.
struct DirectIo {
  bool enabled = true;
  /// Shorter runs of bytes go through the page cache: below this a direct write costs more than it saves.
  static constexpr std::uint64_t kMinBytes = 128 << 10;
};

/// One payload file that is being appended to. **Owned by the writer thread.**
///
/// Writes long runs of bytes as whole pages with O_DIRECT, starting at a page boundary; the rest goes through
/// the page cache. No page is ever written both ways: before a direct write the file is padded with zeros to
/// the next page. After an error the file takes no more bytes; what was appended before stays valid.
class PayloadFile {
 public:
  /// Creates the file with its header. Errors: as Env and File.
  [[nodiscard]] static Result<std::unique_ptr<PayloadFile>> Create(Env& env, const std::string& path,
                                                                   const format::FileHeader& header,
                                                                   DirectIo* direct);
  ~PayloadFile();

  /// Appends and returns the offset of the first byte.
  [[nodiscard]] Result<std::uint64_t> Append(std::span<const std::byte> bytes);
  /// Reads back what was appended.
  [[nodiscard]] Status Read(std::span<std::byte> to, std::uint64_t offset);
  [[nodiscard]] Status Sync();
  /// Releases reserved space. Idempotent.
  void Finish() noexcept;

  [[nodiscard]] std::uint64_t end() const noexcept { return end_; }
  [[nodiscard]] bool failed() const noexcept { return failed_; }
  /// True if what was appended is gone: the file was removed or truncated.
  [[nodiscard]] bool lost() const noexcept { return lost_; }

 private:
  PayloadFile(Env& env, std::string path, std::unique_ptr<File> file, DirectIo* direct);
  Status WriteBuffered(std::span<const std::byte> bytes, std::uint64_t offset);
  /// False if the file system refuses direct writes; the caller then uses the page cache.
  Result<bool> WriteDirect(std::span<const std::byte> bytes, std::uint64_t offset);
  void ReserveUpTo(std::uint64_t end) noexcept;

  Env& env_;
  const std::string path_;
  std::unique_ptr<File> file_;
  std::unique_ptr<File> direct_file_;
  DirectIo* direct_;
  std::uint64_t end_ = 0;
  std::uint64_t reserved_ = 0;
  std::uint64_t dirty_begin_ = 0;    // of the window of buffered bytes that is being filled
  std::uint64_t writing_begin_ = 0;  // of the window before it, whose write-back was started
  const pid_t pid_ = getpid();
  bool failed_ = false;
  bool lost_ = false;
  bool finished_ = false;
};

}  // namespace luff::store

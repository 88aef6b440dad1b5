#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"

/// Files, directories and time behind an interface, so that tests can let them fail.
namespace luff {

/// Which file it is, of all that ever were on this machine: an inode number is given out again, often at
/// once.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0;
  std::int64_t born_ns = 0;      // 0: the file system does not say
  std::uint32_t generation = 0;  // of the inode number; 0: the file system does not say
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// One open file. **Thread-compatible**; used and destroyed on the thread that opened it where that has a
/// table of its own (file_table.h). Closed by the destructor.
///
/// The number of a descriptor is the process's, and anybody in it may close it: each call proves that the
/// same file is behind it still, and fails with kUnavailable otherwise. Then nothing is written, and the
/// number is never closed.
///
/// Errors of all writes: kResourceExhausted (ENOSPC, EDQUOT, EFBIG), kInvalidArgument (EINVAL: direct I/O
/// that the file system refuses), kNotFound (ENOENT, ESTALE), kUnavailable (above), kIo (all others).
/// Blocking: as the file system does.
class File {
 public:
  virtual ~File() = default;
  /// Writes all bytes at `offset`, or fails; then any part of them may have been written.
  [[nodiscard]] virtual Status WriteAt(std::span<const std::byte> bytes, std::uint64_t offset) = 0;
  /// Reads up to the end of the file; the number of bytes read.
  [[nodiscard]] virtual Result<std::size_t> ReadAt(std::span<std::byte> bytes, std::uint64_t offset) = 0;
  [[nodiscard]] virtual Result<std::uint64_t> Size() = 0;
  [[nodiscard]] virtual Status Truncate(std::uint64_t size) = 0;
  /// Data on stable storage (fdatasync).
  [[nodiscard]] virtual Status Sync() = 0;
  /// Reserves space without changing the size. Best effort: a file system without it is no error.
  [[nodiscard]] virtual Status Reserve(std::uint64_t offset, std::uint64_t bytes) = 0;
  /// Starts writing dirty pages of the range; with `finish` waits for them and drops them from the page
  /// cache.
  virtual void WriteBack(std::uint64_t offset, std::uint64_t bytes, bool finish) noexcept = 0;
  /// Takes an exclusive lock of the whole file without waiting. False when another process has it.
  [[nodiscard]] virtual bool TryLock() noexcept = 0;
  /// Whether what was written is still there for others. Errors: kUnavailable (above), kNotFound (the file
  /// was removed), kCorruption (it is shorter than what was written to it).
  [[nodiscard]] virtual Status Intact() { return Status::Ok(); }
  [[nodiscard]] virtual FileIdentity Identity() noexcept { return {}; }
};

/// **Thread-safe.** The process's view of the file system and the clocks. Env::Real() is the only one outside
/// tests.
class Env {
 public:
  enum class OpenMode : std::uint8_t {
    kRead,         // must exist
    kReadWrite,    // created when missing
    kCreateNew,    // kAlreadyExists when it exists
    kWriteDirect,  // must exist; O_DIRECT, kInvalidArgument where the file system has none
  };
  virtual ~Env() = default;
  [[nodiscard]] static Env& Real() noexcept;
  /// The real one, but paths at and below `directory` mean the directory that is there now, wherever it is
  /// moved to and whatever gets its name; once it is removed they are kNotFound. `directory` is compared as
  /// text.
  [[nodiscard]] static Result<std::unique_ptr<Env>> Anchored(const std::string& directory);

  [[nodiscard]] virtual Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) = 0;
  /// Directory and its missing parents, mode 0700. An existing directory is fine.
  [[nodiscard]] virtual Status MakeDirectories(const std::string& path) = 0;
  /// One directory, mode 0700. kAlreadyExists when there is anything of that name.
  [[nodiscard]] virtual Status MakeDirectory(const std::string& path) = 0;
  /// Names in a directory, sorted, without "." and "..". kNotFound when it is missing.
  [[nodiscard]] virtual Result<std::vector<std::string>> List(const std::string& path) = 0;
  [[nodiscard]] virtual Status Rename(const std::string& from, const std::string& to) = 0;
  /// A second name for a file (link(2)): kAlreadyExists instead of replacing.
  [[nodiscard]] virtual Status Link(const std::string& from, const std::string& to) = 0;
  [[nodiscard]] virtual Status Remove(const std::string& path) = 0;
  [[nodiscard]] virtual bool Exists(const std::string& path) noexcept = 0;
  [[nodiscard]] virtual std::int64_t NowUnixNs() noexcept = 0;
  [[nodiscard]] virtual std::int64_t NowMonotonicNs() noexcept = 0;
};

/// Whole content of a small file. kOutOfRange when it is larger than `limit`.
[[nodiscard]] Result<std::string> ReadWholeFile(Env& env, const std::string& path, std::uint64_t limit);

/// Writes `text` to a temporary name in the same directory, then renames it: readers see all or nothing.
[[nodiscard]] Status WriteWholeFile(Env& env, const std::string& path, std::string_view text);

/// Which machine, which start of it, which process: who wrote a live page and whether it is still there.
struct HostIdentity {
  std::uint64_t host = 0;      // hash of machine id and host name
  std::uint64_t boot[2] = {};  // the kernel's boot id
  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};
[[nodiscard]] HostIdentity ThisHost() noexcept;
/// Start time of a process in clock ticks since boot; 0 when there is no such process. With it a pid is
/// unique.
[[nodiscard]] std::uint64_t ProcessStartTicks(std::uint64_t pid) noexcept;

}  // namespace luff

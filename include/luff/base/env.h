#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"

/// Files, directories and time behind an interface, so that tests can make them fail.
namespace luff {

/// Identifies one file among all that ever existed on this machine. Inode numbers alone do not: they are
/// reused, often at once.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0;
  std::int64_t born_ns = 0;      // 0: unknown to the file system
  std::uint32_t generation = 0;  // of the inode number; 0: unknown to the file system
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// One open file; the destructor closes it. **Thread-compatible**. If the thread that opened it has its own
/// descriptor table (file_table.h), only that thread may use and destroy it.
///
/// Any code in the process may close a descriptor's number. So each call checks that the number still refers
/// to the same file, and fails with kUnavailable if not; it then writes nothing and never closes the number.
///
/// Errors of all writes: kResourceExhausted (ENOSPC, EDQUOT, EFBIG), kInvalidArgument (EINVAL: direct I/O
/// that the file system refuses), kNotFound (ENOENT, ESTALE), kUnavailable (above), kIo (all others). Calls
/// block as long as the file system does.
class File {
 public:
  virtual ~File() = default;
  /// Writes all bytes at `offset`. On failure any part of them may have been written.
  [[nodiscard]] virtual Status WriteAt(std::span<const std::byte> bytes, std::uint64_t offset) = 0;
  /// Reads up to the end of the file. Returns the number of bytes read.
  [[nodiscard]] virtual Result<std::size_t> ReadAt(std::span<std::byte> bytes, std::uint64_t offset) = 0;
  [[nodiscard]] virtual Result<std::uint64_t> Size() = 0;
  [[nodiscard]] virtual Status Truncate(std::uint64_t size) = 0;
  /// Forces the data to stable storage (fdatasync).
  [[nodiscard]] virtual Status Sync() = 0;
  /// Reserves space without changing the size. Best effort: succeeds on a file system without support.
  [[nodiscard]] virtual Status Reserve(std::uint64_t offset, std::uint64_t bytes) = 0;
  /// Starts writing dirty pages of the range; with `finish` waits for them and drops them from the page
  /// cache.
  virtual void WriteBack(std::uint64_t offset, std::uint64_t bytes, bool finish) noexcept = 0;
  /// Locks the whole file exclusively, without waiting. Returns false if another process holds the lock or
  /// the descriptor is no longer ours, and true if the file system has no locks.
  [[nodiscard]] virtual bool TryLock() noexcept = 0;
  /// Checks that others can still see what was written. Errors: kUnavailable (above), kNotFound (the file was
  /// removed), kCorruption (it is shorter than what was written to it).
  [[nodiscard]] virtual Status Intact() { return Status::Ok(); }
  [[nodiscard]] virtual FileIdentity Identity() noexcept { return {}; }
};

/// **Thread-safe.** The process's view of the file system and the clocks. Code outside tests uses only Real()
/// and Anchored().
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
  /// Returns the real Env, except that paths at and below `directory` refer to the directory that exists now,
  /// even after it is moved or another takes its name; once it is removed they give kNotFound. `directory` is
  /// compared as text.
  [[nodiscard]] static Result<std::unique_ptr<Env>> Anchored(const std::string& directory);

  [[nodiscard]] virtual Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) = 0;
  /// Creates a directory and its missing parents, mode 0700. An existing directory is no error.
  [[nodiscard]] virtual Status MakeDirectories(const std::string& path) = 0;
  /// Creates one directory, mode 0700. kAlreadyExists if anything has that name.
  [[nodiscard]] virtual Status MakeDirectory(const std::string& path) = 0;
  /// Names in a directory, sorted, without "." and "..". kNotFound when it is missing.
  [[nodiscard]] virtual Result<std::vector<std::string>> List(const std::string& path) = 0;
  /// Forces the names in a directory to stable storage (fsync).
  [[nodiscard]] virtual Status SyncDirectory(const std::string& path) = 0;
  [[nodiscard]] virtual Status Rename(const std::string& from, const std::string& to) = 0;
  /// Gives a file a second name (link(2)). Never replaces: kAlreadyExists instead.
  [[nodiscard]] virtual Status Link(const std::string& from, const std::string& to) = 0;
  [[nodiscard]] virtual Status Remove(const std::string& path) = 0;
  [[nodiscard]] virtual bool Exists(const std::string& path) noexcept = 0;
  [[nodiscard]] virtual std::int64_t NowUnixNs() noexcept = 0;
  [[nodiscard]] virtual std::int64_t NowMonotonicNs() noexcept = 0;
};

/// Reads the whole content of a small file. kOutOfRange when it is larger than `limit`.
[[nodiscard]] Result<std::string> ReadWholeFile(Env& env, const std::string& path, std::uint64_t limit);

/// Writes `text` under a temporary name in the same directory, syncs and renames it: readers see either the
/// whole old file or the whole new one, even after a power failure.
[[nodiscard]] Status WriteWholeFile(Env& env, const std::string& path, std::string_view text);

/// The same for a name that must not exist yet: returns kAlreadyExists instead of replacing.
[[nodiscard]] Status WriteNewFile(Env& env, const std::string& path, std::string_view text);

/// A machine and its current boot. Identifies the machine that wrote a live page, and shows whether its
/// process can still exist.
struct HostIdentity {
  std::uint64_t host = 0;      // hash of machine id and host name
  std::uint64_t boot[2] = {};  // the kernel's boot id
  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};
[[nodiscard]] HostIdentity ThisHost() noexcept;
/// Returns the start time of a process in clock ticks since boot; 0 if there is no such process. The pid and
/// this time together identify a process of this boot.
[[nodiscard]] std::uint64_t ProcessStartTicks(std::uint64_t pid) noexcept;

}  // namespace luff

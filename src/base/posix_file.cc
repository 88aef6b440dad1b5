#include "base/posix_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/interrupted.h"
#include "luff/base/file_table.h"

namespace luff {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr rlim_t kHighest = 4096;  // a table is as large as its largest number, and each fork copies it
constexpr rlim_t kSpan = 256;      // numbers below the limit, or below kHighest, that we use

struct Found {
  FileIdentity identity;
  std::uint64_t links = 0, size = 0;
  bool regular = false;
};

/// Uses only what the kernel has in memory: makes no request to a network file system and causes no
/// write-back.
bool Look(int fd, Found* found) noexcept {
  struct statx info{};
  const int flags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  if (statx(fd, "", flags, STATX_TYPE | STATX_INO | STATX_NLINK | STATX_SIZE | STATX_BTIME, &info) == 0) {
    found->identity.device = std::uint64_t{info.stx_dev_major} << 32 | info.stx_dev_minor;
    found->identity.inode = info.stx_ino;
    found->identity.born_ns =
        (info.stx_mask & STATX_BTIME) == 0 ? 0 : info.stx_btime.tv_sec * kSecond + info.stx_btime.tv_nsec;
    found->links = info.stx_nlink;
    found->size = info.stx_size;
    found->regular = S_ISREG(info.stx_mode);
    return true;
  }
  if (errno != ENOSYS && errno != EPERM) return false;  // a kernel or sandbox that does not know statx
  struct stat old{};
  if (fstat(fd, &old) != 0) return false;
  found->identity = {old.st_dev, old.st_ino, 0};
  found->links = old.st_nlink;
  found->size = static_cast<std::uint64_t>(old.st_size);
  found->regular = S_ISREG(old.st_mode);
  return true;
}

/// Returns the generation of the inode number; 0 if the file system has none. Only for regular files: a
/// device might take the request for another command. By its number the request returns a long; most file
/// systems write an int, but those in user space may write the whole long.
std::uint32_t GenerationOf(int fd) noexcept {
  std::uint32_t answer[sizeof(long) / sizeof(std::uint32_t)] = {};
  return ioctl(fd, FS_IOC_GETVERSION, answer) == 0 ? answer[0] : 0;
}

bool SameFile(int fd, const FileIdentity& found, const FileIdentity& known) noexcept {
  return found.device == known.device && found.inode == known.inode &&
         (found.born_ns == known.born_ns || found.born_ns == 0 || known.born_ns == 0) &&
         (known.generation == 0 || GenerationOf(fd) == known.generation);
}

/// New files get the lowest free number, so we use high numbers, which are rarely reused.
int LeastNumber() noexcept {
  if (CurrentFileTable() != 0) return 3;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 3;
  const rlim_t end = std::min(limit.rlim_cur, kHighest);
  return static_cast<int>(end - std::min(kSpan, end / 4));
}

class PosixFile final : public File {
 public:
  PosixFile(Descriptor descriptor, std::string path)
      : descriptor_(std::move(descriptor)),
        path_(std::move(path)) {}

  Status WriteAt(std::span<const std::byte> bytes, std::uint64_t offset) override {
    LUFF_RETURN_IF_ERROR(Ours());
    while (!bytes.empty()) {
      const ssize_t n =
          Uninterrupted([&] { return pwrite(fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
      if (n < 0) return FromErrno(errno, "write", path_);
      if (n == 0) return IoError("write accepted no byte: " + path_);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
      offset += static_cast<std::uint64_t>(n);
      end_ = std::max(end_, offset);
    }
    return Status::Ok();
  }

  Result<std::size_t> ReadAt(std::span<std::byte> bytes, std::uint64_t offset) override {
    LUFF_RETURN_IF_ERROR(Ours());
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n = Uninterrupted([&] {
        return pread(fd(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
      });
      if (n < 0) return FromErrno(errno, "read", path_);
      if (n == 0) break;
      done += static_cast<std::size_t>(n);
    }
    return done;
  }

  Result<std::uint64_t> Size() override {
    LUFF_RETURN_IF_ERROR(Ours());
    struct stat info{};
    if (fstat(fd(), &info) != 0) return FromErrno(errno, "size", path_);
    return static_cast<std::uint64_t>(info.st_size);
  }

  Status Truncate(std::uint64_t size) override {
    LUFF_RETURN_IF_ERROR(Ours());
    if (Uninterrupted([&] { return ftruncate(fd(), static_cast<off_t>(size)); }) != 0)
      return FromErrno(errno, "truncate", path_);
    end_ = std::min(end_, size);
    return Status::Ok();
  }

  Status Sync() override {
    LUFF_RETURN_IF_ERROR(Ours());
    const bool synced = Uninterrupted([&] { return fdatasync(fd()); }) == 0;
    return synced || errno == EINVAL ? Status::Ok() : FromErrno(errno, "sync", path_);  // EINVAL: cannot sync
  }

  Status Reserve(std::uint64_t offset, std::uint64_t bytes) override {
    LUFF_RETURN_IF_ERROR(Ours());
    const int reserved = Uninterrupted([&] {
      return fallocate(fd(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    });
    if (reserved == 0) return Status::Ok();
    return errno == EOPNOTSUPP || errno == ENOSYS ? Status::Ok() : FromErrno(errno, "reserve space", path_);
  }

  void WriteBack(std::uint64_t offset, std::uint64_t bytes, bool finish) noexcept override {
    if (!descriptor_.Prove()) return;
    const auto from = static_cast<off_t>(offset);
    const auto count = static_cast<off_t>(bytes);
    if (!finish) {
      (void)sync_file_range(fd(), from, count, SYNC_FILE_RANGE_WRITE);
      return;
    }
    (void)sync_file_range(fd(), from, count,
                          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    (void)posix_fadvise(fd(), from, count, POSIX_FADV_DONTNEED);
  }

  bool TryLock() noexcept override {
    if (!descriptor_.Prove()) return false;
    return flock(fd(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;  // other errors: no locks here
  }

  Status Intact() override {
    std::uint64_t links = 0;
    std::uint64_t size = 0;
    if (!descriptor_.Prove(&links, &size)) return Taken();
    if (links == 0) return NotFound("the file was removed while it was written: " + path_);
    if (size < end_) {
      return Corruption("found " + std::to_string(size) + " bytes, " + std::to_string(end_) +
                        " were written: another process has cut the file off: " + path_);
    }
    return Status::Ok();
  }

  FileIdentity Identity() noexcept override { return descriptor_.identity(); }

 private:
  [[nodiscard]] int fd() const noexcept { return descriptor_.fd(); }
  [[nodiscard]] Status Ours() const { return descriptor_.Prove() ? Status::Ok() : Taken(); }
  [[nodiscard]] Status Taken() const {
    return Unavailable("the process has closed descriptor " + std::to_string(fd()) +
                       ", which was ours: " + path_);
  }

  Descriptor descriptor_;
  const std::string path_;
  std::uint64_t end_ = 0;  // end of what was written through this object
};

}  // namespace

Status FromErrno(int error, std::string_view what, const std::string& path) {
  char text[128] = {};
  const char* reason = strerror_r(error, text, sizeof(text));
  std::string message = std::string(what) + ": " + reason + ": " + path;
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE: return ResourceExhausted(std::move(message));
    case EINVAL:
    case EOPNOTSUPP: return InvalidArgument(std::move(message));
    case ENOENT:
    case ENOTDIR:
    case ESTALE: return NotFound(std::move(message));
    case EEXIST: return AlreadyExists(std::move(message));
    default: return IoError(std::move(message));
  }
}

Descriptor::Descriptor(int fd) noexcept : fd_(fd), table_(CurrentFileTable()) {
  Found found;
  if (fd < 0 || !Look(fd, &found)) return;
  identity_ = found.identity;
  if (found.regular) identity_.generation = GenerationOf(fd);
  const int least = LeastNumber();
  if (fd >= least) return;
  const int high = fcntl(fd, F_DUPFD_CLOEXEC, least);
  if (high < 0) return;
  Close();
  fd_ = high;
}

Descriptor::Descriptor(Descriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      table_(other.table_),
      identity_(other.identity_) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
    table_ = other.table_;
    identity_ = other.identity_;
  }
  return *this;
}

bool Descriptor::Prove(std::uint64_t* links, std::uint64_t* size) const noexcept {
  if (fd_ < 0 || table_ != CurrentFileTable()) return false;
  if (table_ != 0 && links == nullptr && size == nullptr) return true;  // no other thread has this table
  Found found;
  if (!Look(fd_, &found)) return false;
  if (table_ == 0 && !SameFile(fd_, found.identity, identity_)) return false;
  if (links != nullptr) *links = found.links;
  if (size != nullptr) *size = found.size;
  return true;
}

void Descriptor::Close() noexcept {
  if (Prove()) close(fd_);
  fd_ = -1;
}

std::unique_ptr<File> MakePosixFile(Descriptor descriptor, std::string path) {
  return std::make_unique<PosixFile>(std::move(descriptor), std::move(path));
}

}  // namespace luff

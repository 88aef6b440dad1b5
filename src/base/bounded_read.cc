#include "base/bounded_read.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/directory_id.h"
#include "base/interrupted.h"
#include "base/owned_fd.h"

namespace luff {
namespace {

constexpr int kReadFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

Status NotOpened(int error, const std::string& path) {
  switch (error) {
    case ELOOP:
    case EXDEV: return Corruption("found a link, expected a file; what it leads to is not read: " + path);
    case ENOENT:
    case ENOTDIR:
    case ESTALE: return NotFound("open: " + std::string(std::strerror(error)) + ": " + path);
    case EMFILE:
    case ENFILE: return ResourceExhausted("open: " + std::string(std::strerror(error)) + ": " + path);
    case ENXIO:  // a socket
    case ENODEV: return Corruption("found something that is no regular file: " + path);
    default: return IoError("open: " + std::string(std::strerror(error)) + ": " + path);
  }
}

/// Returns the offset at which the last `inside` names of `path` begin.
std::size_t RootBytes(std::string_view path, std::size_t inside) {
  std::size_t at = path.size();
  for (; inside > 0 && at > 0; --inside) {
    const std::size_t slash = path.substr(0, at).find_last_of('/');
    if (slash == std::string_view::npos) return 0;
    at = slash;
    while (inside > 1 && at > 0 && path[at - 1] == '/') --at;
  }
  return std::min(at + 1, path.size());
}

int OpenBeneath(int root, const std::string& names) noexcept {
  static std::atomic<bool> has_openat2{true};
  if (has_openat2.load(std::memory_order_relaxed)) {
    open_how how{};
    how.flags = kReadFlags;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    for (int tries = 0; tries < 8; ++tries) {
      const long fd = syscall(SYS_openat2, root, names.c_str(), &how, sizeof(how));
      if (fd >= 0) return static_cast<int>(fd);
      if (errno != EAGAIN && errno != EINTR) break;  // EAGAIN: a directory was moved meanwhile
    }
    if (errno != ENOSYS && errno != EPERM && errno != EAGAIN) return -1;
    if (errno == ENOSYS) has_openat2.store(false, std::memory_order_relaxed);
  }
  return OpenBeneathByWalking(root, names);
}

int OpenPath(const std::string& path, std::size_t inside) noexcept {
  if (inside == 0) return Uninterrupted([&] { return open(path.c_str(), kReadFlags); });
  const std::size_t cut = RootBytes(path, inside);
  const std::string root = cut == 0 ? "." : path.substr(0, cut);
  const OwnedFd folder(Uninterrupted([&] { return open(root.c_str(), O_PATH | O_CLOEXEC | O_DIRECTORY); }));
  return folder.get() < 0 ? -1 : OpenBeneath(folder.get(), path.substr(cut));
}

}  // namespace

int OpenBeneathByWalking(int root, const std::string& names) noexcept {
  OwnedFd at;
  for (std::size_t from = 0; from < names.size();) {
    const std::size_t slash = std::min(names.find('/', from), names.size());
    const std::string name = names.substr(from, slash - from);
    const bool last = slash == names.size();
    from = slash + 1;
    if (name.empty() || name == ".") continue;
    if (name == "..") {
      errno = EXDEV;
      return -1;
    }
    const int folder = at.get() < 0 ? root : at.get();
    const int flags = (last ? kReadFlags : O_PATH | O_CLOEXEC | O_DIRECTORY) | O_NOFOLLOW;
    const int fd = Uninterrupted([&] { return openat(folder, name.c_str(), flags); });
    if (fd < 0) {
      // With O_DIRECTORY and O_NOFOLLOW, a link to a directory fails with ENOTDIR.
      struct stat info{};
      const int error = errno;
      const bool link =
          fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
      errno = link ? ELOOP : error;
      return -1;
    }
    if (last) return fd;
    at = OwnedFd(fd);
  }
  errno = EISDIR;
  return -1;
}

Result<DirectoryId> DirectoryAt(const std::string& path, std::size_t inside) {
  const OwnedFd fd(OpenPath(path, inside));
  struct stat info{};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return NotOpened(errno, path);
  if (!S_ISDIR(info.st_mode)) return Corruption("found something that is no directory: " + path);
  return DirectoryId{info.st_dev, info.st_ino};
}

Result<std::unique_ptr<RegularFile>> RegularFile::Open(const std::string& path, std::size_t inside) {
  const int fd = OpenPath(path, inside);
  if (fd < 0) return NotOpened(errno, path);
  std::unique_ptr<RegularFile> file(new RegularFile(fd, path));
  struct stat info{};
  if (fstat(file->descriptor_.fd(), &info) != 0) return NotOpened(errno, path);
  if (!S_ISREG(info.st_mode)) return NotOpened(ENODEV, path);
  file->size_ = static_cast<std::uint64_t>(info.st_size);
  file->mtime_ns_ = static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
  return file;
}

Result<std::size_t> RegularFile::ReadAt(std::span<std::byte> to, std::uint64_t offset) const {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t got = Uninterrupted([&] {
      return pread(descriptor_.fd(), to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    });
    if (got < 0) return IoError("read: " + std::string(std::strerror(errno)) + ": " + path_);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

Status RegularFile::ReadAllAt(std::span<std::byte> to, std::uint64_t offset) const {
  LUFF_ASSIGN_OR_RETURN(const std::size_t got, ReadAt(to, offset));
  return got == to.size() ? Status::Ok() : IoError("the file became shorter while it was read: " + path_);
}

Result<std::string> ReadRegular(const std::string& path, std::uint64_t limit, std::size_t inside) {
  LUFF_ASSIGN_OR_RETURN(const auto file, RegularFile::Open(path, inside));
  if (file->size() > limit) {
    return OutOfRange("found " + std::to_string(file->size()) + " bytes, expected at most " +
                      std::to_string(limit) + ": " + path);
  }
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  LUFF_ASSIGN_OR_RETURN(const std::size_t got,
                        file->ReadAt(std::as_writable_bytes(std::span(text.data(), text.size())), 0));
  text.resize(got);
  return text;
}

std::string ReadKernelFile(const std::string& path, std::size_t limit) {
  const OwnedFd file(Uninterrupted([&] { return open(path.c_str(), kReadFlags); }));
  std::string text;
  if (file.get() < 0) return text;
  char buffer[4096];
  while (text.size() < limit) {
    const std::size_t most = std::min(sizeof(buffer), limit - text.size());
    const ssize_t got = Uninterrupted([&] { return read(file.get(), buffer, most); });
    if (got <= 0) break;
    text.append(buffer, static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace luff

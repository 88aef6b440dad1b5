#include "luff/base/env.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace luff {
namespace {

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

class RealFile final : public File {
 public:
  RealFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~RealFile() override {
    if (map_ != nullptr) munmap(map_, map_bytes_);
    close(fd_);
  }

  Status WriteAt(std::span<const std::byte> bytes, std::uint64_t offset) override {
    while (!bytes.empty()) {
      const ssize_t n = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0) {
        if (errno == EINTR) continue;
        return FromErrno(errno, "write", path_);
      }
      if (n == 0) return IoError("write accepted no byte: " + path_);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
      offset += static_cast<std::uint64_t>(n);
    }
    return Status::Ok();
  }

  Result<std::size_t> ReadAt(std::span<std::byte> bytes, std::uint64_t offset) override {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n =
          pread(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
      if (n < 0) {
        if (errno == EINTR) continue;
        return FromErrno(errno, "read", path_);
      }
      if (n == 0) break;
      done += static_cast<std::size_t>(n);
    }
    return done;
  }

  Result<std::uint64_t> Size() override {
    struct stat info{};
    if (fstat(fd_, &info) != 0) return FromErrno(errno, "size", path_);
    return static_cast<std::uint64_t>(info.st_size);
  }

  Status Truncate(std::uint64_t size) override {
    return ftruncate(fd_, static_cast<off_t>(size)) == 0 ? Status::Ok() : FromErrno(errno, "truncate", path_);
  }

  Status Sync() override { return fdatasync(fd_) == 0 ? Status::Ok() : FromErrno(errno, "sync", path_); }

  Status Reserve(std::uint64_t offset, std::uint64_t bytes) override {
    if (fallocate(fd_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) {
      return Status::Ok();
    }
    return errno == EOPNOTSUPP || errno == ENOSYS ? Status::Ok() : FromErrno(errno, "reserve space", path_);
  }

  void WriteBack(std::uint64_t offset, std::uint64_t bytes, bool finish) noexcept override {
    const auto from = static_cast<off_t>(offset);
    const auto count = static_cast<off_t>(bytes);
    if (!finish) {
      (void)sync_file_range(fd_, from, count, SYNC_FILE_RANGE_WRITE);
      return;
    }
    (void)sync_file_range(fd_, from, count,
                          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    (void)posix_fadvise(fd_, from, count, POSIX_FADV_DONTNEED);
  }

  bool TryLock() noexcept override {
    return flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno == ENOLCK || errno == ENOSYS;
  }

  std::byte* MapShared(std::size_t bytes) noexcept override {
    if (map_ == nullptr) {
      void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
      if (map == MAP_FAILED) return nullptr;
      map_ = map;
      map_bytes_ = bytes;
    }
    return static_cast<std::byte*>(map_);
  }

 private:
  const int fd_;
  const std::string path_;
  void* map_ = nullptr;
  std::size_t map_bytes_ = 0;
};

class RealEnv final : public Env {
 public:
  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    int flags = O_CLOEXEC;
    switch (mode) {
      case OpenMode::kRead: flags |= O_RDONLY | O_NONBLOCK; break;  // a pipe must not be waited for
      case OpenMode::kReadWrite: flags |= O_RDWR | O_CREAT; break;
      case OpenMode::kCreateNew: flags |= O_RDWR | O_CREAT | O_EXCL; break;
      case OpenMode::kWriteDirect: flags |= O_WRONLY | O_DIRECT; break;
    }
    const int fd = open(path.c_str(), flags, 0600);
    if (fd < 0) return FromErrno(errno, "open", path);
    return std::unique_ptr<File>(new RealFile(fd, path));
  }

  Status MakeDirectories(const std::string& path) override {
    for (std::size_t at = 1; at <= path.size(); ++at) {
      if (at < path.size() && path[at] != '/') continue;
      const std::string part = path.substr(0, at);
      if (mkdir(part.c_str(), 0700) == 0) continue;
      const int error = errno;
      struct stat info{};
      if (stat(part.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) continue;
      return FromErrno(error, "make directory", part);
    }
    return Status::Ok();
  }

  Status MakeDirectory(const std::string& path) override {
    return mkdir(path.c_str(), 0700) == 0 ? Status::Ok() : FromErrno(errno, "make directory", path);
  }

  Result<std::vector<std::string>> List(const std::string& path) override {
    DIR* directory = opendir(path.c_str());
    if (directory == nullptr) return FromErrno(errno, "list directory", path);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(directory)) {
      if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0) {
        names.emplace_back(entry->d_name);
      }
      errno = 0;
    }
    const int error = errno;
    closedir(directory);
    if (error != 0) return FromErrno(error, "list directory", path);
    std::sort(names.begin(), names.end());
    return names;
  }

  Status Rename(const std::string& from, const std::string& to) override {
    return rename(from.c_str(), to.c_str()) == 0 ? Status::Ok() : FromErrno(errno, "rename", to);
  }
  Status Link(const std::string& from, const std::string& to) override {
    return link(from.c_str(), to.c_str()) == 0 ? Status::Ok() : FromErrno(errno, "link", to);
  }
  Status Remove(const std::string& path) override {
    return unlink(path.c_str()) == 0 ? Status::Ok() : FromErrno(errno, "remove", path);
  }
  bool Exists(const std::string& path) noexcept override { return access(path.c_str(), F_OK) == 0; }
  std::int64_t NowUnixNs() noexcept override { return Now(CLOCK_REALTIME); }
  std::int64_t NowMonotonicNs() noexcept override { return Now(CLOCK_MONOTONIC); }

 private:
  static std::int64_t Now(clockid_t clock) noexcept {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  }
};

std::size_t ReadSmall(const char* path, char* buffer, std::size_t capacity) noexcept {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t n = read(fd, buffer, capacity);
  close(fd);
  return n > 0 ? static_cast<std::size_t>(n) : 0;
}

std::uint64_t Fnv1a(std::uint64_t hash, const char* bytes, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 1099511628211ULL;
  }
  return hash;
}

}  // namespace

Env& Env::Real() noexcept {
  static RealEnv env;
  return env;
}

Result<std::string> ReadWholeFile(Env& env, const std::string& path, std::uint64_t limit) {
  LUFF_ASSIGN_OR_RETURN(auto file, env.Open(path, Env::OpenMode::kRead));
  LUFF_ASSIGN_OR_RETURN(const std::uint64_t size, file->Size());
  if (size > limit) {
    return OutOfRange("found " + std::to_string(size) + " bytes, expected at most " + std::to_string(limit) +
                      ": " + path);
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  LUFF_ASSIGN_OR_RETURN(const std::size_t read,
                        file->ReadAt(std::as_writable_bytes(std::span(text.data(), text.size())), 0));
  text.resize(read);
  return text;
}

Status WriteWholeFile(Env& env, const std::string& path, std::string_view text) {
  const std::string temporary =
      path + ".tmp" + std::to_string(getpid()) + "-" + std::to_string(env.NowMonotonicNs());
  Status status;
  {
    LUFF_ASSIGN_OR_RETURN(auto file, env.Open(temporary, Env::OpenMode::kCreateNew));
    status = file->WriteAt(std::as_bytes(std::span(text.data(), text.size())), 0);
  }
  if (status.ok()) status = env.Rename(temporary, path);
  if (!status.ok()) (void)env.Remove(temporary);
  return status;
}

HostIdentity ThisHost() noexcept {
  HostIdentity identity;
  char text[256] = {};
  std::uint64_t hash = 14695981039346656037ULL;
  hash = Fnv1a(hash, text, ReadSmall("/etc/machine-id", text, sizeof(text)));
  if (gethostname(text, sizeof(text)) == 0) hash = Fnv1a(hash, text, strnlen(text, sizeof(text)));
  identity.host = hash;
  std::size_t n = ReadSmall("/proc/sys/kernel/random/boot_id", text, sizeof(text));
  unsigned digits = 0;
  for (std::size_t i = 0; i < n && digits < 32; ++i) {
    const char c = text[i];
    std::uint64_t nibble = 0;
    if (c >= '0' && c <= '9')
      nibble = static_cast<std::uint64_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      nibble = static_cast<std::uint64_t>(c - 'a') + 10;
    else
      continue;
    identity.boot[digits / 16] = identity.boot[digits / 16] << 4 | nibble;
    ++digits;
  }
  return identity;
}

std::uint64_t ProcessStartTicks(std::uint64_t pid) noexcept {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%llu/stat", static_cast<unsigned long long>(pid));
  char text[1024];
  const std::size_t n = ReadSmall(path, text, sizeof(text) - 1);
  text[n] = '\0';
  // The command name may hold spaces and brackets: fields are counted after the last one. Start time is
  // field 22.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr) return 0;
  for (int field = 2; field < 22; ++field) {
    at = std::strchr(at + 1, ' ');
    if (at == nullptr) return 0;
  }
  return std::strtoull(at + 1, nullptr, 10);
}

}  // namespace luff

#include "luff/base/env.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/interrupted.h"
#include "base/posix_file.h"

namespace luff {
namespace {

class RealEnv : public Env {
 public:
  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    int flags = O_CLOEXEC;
    switch (mode) {
      case OpenMode::kRead: flags |= O_RDONLY | O_NONBLOCK; break;               // do not wait for a pipe
      case OpenMode::kReadWrite: flags |= O_RDWR | O_CREAT | O_NOFOLLOW; break;  // never through a link
      case OpenMode::kCreateNew: flags |= O_RDWR | O_CREAT | O_EXCL; break;
      case OpenMode::kWriteDirect: flags |= O_WRONLY | O_DIRECT; break;
    }
    LUFF_ASSIGN_OR_RETURN(const Place place, Find(path));
    const int fd = Uninterrupted([&] { return openat(place.directory, place.name, flags, 0600); });
    if (fd < 0) return FromErrno(errno, "open", path);
    return MakePosixFile(Descriptor(fd), path);
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
    LUFF_ASSIGN_OR_RETURN(const int fd, OpenDirectoryIn(path));
    DIR* directory = fdopendir(fd);
    if (directory == nullptr) {
      const int error = errno;
      close(fd);
      return FromErrno(error, "list directory", path);
    }
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

  Status SyncDirectory(const std::string& path) override {
    LUFF_ASSIGN_OR_RETURN(const int fd, OpenDirectoryIn(path));
    const bool synced = Uninterrupted([&] { return fsync(fd); }) == 0;
    const int error = errno;
    close(fd);
    return synced ? Status::Ok() : FromErrno(error, "sync directory", path);
  }

  Status Rename(const std::string& from, const std::string& to) override {
    LUFF_ASSIGN_OR_RETURN(const Place old, Find(from));
    LUFF_ASSIGN_OR_RETURN(const Place place, Find(to));
    return renameat(old.directory, old.name, place.directory, place.name) == 0
               ? Status::Ok()
               : FromErrno(errno, "rename", to);
  }
  Status Link(const std::string& from, const std::string& to) override {
    LUFF_ASSIGN_OR_RETURN(const Place old, Find(from));
    LUFF_ASSIGN_OR_RETURN(const Place place, Find(to));
    return linkat(old.directory, old.name, place.directory, place.name, 0) == 0
               ? Status::Ok()
               : FromErrno(errno, "link", to);
  }
  Status Remove(const std::string& path) override {
    LUFF_ASSIGN_OR_RETURN(const Place place, Find(path));
    return unlinkat(place.directory, place.name, 0) == 0 ? Status::Ok() : FromErrno(errno, "remove", path);
  }
  bool Exists(const std::string& path) noexcept override {
    try {
      const Result<Place> place = Find(path);
      return place.ok() && faccessat(place->directory, place->name, F_OK, 0) == 0;
    } catch (const std::bad_alloc&) {
      return true;  // unknown: assume that it exists
    }
  }
  std::int64_t NowUnixNs() noexcept override { return Now(CLOCK_REALTIME); }
  std::int64_t NowMonotonicNs() noexcept override { return Now(CLOCK_MONOTONIC); }

 protected:
  struct Place {
    int directory = AT_FDCWD;
    const char* name = nullptr;  // within the path passed to Find, or "."
  };
  [[nodiscard]] virtual Result<Place> Find(const std::string& path) { return Place{AT_FDCWD, path.c_str()}; }

 private:
  Result<int> OpenDirectoryIn(const std::string& path) {
    LUFF_ASSIGN_OR_RETURN(const Place place, Find(path));
    constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    const int fd = Uninterrupted([&] { return openat(place.directory, place.name, kFlags); });
    if (fd < 0) return FromErrno(errno, "list directory", path);
    return fd;
  }
  static std::int64_t Now(clockid_t clock) noexcept {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  }
};

Descriptor OpenDirectory(const std::string& path) noexcept {
  return Descriptor(Uninterrupted([&] { return open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); }));
}

class AnchoredEnv final : public RealEnv {
 public:
  AnchoredEnv(std::string root, Descriptor directory)
      : root_(std::move(root)),
        directory_(std::move(directory)),
        identity_(directory_.identity()) {}

 protected:
  Result<Place> Find(const std::string& path) override {
    if (!path.starts_with(root_) || (path.size() > root_.size() && path[root_.size()] != '/')) {
      return RealEnv::Find(path);
    }
    std::uint64_t links = 0;
    if (!directory_.Prove(&links)) {  // the process closed it; the path may still lead there
      directory_ = Descriptor();      // forget the number before OpenDirectory can get it again
      Descriptor again = OpenDirectory(root_);
      if (again.identity() == identity_ && again.Prove(&links)) directory_ = std::move(again);
    }
    if (links == 0) return NotFound("the directory was removed or moved away while it was written: " + root_);
    return Place{directory_.fd(), path.size() > root_.size() + 1 ? path.c_str() + root_.size() + 1 : "."};
  }

 private:
  const std::string root_;
  Descriptor directory_;
  const FileIdentity identity_;
};

std::size_t ReadSmall(const char* path, char* buffer, std::size_t capacity) noexcept {
  const int fd = Uninterrupted([&] { return open(path, O_RDONLY | O_CLOEXEC); });
  if (fd < 0) return 0;
  const ssize_t n = Uninterrupted([&] { return read(fd, buffer, capacity); });
  close(fd);
  return n > 0 ? static_cast<std::size_t>(n) : 0;
}

std::uint64_t Fnv1a(std::uint64_t hash, const char* bytes, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 1099511628211ULL;
  }
  return hash;
}

/// Over NFS, the reply to a successful link(2) may be lost; the repeated request then reports that the name
/// exists. So check whether the name refers to our file.
bool IsSameFile(const std::string& a, const std::string& b) noexcept {
  struct stat first{};
  struct stat second{};
  return lstat(a.c_str(), &first) == 0 && lstat(b.c_str(), &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

/// Writes and syncs a temporary file in the same directory; `put` gives it its final name.
template <typename Put>
Status WriteBeside(Env& env, const std::string& path, std::string_view text, Put put) {
  const std::string temporary =
      path + ".tmp" + std::to_string(getpid()) + "-" + std::to_string(env.NowMonotonicNs());
  Status status;
  {
    LUFF_ASSIGN_OR_RETURN(auto file, env.Open(temporary, Env::OpenMode::kCreateNew));
    status = file->WriteAt(std::as_bytes(std::span(text.data(), text.size())), 0);
    if (status.ok()) status = file->Sync();
  }
  if (status.ok()) status = put(temporary);
  if (!status.ok()) {
    (void)env.Remove(temporary);
    return status;
  }
  (void)env.SyncDirectory(path.substr(0, path.rfind('/')));  // the file has its name: too late to fail
  return status;
}

}  // namespace

Env& Env::Real() noexcept {
  alignas(RealEnv) static std::byte place[sizeof(RealEnv)];
  static Env* const env = new (place) RealEnv();  // never destroyed: other threads may use it at exit
  return *env;
}

Result<std::unique_ptr<Env>> Env::Anchored(const std::string& directory) {
  Descriptor opened = OpenDirectory(directory);
  if (!opened.Prove()) return FromErrno(errno, "open directory", directory);
  return std::unique_ptr<Env>(new AnchoredEnv(directory, std::move(opened)));
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
  return WriteBeside(env, path, text,
                     [&](const std::string& temporary) { return env.Rename(temporary, path); });
}

Status WriteNewFile(Env& env, const std::string& path, std::string_view text) {
  return WriteBeside(env, path, text, [&](const std::string& temporary) {
    Status linked = env.Link(temporary, path);
    if (!linked.ok() && IsSameFile(temporary, path)) linked = Status::Ok();
    if (!linked.ok() && linked.code() != StatusCode::kAlreadyExists) {  // a file system without links
      // Looks right before renaming, because a rename would replace another's file.
      linked = env.Exists(path) ? AlreadyExists("created meanwhile: " + path) : env.Rename(temporary, path);
    }
    (void)env.Remove(temporary);
    return linked;
  });
}

namespace {

/// What of the identity does not change while this process lives: all but the name.
struct Machine {
  std::uint64_t id_hash = 14695981039346656037ULL;
  std::uint64_t boot[2] = {};
};
Machine ReadMachine() noexcept {
  Machine machine;
  char text[256] = {};
  machine.id_hash = Fnv1a(machine.id_hash, text, ReadSmall("/etc/machine-id", text, sizeof(text)));
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
    machine.boot[digits / 16] = machine.boot[digits / 16] << 4 | nibble;
    ++digits;
  }
  return machine;
}

}  // namespace

HostIdentity ThisHost() noexcept {
  // Read once. No lock: a process forked meanwhile would wait for it for ever.
  static std::atomic<std::uint64_t> kept[3];
  static std::atomic<bool> known{false};
  if (!known.load(std::memory_order_acquire)) {
    const Machine machine = ReadMachine();
    kept[0].store(machine.id_hash, std::memory_order_relaxed);
    kept[1].store(machine.boot[0], std::memory_order_relaxed);
    kept[2].store(machine.boot[1], std::memory_order_relaxed);
    known.store(true, std::memory_order_release);
  }
  HostIdentity identity;
  identity.host = kept[0].load(std::memory_order_relaxed);
  identity.boot[0] = kept[1].load(std::memory_order_relaxed);
  identity.boot[1] = kept[2].load(std::memory_order_relaxed);
  char text[256] = {};
  if (gethostname(text, sizeof(text)) == 0)
    identity.host = Fnv1a(identity.host, text, strnlen(text, sizeof(text)));
  return identity;
}

std::uint64_t ProcessStartTicks(std::uint64_t pid) noexcept {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%llu/stat", static_cast<unsigned long long>(pid));
  char text[1024];
  const std::size_t n = ReadSmall(path, text, sizeof(text) - 1);
  text[n] = '\0';
  // The command name may contain spaces and brackets, so fields are counted from the last bracket on. Start
  // time is field 22.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr) return 0;
  bool zombie = false;
  for (int field = 2; field < 22; ++field) {
    at = std::strchr(at + 1, ' ');
    if (at == nullptr) return 0;
    if (field == 2) zombie = at[1] == 'Z' || at[1] == 'X';
    // If only the first thread has ended, others may still run: field 20 is the number of threads.
    if (field == 19 && zombie && std::strtoll(at + 1, nullptr, 10) <= 1) return 0;
  }
  return std::strtoull(at + 1, nullptr, 10);
}

}  // namespace luff

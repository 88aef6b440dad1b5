#include "store/owned_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/interrupted.h"

namespace luff::store {
namespace {

Status FromErrno(int error, const char* what, const std::string& path) {
  std::array<char, 128> text{};
  std::string message = std::string(what) + ": " + strerror_r(error, text.data(), text.size()) + ": " + path;
  const bool missing = error == ENOENT || error == ENOTDIR || error == ESTALE;
  return missing ? NotFound(std::move(message)) : IoError(std::move(message));
}

// Checks who may write a file or folder: whoever can, commands the job.
Status ProveOwner(const struct stat& info, const std::string& path) {
  if (info.st_uid != geteuid()) {
    return FailedPrecondition("found one of user " + std::to_string(info.st_uid) + ", expected one of user " +
                              std::to_string(geteuid()) +
                              ": who owns a run commands its job. Name a new directory, which Luff makes "
                              "(one below it will do), or `chown` it: " +
                              path);
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    std::array<char, 8> mode{};
    std::snprintf(mode.data(), mode.size(), "%04o", static_cast<unsigned>(info.st_mode & 07777));
    return FailedPrecondition(std::string("found mode ") + mode.data() +
                              ", expected that nobody else may write: who writes into a run commands its "
                              "job. Name a new directory, which Luff makes, or `chmod go-w` it: " +
                              path);
  }
  return Status::Ok();
}

}  // namespace

Result<OwnedFolder> OwnedFolder::Prove(int fd, std::string path) {
  const int error = errno;
  if (fd < 0) return FromErrno(error, "open directory", path);
  OwnedFolder folder(fd, std::move(path));
  struct stat info{};
  if (fstat(fd, &info) != 0) return FromErrno(errno, "look at directory", folder.path_);
  LUFF_RETURN_IF_ERROR(ProveOwner(info, folder.path_));
  return folder;
}

Result<OwnedFolder> OwnedFolder::Open(const std::string& path) {
  return Prove(Uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }), path);
}

Result<OwnedFolder> OwnedFolder::Below(const std::string& name) const {
  const std::string path = path_ + "/" + name;
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  const int fd = Uninterrupted([&] { return openat(fd_, name.c_str(), kFlags); });
  if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
    return FailedPrecondition("found a link or a file, expected a folder of the run: " + path);
  return Prove(fd, path);
}

Result<std::vector<std::string>> OwnedFolder::List() const {
  // Opens a separate file description, so that the position in the listing is not shared.
  const int fd = Uninterrupted([&] { return openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  DIR* directory = fd >= 0 ? fdopendir(fd) : nullptr;
  if (directory == nullptr) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return FromErrno(error, "list directory", path_);
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(directory)) {
    if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0)
      names.emplace_back(entry->d_name);
    errno = 0;
  }
  const int error = errno;
  closedir(directory);
  if (error != 0) return FromErrno(error, "list directory", path_);
  return names;
}

Result<std::string> OwnedFolder::Read(const std::string& name, std::uint64_t limit) const {
  const std::string path = path_ + "/" + name;
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int fd = Uninterrupted([&] { return openat(fd_, name.c_str(), kFlags); });
  if (fd < 0) return FromErrno(errno, "open", path);
  const auto read_it = [&]() -> Result<std::string> {
    struct stat info{};
    if (fstat(fd, &info) != 0) return FromErrno(errno, "look at file", path);
    if (!S_ISREG(info.st_mode)) return Corruption("found no regular file, expected one: " + path);
    LUFF_RETURN_IF_ERROR(ProveOwner(info, path));
    const auto size = static_cast<std::uint64_t>(info.st_size);
    if (size > limit) {
      return OutOfRange("found " + std::to_string(size) + " bytes, expected at most " +
                        std::to_string(limit) + ": " + path);
    }
    std::string text(static_cast<std::size_t>(size), '\0');
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t got = Uninterrupted(
          [&] { return pread(fd, text.data() + done, text.size() - done, static_cast<off_t>(done)); });
      if (got < 0) return FromErrno(errno, "read", path);
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    text.resize(done);
    return text;
  };
  Result<std::string> text = read_it();
  close(fd);
  return text;
}

OwnedFolder::OwnedFolder(OwnedFolder&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)) {}

OwnedFolder::~OwnedFolder() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace luff::store

#include "luff/store/owner.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/interrupted.h"
#include "store/owned_folder.h"

namespace luff::store {
namespace {

struct flock WholeFile() noexcept {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

std::string LockPath(const std::string& run_path) { return run_path + "/supervisor"; }

/// "process 12 on HOST", as the lock's owner wrote it. That process may no longer exist.
std::string Holder(int fd) {
  std::array<char, 128> text{};
  const ssize_t got = pread(fd, text.data(), text.size(), 0);
  std::string holder;
  for (ssize_t i = 0; i < got && text[static_cast<std::size_t>(i)] != '\n'; ++i) {
    const char c = text[static_cast<std::size_t>(i)];
    holder += c >= ' ' && c < 127 ? c : '?';
  }
  return holder.empty() ? "another process" : holder;
}

}  // namespace

Status CheckOwner(const std::string& run_path) {
  LUFF_ASSIGN_OR_RETURN(const OwnedFolder run, OwnedFolder::Open(run_path));
  for (const char* name : {"control", "rules"}) {
    const Result<OwnedFolder> folder = run.Below(name);
    if (!folder.ok() && folder.status().code() != StatusCode::kNotFound) return folder.status();
    if (!folder.ok() || std::strcmp(name, "rules") != 0) continue;
    const Result<OwnedFolder> evaluator = folder->Below("luff");
    if (!evaluator.ok() && evaluator.status().code() != StatusCode::kNotFound) return evaluator.status();
  }
  return Status::Ok();
}

Result<std::unique_ptr<SupervisorLock>> SupervisorLock::Take(const std::string& run_path) {
  const std::string path = LockPath(run_path);
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int fd = Uninterrupted([&] { return open(path.c_str(), kFlags, 0600); });
  if (fd < 0) return IoError(std::string("the supervisor's lock: ") + std::strerror(errno) + ": " + path);
  std::unique_ptr<SupervisorLock> lock(new SupervisorLock(fd, path));
  struct stat info{};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
    return FailedPrecondition("found no regular file, expected the supervisor's lock: " + path);
  struct flock whole = WholeFile();
  // A file system without locks protects nothing, but must not stop the job either.
  if (fcntl(fd, F_OFD_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES)) {
    return AlreadyExists("found a run that another `luff run` is going on with (" + Holder(fd) +
                         "); wait for its end, or name another directory: " + run_path);
  }
  std::array<char, 64> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const std::string holder = "process " + std::to_string(getpid()) + " on " + host.data() + "\n";
  // For people only; the lock itself is what counts.
  const bool written = ftruncate(fd, 0) == 0 &&
                       pwrite(fd, holder.data(), holder.size(), 0) == static_cast<ssize_t>(holder.size());
  static_cast<void>(written);
  return lock;
}

bool SupervisorLock::IsTaken(const std::string& run_path) noexcept {
  const std::string path = LockPath(run_path);
  const int fd =
      Uninterrupted([&] { return open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); });
  if (fd < 0) return false;
  struct flock whole = WholeFile();
  const bool taken = fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
  close(fd);
  return taken;
}

void SupervisorLock::Remove() noexcept { unlink(path_.c_str()); }

SupervisorLock::~SupervisorLock() { close(fd_); }

}  // namespace luff::store

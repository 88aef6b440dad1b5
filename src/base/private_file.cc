#include "base/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/interrupted.h"
#include "base/owned_fd.h"
#include "base/posix_file.h"

namespace luff {

Result<std::string> ReadPrivate(const std::string& path, std::uint64_t limit) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW;
  const OwnedFd file(Uninterrupted([&] { return open(path.c_str(), kFlags); }));
  struct stat info{};
  if (!file.valid() && errno == ELOOP) return Corruption("found a link, expected a file: " + path);
  if (!file.valid() || fstat(file.get(), &info) != 0) return FromErrno(errno, "open", path);
  if (!S_ISREG(info.st_mode)) return Corruption("found something that is no regular file: " + path);
  if ((info.st_uid != geteuid() && info.st_uid != 0) || (info.st_mode & 077) != 0) {
    return FailedPrecondition(
        "others can read or write this file, which holds secrets, or it is another user's; chmod 600 it: " +
        path);
  }
  if (static_cast<std::uint64_t>(info.st_size) > limit)
    return OutOfRange("the file has more than " + std::to_string(limit) + " bytes: " + path);
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  const ssize_t got = Uninterrupted([&] { return pread(file.get(), text.data(), text.size(), 0); });
  if (got < 0) return FromErrno(errno, "read", path);
  text.resize(static_cast<std::size_t>(got));
  return text;
}

}  // namespace luff

#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/owned_fd.h"
#include "base/posix_file.h"

namespace luff {

Result<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path, std::size_t limit) {
  const OwnedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (fd.get() < 0) {
    if (errno == ELOOP) return Corruption("a link stands where a file is expected: " + path);
    return FromErrno(errno, "cannot open", path);
  }
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return FromErrno(errno, "cannot look at", path);
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || info.st_size <= 0)
    return Corruption("this is no file of this user: " + path);
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size > limit) return OutOfRange("the file is too large: " + path);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (memory == MAP_FAILED) return FromErrno(errno, "cannot map", path);
  return std::shared_ptr<const MappedFile>(new MappedFile({static_cast<const std::byte*>(memory), size}));
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace luff

#include "query/smdebug_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace luff::query {
namespace {

constexpr std::uint64_t kMaxSmallFileBytes = 256U << 20;  // of an index or collections file

std::int64_t Ns(const timespec& time) noexcept {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

bool ListFolder(const std::string& path, std::vector<std::pair<std::string, bool>>* names) {
  DIR* folder = opendir(path.c_str());
  if (folder == nullptr) return false;
  while (const dirent* entry = readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    bool is_folder = entry->d_type == DT_DIR;
    if (entry->d_type == DT_UNKNOWN || entry->d_type == DT_LNK) {
      struct stat info{};
      is_folder = fstatat(dirfd(folder), entry->d_name, &info, 0) == 0 && S_ISDIR(info.st_mode);
    }
    names->emplace_back(name, is_folder);
  }
  closedir(folder);
  std::sort(names->begin(), names->end());
  return true;
}

std::int64_t MtimeNs(const std::string& path) noexcept {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 ? Ns(info.st_mtim) : -1;
}

std::int64_t NowNs() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return Ns(now);
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

Result<InputFile> InputFile::Open(const std::string& path) {
  InputFile file;
  file.path_ = path;
  file.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) {
    const int error = errno;
    const std::string why = std::string(std::strerror(error)) + ": " + path;
    return error == ENOENT ? NotFound(why) : IoError(why);
  }
  struct stat info{};
  if (fstat(file.fd_, &info) != 0) return IoError(std::string(std::strerror(errno)) + ": " + path);
  if (!S_ISREG(info.st_mode)) return Corruption("found something that is no file: " + path);
  file.size_ = static_cast<std::uint64_t>(info.st_size);
  file.mtime_ns_ = Ns(info.st_mtim);
  return file;
}

Status InputFile::ReadAt(std::uint64_t offset, std::span<std::byte> to) const {
  std::size_t got = 0;
  while (got < to.size()) {
    const ssize_t n = pread(fd_, to.data() + got, to.size() - got, static_cast<off_t>(offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return IoError(std::string(std::strerror(errno)) + ": " + path_);
    if (n == 0) return IoError("the file became shorter while it was read: " + path_);
    got += static_cast<std::size_t>(n);
  }
  return Status::Ok();
}

Status ReadSmallFile(const std::string& path, std::string* text, std::int64_t* mtime_ns) {
  LUFF_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.size() > kMaxSmallFileBytes) {
    return Corruption("found a file of " + std::to_string(file.size()) + " bytes, expected at most " +
                      std::to_string(kMaxSmallFileBytes) + ": " + path);
  }
  *mtime_ns = file.mtime_ns();
  text->resize(static_cast<std::size_t>(file.size()));
  return file.ReadAt(0, std::as_writable_bytes(std::span(*text)));
}

}  // namespace luff::query

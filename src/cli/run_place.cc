#include "cli/run_place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <string_view>
#include <utility>

namespace luff::cli {

RunPlace::RunPlace(std::string path)
    : made_(std::move(path)),
      path_(made_),
      fd_(open(made_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
  struct stat info{};
  if (fd_ < 0 || fstat(fd_, &info) != 0) return;
  device_ = info.st_dev;
  inode_ = info.st_ino;
}

RunPlace::~RunPlace() {
  if (fd_ >= 0) close(fd_);
}

bool RunPlace::IsIt(const std::string& path) const noexcept {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

RunPlace::State RunPlace::Look(std::int64_t train_step) {
  if (fd_ < 0) return state_;
  began_ = began_ || faccessat(fd_, "run.json", F_OK, 0) == 0;
  if (IsIt(made_)) {
    path_ = made_;
    last_step_ = train_step;
    return state_ = State::kHere;
  }
  std::array<char, PATH_MAX> text{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd_);
  const ssize_t length = readlink(link.c_str(), text.data(), text.size());
  const std::string now(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  struct stat info{};
  if (!now.empty() && IsIt(now)) {
    path_ = now;
    return state_ = State::kMoved;
  }
  const bool gone = now.ends_with(" (deleted)") || (fstat(fd_, &info) == 0 && info.st_nlink == 0);
  return state_ = gone ? State::kRemoved : State::kReplaced;
}

}  // namespace luff::cli

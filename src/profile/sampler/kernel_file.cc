#include "profile/sampler/kernel_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/interrupted.h"

namespace luff::profile {
namespace {

constexpr std::size_t kFirstBytes = std::size_t{16} << 10U, kMostBytes = std::size_t{1} << 20U;
constexpr int kTryAgain = 600;

}  // namespace

const char* SourceStateName(SourceState state) noexcept {
  switch (state) {
    case SourceState::kRead: return "read";
    case SourceState::kAbsent: return "absent";
    case SourceState::kDenied: return "denied";
    case SourceState::kFailed: return "failed";
    case SourceState::kUnread: break;
  }
  return "not read";
}

SourceState StateOfError(int error) noexcept {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ENODEV:
    case ENXIO:
    case ESRCH:
    case EOPNOTSUPP: return SourceState::kAbsent;
    case EACCES:
    case EPERM: return SourceState::kDenied;
    default: return SourceState::kFailed;
  }
}

KernelFile::KernelFile(KernelFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      wait_(other.wait_),
      state_(other.state_),
      error_(other.error_) {}

KernelFile& KernelFile::operator=(KernelFile&& other) noexcept {
  if (this == &other) return *this;
  Close();
  path_ = std::move(other.path_);
  fd_ = std::exchange(other.fd_, -1);
  wait_ = other.wait_;
  state_ = other.state_;
  error_ = other.error_;
  return *this;
}

KernelFile::~KernelFile() { Close(); }

void KernelFile::Close() noexcept {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void KernelFile::Fail(int error) noexcept {
  Close();
  state_ = StateOfError(error);
  error_ = error;
  wait_ = kTryAgain;
}

std::string_view KernelFile::Read() {
  thread_local std::vector<char> text(kFirstBytes);
  if (path_.empty()) return {};
  if (fd_ < 0) {
    if (wait_ > 0) {
      --wait_;
      return {};
    }
    // Something else than a file (a FIFO in a fixture) must not make us wait.
    fd_ = Uninterrupted([&] { return open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
    if (fd_ < 0) {
      Fail(errno);
      return {};
    }
  }
  std::size_t size = 0;
  while (size < kMostBytes) {
    if (size == text.size()) text.resize(std::min(text.size() * 4, kMostBytes));
    const ssize_t got = Uninterrupted(
        [&] { return pread(fd_, text.data() + size, text.size() - size, static_cast<off_t>(size)); });
    if (got < 0) {
      Fail(errno);
      return {};
    }
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
    // Most of these files come whole: asking for more would make the kernel work them out again.
    if (size < text.size() && size < 3500) break;
  }
  state_ = SourceState::kRead;
  return {text.data(), size};
}

std::int64_t ClockTickNs() noexcept {
  const long a_second = sysconf(_SC_CLK_TCK);
  return a_second > 0 ? 1'000'000'000 / a_second : 10'000'000;
}

std::vector<std::string> NamesIn(const std::string& folder, std::size_t limit) {
  std::vector<std::string> names;
  DIR* open = opendir(folder.c_str());
  if (open == nullptr) return names;
  while (names.size() < limit) {
    const dirent* entry = readdir(open);
    if (entry == nullptr) break;
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  closedir(open);
  std::ranges::sort(names);
  return names;
}

}  // namespace luff::profile

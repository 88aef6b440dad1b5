#include "cli/log_copier.h"

#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/format.h"
#include "base/interrupted.h"

namespace luff::cli {
namespace {

constexpr int kLookMs = 100;  // where the kernel tells nothing

/// The files that were written, in order. Empty if nothing is told.
std::vector<int> Written(int changes) {
  std::vector<int> watches;
  alignas(inotify_event) char bytes[4096];
  for (;;) {
    const ssize_t count = read(changes, bytes, sizeof(bytes));
    if (count <= 0) return watches;
    for (ssize_t at = 0; at < count;) {
      inotify_event event;
      std::memcpy(&event, bytes + at, sizeof(event));
      watches.push_back(event.wd);
      at += static_cast<ssize_t>(sizeof(event) + event.len);
    }
  }
}

}  // namespace

std::uint64_t SizeOf(int fd) noexcept {
  struct stat info{};
  return fstat(fd, &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

LogCopier::LogCopier(std::vector<LogStream*> streams)
    : streams_(std::move(streams)),
      buffer_(64 << 10),
      thread_([this] { Run(); }) {}

void LogCopier::Finish() {
  finishing_.store(true, std::memory_order_release);
  thread_.join();
}

void LogCopier::Run() {
  const OwnedFd changes(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  std::vector<int> watches;
  for (const LogStream* stream : streams_)
    watches.push_back(inotify_add_watch(changes.get(), stream->path.c_str(), IN_MODIFY));
  for (;;) {
    const bool last = finishing_.load(std::memory_order_acquire);
    for (const int watch : Written(changes.get())) {
      const auto at = std::ranges::find(watches, watch);
      if (at != watches.end()) Copy(streams_[static_cast<std::size_t>(at - watches.begin())]);
    }
    pollfd fd{changes.get(), POLLIN, 0};
    if (!last && poll(&fd, 1, kLookMs) > 0) continue;
    for (LogStream* stream : streams_) Copy(stream);
    if (last) return;
  }
}

void LogCopier::Copy(LogStream* stream) {
  const std::uint64_t end = SizeOf(stream->file.get());
  if (end < stream->shown.load(std::memory_order_relaxed)) {
    stream->dropped.store(0, std::memory_order_release);
    stream->shown.store(0, std::memory_order_release);
  }
  while (stream->shown.load(std::memory_order_relaxed) < end) {
    std::uint64_t at = stream->shown.load(std::memory_order_relaxed);
    if (const std::uint64_t first = stream->dropped.load(std::memory_order_acquire); at < first) {
      Write(STDERR_FILENO, fmt::format("\nluff: --log: {} bytes of what the command printed are not shown: "
                                       "the disk had no room until they were read\n",
                                       first - at));
      stream->shown.store(at = first, std::memory_order_release);
    }
    const std::size_t room = std::min<std::uint64_t>(buffer_.size(), end > at ? end - at : 0);
    const ssize_t count = Uninterrupted(
        [&] { return pread(stream->file.get(), buffer_.data(), room, static_cast<off_t>(at)); });
    if (count <= 0) return;
    if (stream->dropped.load(std::memory_order_acquire) > at) continue;  // given up meanwhile
    Write(stream->to, {buffer_.data(), static_cast<std::size_t>(count)});
    stream->shown.store(at + static_cast<std::uint64_t>(count), std::memory_order_release);
  }
}

void LogCopier::Write(int to, std::string_view bytes) {
  while (!gone_ && !bytes.empty()) {
    const ssize_t count = Uninterrupted([&] { return write(to, bytes.data(), bytes.size()); });
    if (count > 0) bytes.remove_prefix(static_cast<std::size_t>(count));
    if (count < 0 && errno == EAGAIN) {
      pollfd fd{to, POLLOUT, 0};
      poll(&fd, 1, 1000);
    } else if (count <= 0) {
      gone_ = true;  // nobody reads any more; the files have all of it
    }
  }
}

}  // namespace luff::cli

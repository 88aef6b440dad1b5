#include "base/line_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/interrupted.h"

namespace luff {
namespace {

using Clock = std::chrono::steady_clock;

Status Gone(const std::string& what) {
  return {StatusCode::kUnavailable, "the other process does not answer: " + what};
}

/// Waits until the socket is ready; kDeadlineExceeded if that takes too long.
Status WaitReady(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return {StatusCode::kDeadlineExceeded, "the other process did not answer in time"};
    pollfd ready{fd, events, 0};
    const int found = poll(&ready, 1, static_cast<int>(std::min<long long>(left, 60'000)));
    if (found > 0) return Status::Ok();
    if (found < 0 && errno != EINTR) return Gone(std::strerror(errno));
  }
}

}  // namespace

Result<LineSocket> LineSocket::Connect(const std::string& directory, const std::string& name) {
  const OwnedFd folder(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  // Never waits: where the other side's queue is full, since it was stopped, connecting fails.
  OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = "/proc/self/fd/" + std::to_string(folder.get()) + "/" + name;
  if (!folder.valid() || !fd.valid() || path.size() >= sizeof(address.sun_path))
    return Gone(directory + "/" + name);
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto* generic = static_cast<const sockaddr*>(static_cast<const void*>(&address));
  if (Uninterrupted([&] { return connect(fd.get(), generic, sizeof(address)); }) != 0)
    return Gone(std::string(std::strerror(errno)) + ": " + directory + "/" + name);
  ucred other{};
  socklen_t size = sizeof(other);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) != 0 || other.uid != geteuid())
    return Gone("another user listens: " + directory + "/" + name);
  return LineSocket(std::move(fd));
}

Result<std::string> LineSocket::Ask(const std::string& line, int timeout_ms, std::size_t limit) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  const std::string text = line + "\n";
  for (std::size_t at = 0; at < text.size();) {
    LUFF_RETURN_IF_ERROR(WaitReady(fd_.get(), POLLOUT, deadline));
    const ssize_t sent = send(fd_.get(), text.data() + at, text.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EINTR && errno != EAGAIN) return Gone(std::strerror(errno));
    if (sent > 0) at += static_cast<std::size_t>(sent);
  }
  std::string answer;
  while (answer.find('\n') == std::string::npos) {
    if (answer.size() > limit) return Corruption("the other process answered more than was expected");
    LUFF_RETURN_IF_ERROR(WaitReady(fd_.get(), POLLIN, deadline));
    char bytes[4096];
    const ssize_t got = recv(fd_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return Gone("it has ended");
    answer.append(bytes, static_cast<std::size_t>(got));
  }
  answer.resize(answer.find('\n'));
  return answer;
}

bool LineSocket::alive() const noexcept {
  char byte = 0;
  const ssize_t got = recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace luff

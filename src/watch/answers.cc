#include "watch/answers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/format.h"
#include "base/interrupted.h"

namespace luff::watch {
namespace {

std::string Answered(int code, const char* word, const char* type, const std::string& body) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{}",
      code, word, type, body.size(), body);
}

/// The value of a header, without blanks around it; "" if there is none. Names have no case.
std::string_view HeaderOf(std::string_view head, std::string_view name) {
  for (std::size_t at = head.find("\r\n"); at != std::string_view::npos; at = head.find("\r\n", at + 2)) {
    const std::string_view line = head.substr(at + 2, head.find("\r\n", at + 2) - at - 2);
    if (line.size() <= name.size() || line[name.size()] != ':' ||
        strncasecmp(line.data(), name.data(), name.size()) != 0)
      continue;
    std::string_view value = line.substr(name.size() + 1);
    while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
    while (!value.empty() && value.back() == ' ') value.remove_suffix(1);
    return value;
  }
  return {};
}

/// Takes the same time wherever they differ.
bool Same(std::string_view a, std::string_view b) {
  unsigned differ = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i)
    differ |= static_cast<unsigned>(static_cast<unsigned char>(a[i]) ^
                                    static_cast<unsigned char>(b.empty() ? '\0' : b[i % b.size()]));
  return differ == 0;
}

}  // namespace

std::string AnswerUntrusted(std::string_view request, const std::string& token, const Numbers& numbers) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const std::size_t path = line.find(' ');
  const std::size_t end = path == std::string_view::npos ? path : line.find(' ', path + 1);
  if (end == std::string_view::npos || !line.substr(end).starts_with(" HTTP/1."))
    return Answered(400, "Bad Request", "text/plain", "no request of HTTP/1.1\n");
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view given = HeaderOf(request, "Authorization");
  if (!given.starts_with(kBearer) || token.empty() || !Same(given.substr(kBearer.size()), token))
    return Answered(401, "Unauthorized", "text/plain", "send Authorization: Bearer and the token\n");
  if (line.substr(0, path) != "GET") return Answered(405, "Method Not Allowed", "text/plain", "only GET\n");
  const std::string_view target = line.substr(path + 1, end - path - 1);
  if (target == "/metrics")
    return Answered(200, "OK", "text/plain; version=0.0.4; charset=utf-8", numbers.Prometheus());
  if (target == "/ready") {
    return numbers.ready() ? Answered(200, "OK", "text/plain", "ready\n")
                           : Answered(503, "Service Unavailable", "text/plain", "behind\n");
  }
  return Answered(404, "Not Found", "text/plain", "there are /metrics and /ready\n");
}

Answers::Answers(OwnedFd listening, std::uint16_t port, std::string token)
    : listening_(std::move(listening)),
      port_(port),
      token_(std::move(token)) {}
Answers::~Answers() = default;

Result<std::unique_ptr<Answers>> Answers::Open(const std::string& address, std::uint16_t port,
                                               std::string token) {
  sockaddr_storage where{};
  socklen_t size = 0;
  auto* four = reinterpret_cast<sockaddr_in*>(&where);
  auto* six = reinterpret_cast<sockaddr_in6*>(&where);
  if (inet_pton(AF_INET, address.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    size = sizeof(sockaddr_in);
  } else if (inet_pton(AF_INET6, address.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    size = sizeof(sockaddr_in6);
  } else {
    return InvalidArgument("no address of IPv4 or IPv6: " + address);
  }
  OwnedFd fd(socket(where.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return IoError(std::string("no socket: ") + std::strerror(errno));
  const int yes = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&where), size) != 0 || listen(fd.get(), 16) != 0) {
    const std::string why = fmt::format("{}: {}:{}", std::strerror(errno), address, port);
    return errno == EADDRINUSE ? AlreadyExists(why) : IoError(why);
  }
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&where), &size);
  const std::uint16_t taken = ntohs(where.ss_family == AF_INET ? four->sin_port : six->sin6_port);
  return std::unique_ptr<Answers>(new Answers(std::move(fd), taken, std::move(token)));
}

void Answers::AddTo(std::vector<pollfd>* fds) const {
  if (!full_ && connections_.size() < kMaxConnections) fds->push_back({listening_.get(), POLLIN, 0});
  for (const Connection& one : connections_)
    fds->push_back({one.fd.get(), static_cast<short>(one.answer.empty() ? POLLIN : POLLOUT), 0});
}

bool Answers::Serve(Connection* one, const Numbers& numbers) const {
  char buffer[2048];
  while (one->answer.empty()) {
    const ssize_t got = Uninterrupted([&] { return recv(one->fd.get(), buffer, sizeof(buffer), 0); });
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    one->asked.append(buffer, static_cast<std::size_t>(got));
    if (one->asked.find("\r\n\r\n") != std::string::npos)
      one->answer = AnswerUntrusted(one->asked, token_, numbers);
    else if (one->asked.size() > kMaxRequest)
      one->answer = Answered(431, "Request Header Fields Too Large", "text/plain", "too long\n");
  }
  while (one->written < one->answer.size()) {
    const ssize_t sent = Uninterrupted([&] {
      return send(one->fd.get(), one->answer.data() + one->written, one->answer.size() - one->written,
                  MSG_NOSIGNAL);
    });
    if (sent < 0) return errno == EAGAIN;
    one->written += static_cast<std::size_t>(sent);
  }
  shutdown(one->fd.get(), SHUT_WR);
  return false;
}

void Answers::Look(const Numbers& numbers, std::int64_t now_ns) {
  full_ = false;
  while (connections_.size() < kMaxConnections) {
    OwnedFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      full_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      break;
    }
    Connection one;
    one.fd = std::move(fd);
    one.begun_ns = now_ns;
    connections_.push_back(std::move(one));
  }
  std::erase_if(connections_, [&](Connection& one) {
    return now_ns - one.begun_ns > kPatienceNs || !Serve(&one, numbers);
  });
}

}  // namespace luff::watch

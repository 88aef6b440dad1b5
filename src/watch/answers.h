#pragma once
#include <poll.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/owned_fd.h"
#include "luff/base/result.h"
#include "watch/numbers.h"

/// GET /metrics and GET /ready, for Prometheus and for probes. Bounded in everything, and in the thread of
/// the caller: a scraper that is slow holds up nobody.
namespace luff::watch {

class Answers {
 public:
  static constexpr std::size_t kMaxConnections = 32, kMaxRequest = 8 << 10;
  static constexpr std::int64_t kPatienceNs = 5'000'000'000;

  /// `address`: IPv4 or IPv6; port 0: any. Whoever asks must send "Authorization: Bearer TOKEN". Errors:
  /// kInvalidArgument, kAlreadyExists for a port in use, kIo.
  [[nodiscard]] static Result<std::unique_ptr<Answers>> Open(const std::string& address, std::uint16_t port,
                                                             std::string token);
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  void AddTo(std::vector<pollfd>* fds) const;
  /// Takes what has arrived, answers, and drops connections that are late.
  void Look(const Numbers& numbers, std::int64_t now_ns);

 private:
  struct Connection {
    OwnedFd fd;
    std::int64_t begun_ns = 0;
    std::string asked, answer;
    std::size_t written = 0;
  };
  Answers(OwnedFd listening, std::uint16_t port, std::string token);
  /// False when the connection is done with.
  [[nodiscard]] bool Serve(Connection* one, const Numbers& numbers) const;

  const OwnedFd listening_;
  const std::uint16_t port_;
  const std::string token_;
  std::vector<Connection> connections_;
  bool full_ = false;  // no descriptor is left: who waits is not asked for, or poll() would never sleep
};

/// The answer to a request whose head is complete: status line, headers, body. `token`: as Answers.
[[nodiscard]] std::string AnswerUntrusted(std::string_view request, const std::string& token,
                                          const Numbers& numbers);

}  // namespace luff::watch

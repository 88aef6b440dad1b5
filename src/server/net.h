#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "luff/base/result.h"

/// Sockets: HTTP/1.1 over Boost.Beast. The only file of it is net.cc.
namespace luff::server {

class Service;

/// A socket that listens. **Thread-compatible.**
class Listener {
 public:
  /// `address`: an IPv4 or IPv6 address of this machine. `port`: 0 for any. Errors: kInvalidArgument for what
  /// is no address; kFailedPrecondition for one that others can reach; kAlreadyExists for a port in use; kIo.
  [[nodiscard]] static Result<std::unique_ptr<Listener>> Open(const std::string& address, std::uint16_t port);
  virtual ~Listener() = default;
  [[nodiscard]] virtual std::uint16_t port() const = 0;
  /// Answers requests until SIGTERM, SIGINT or SIGHUP, and ends all connections. Returns the signal. Call it
  /// once.
  virtual int Serve(Service* service) = 0;
};

// Limits. A request beyond them is answered with 4xx and its connection closed.
inline constexpr std::uint32_t kMaxHeader = 16 << 10;
inline constexpr std::uint64_t kMaxBody = 64 << 10;
inline constexpr std::size_t kMaxTarget = 8 << 10;
inline constexpr std::size_t kMaxConnections = 512;
inline constexpr std::size_t kMaxStreams = 256;

}  // namespace luff::server

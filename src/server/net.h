#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "luff/base/result.h"

/// Sockets: HTTP/1.1 over Boost.Beast. The only file of it is net.cc.
namespace luff::server {

class Service;

/// Where to listen.
struct ListenAt {
  std::string address = "127.0.0.1";  // IPv4 or IPv6 of this machine, if there is no `path`
  std::uint16_t port = 0;             // 0: any
  std::string path = {};              // of a Unix socket
  std::string group = {};             // that may connect to the Unix socket, beside its owner; "" for none
  bool others = false;                // whether the address may be reachable from other machines
};

/// Errors: kInvalidArgument for what is no address; kFailedPrecondition for one that others can reach, unless
/// `others`.
[[nodiscard]] Status CheckAddress(const ListenAt& at);

/// A socket that listens. **Thread-compatible.**
class Listener {
 public:
  /// A Unix socket gets mode 0600 (0660 with a group); one that a server left behind is replaced. Errors:
  /// kInvalidArgument for what is no address, path or group; kFailedPrecondition for an address that others
  /// can reach, unless `others`; kAlreadyExists for a port or path in use; kIo.
  [[nodiscard]] static Result<std::unique_ptr<Listener>> Open(const ListenAt& at);
  virtual ~Listener() = default;
  /// 0 for a Unix socket.
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
inline constexpr std::uint64_t kMaxUnderWay = 64 << 20;  // bytes of answers that clients have not read yet

}  // namespace luff::server

#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/message.h"
#include "server/secrets.h"

/// Who may ask what. Every request passes here before a route sees it.
namespace luff::server {

/// Users that a proxy in front of the server has signed on. It names them in headers, which count only if
/// they came over a Unix socket, or with the secret.
struct ProxySignOn {
  struct Group {
    std::string name;  // "*": everybody whom the proxy signs on
    Grant grant;
  };
  std::string user_header = "X-Forwarded-User";
  std::string groups_header = "X-Forwarded-Groups";  // separated by commas
  std::string secret_header = "X-Luff-Proxy-Secret";
  std::string secret = {};  // "": the server listens on a Unix socket
  std::vector<Group> groups = {};
};

/// What the guard knows of the place where the server listens.
struct Place {
  std::vector<std::string> hosts;    // values of Host that are ours: "127.0.0.1:6006"
  std::vector<std::string> origins;  // of the page: "http://127.0.0.1:6006"
  std::string base = {};             // path below which everything is: "", "/luff"
  std::string cookie = {};           // name of the session's cookie
  bool secure = false;               // browsers come by https
  std::optional<ProxySignOn> proxy = {};
};

/// The place of a server that listens on a loopback address, or on a Unix socket (port 0).
[[nodiscard]] Place LoopbackPlace(std::uint16_t port);
/// Adds the address by which browsers come through a proxy: "https://example.org/luff". Its path becomes
/// `base`. Errors: kInvalidArgument for what is no such address; kFailedPrecondition for http from elsewhere.
[[nodiscard]] Status AddPublicUrl(std::string_view url, Place* place);

class Guard {
 public:
  /// `secrets` outlives the guard.
  Guard(Place place, Secrets* secrets) : place_(std::move(place)), secrets_(secrets) {}

  /// Refuses a request, or lets it pass and says who asks (nullopt for what everybody may see).
  [[nodiscard]] std::optional<Response> Check(const Request& request, std::int64_t now_ns,
                                              std::optional<Visitor>* visitor) const;
  /// POST, GET and DELETE /api/v1/session.
  [[nodiscard]] Response Session(const Request& request, std::int64_t now_ns,
                                 const std::optional<Visitor>& visitor) const;
  [[nodiscard]] const Place& place() const noexcept { return place_; }

 private:
  /// Values of the cookie: pages of other ports of this machine can put some of the same name before ours.
  [[nodiscard]] std::vector<std::string_view> CookiesOf(const Request& request) const;
  [[nodiscard]] std::optional<Visitor> VisitorOf(const Request& request, std::int64_t now_ns) const;
  [[nodiscard]] std::optional<Visitor> UserOf(const Request& request) const;
  /// Refuses what another site's page has caused.
  [[nodiscard]] std::optional<Response> CheckOrigin(const Request& request, bool reads) const;
  [[nodiscard]] std::string CookieText(std::string_view key, std::int64_t seconds) const;

  const Place place_;
  Secrets* const secrets_;
};

/// Headers of every answer, beside those of its own.
[[nodiscard]] const std::vector<std::pair<std::string, std::string>>& SafetyHeaders();

}  // namespace luff::server

#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/message.h"
#include "server/secrets.h"

/// Who may ask what. Every request passes here before a route sees it.
namespace luff::server {

/// What the guard knows of the place where the server listens.
struct Place {
  std::vector<std::string> hosts;    // values of Host that are ours: "127.0.0.1:6006"
  std::vector<std::string> origins;  // of the page: "http://127.0.0.1:6006"
  std::string cookie;                // name of the session's cookie
};

/// The place of a server that listens on a loopback address.
[[nodiscard]] Place LoopbackPlace(std::uint16_t port);

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

 private:
  [[nodiscard]] std::string_view CookieOf(const Request& request) const;
  [[nodiscard]] std::optional<Visitor> VisitorOf(const Request& request, std::int64_t now_ns) const;

  const Place place_;
  Secrets* const secrets_;
};

inline constexpr std::string_view kApi = "/api/v1/";
/// Headers of every answer, beside those of its own.
[[nodiscard]] const std::vector<std::pair<std::string, std::string>>& SafetyHeaders();

}  // namespace luff::server

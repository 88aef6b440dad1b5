#include "server/guard.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"

namespace luff::server {
namespace {

constexpr std::string_view kSession = "/api/v1/session";

bool IsOpen(const Request& request) {  // the page's own files say nothing of any run
  return request.path == "/healthz" || !(request.path.starts_with(kApi) || request.path == "/metrics");
}

Response NoSession() {
  return Problem(401, "No session", "this browser has no session here, or it has ended",
                 "Open the link that luff serve printed; scripts send Authorization: Bearer TOKEN.");
}

Response SessionJson(const Visitor& visitor) {
  const nlohmann::ordered_json json{{"role", RoleName(visitor.role)}, {"csrf", visitor.csrf}};
  return {.body = JsonText(json)};
}

}  // namespace

Place LoopbackPlace(std::uint16_t port) {
  Place place;
  for (const char* name : {"127.0.0.1", "localhost", "[::1]"}) {
    place.hosts.push_back(fmt::format("{}:{}", name, port));
    place.origins.push_back("http://" + place.hosts.back());
  }
  place.cookie = fmt::format("luff_{}", port);  // cookies do not know ports
  return place;
}

const std::vector<std::pair<std::string, std::string>>& SafetyHeaders() {
  // What the page needs, and nothing else. Svelte writes markup of its own templates through the named
  // policy.
  static const std::vector<std::pair<std::string, std::string>> headers = {
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: "
       "blob:; "
       "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
       "require-trusted-types-for 'script'; trusted-types svelte-trusted-html luff"},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
  };
  return headers;
}

std::string_view Guard::CookieOf(const Request& request) const {
  std::string_view rest = request.cookie;
  while (!rest.empty()) {
    std::string_view item = rest.substr(0, rest.find(';'));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    while (item.starts_with(' ')) item.remove_prefix(1);
    if (item.starts_with(place_.cookie) && item.substr(place_.cookie.size()).starts_with('='))
      return item.substr(place_.cookie.size() + 1);
  }
  return {};
}

std::optional<Visitor> Guard::VisitorOf(const Request& request, std::int64_t now_ns) const {
  constexpr std::string_view kBearer = "Bearer ";
  if (request.authorization.starts_with(kBearer))
    return secrets_->ByToken(std::string_view(request.authorization).substr(kBearer.size()));
  return secrets_->BySession(CookieOf(request), now_ns);
}

std::optional<Response> Guard::Check(const Request& request, std::int64_t now_ns,
                                     std::optional<Visitor>* visitor) const {
  if (std::ranges::find(place_.hosts, request.host) == place_.hosts.end()) {
    return Problem(421, "Wrong host", "this server does not answer for the name in the address",
                   fmt::format("Use http://{}/.", place_.hosts.front()));
  }
  const bool reads = request.method == "GET" || request.method == "HEAD";
  const bool foreign = !request.fetch_site.empty() && request.fetch_site != "same-origin" &&
                       request.fetch_site != "none";  // none: typed or a bookmark
  if (foreign && !(reads && request.fetch_mode == "navigate" && IsOpen(request)))
    return Problem(403, "From another site", "another site's page may not ask this server");
  if (!request.origin.empty() && std::ranges::find(place_.origins, request.origin) == place_.origins.end())
    return Problem(403, "From another site", "another site's page may not ask this server");
  if (IsOpen(request))
    return reads ? std::nullopt : std::optional(Problem(405, "Not allowed", "read it with GET"));

  const bool begins = request.path == kSession && request.method == "POST";
  if (!begins) {
    *visitor = VisitorOf(request, now_ns);
    if (!*visitor) return NoSession();
  }
  if (!reads) {
    const bool by_token = *visitor && (*visitor)->csrf.empty();
    if (request.origin.empty() && !by_token)
      return Problem(403, "From nowhere", "a change must come from the page (header Origin)");
    if (request.method != "DELETE" && request.content_type != "application/json")
      return Problem(415, "Not JSON", "expected Content-Type: application/json");
    if (*visitor && !by_token && request.csrf != (*visitor)->csrf)
      return Problem(403, "Not from the page", "the header X-Luff-CSRF is missing or wrong");
  }
  if (*visitor && (*visitor)->role == Role::kMetrics && request.path != "/metrics")
    return Problem(403, "Not allowed", "this token may read /metrics only");
  return std::nullopt;
}

Response Guard::Session(const Request& request, std::int64_t now_ns,
                        const std::optional<Visitor>& visitor) const {
  if (request.method == "GET") return visitor ? SessionJson(*visitor) : NoSession();
  constexpr std::string_view kAttributes = "; Path=/; HttpOnly; SameSite=Strict; Max-Age=";
  if (request.method == "DELETE") {
    secrets_->End(CookieOf(request));
    return {.status = 204, .headers = {{"Set-Cookie", fmt::format("{}={}0", place_.cookie, kAttributes)}}};
  }
  if (request.method != "POST") return Problem(405, "Not allowed", "a session has GET, POST and DELETE");
  const nlohmann::json json = TryParseJson(request.body, {.bytes = 4096, .depth = 4});
  if (!json.is_object() || !json.contains("token") || !json["token"].is_string())
    return Problem(400, "Bad request", R"(expected {"token": "..."})");
  Visitor begun;
  bool wait = false;
  const auto key = secrets_->Begin(json["token"].get<std::string>(), now_ns, &begun, &wait);
  if (wait) return Problem(429, "Too many tries", "five wrong tokens within a minute", "Wait a minute.");
  if (!key) {
    return Problem(401, "Wrong token", "the link is of another server, or of one that has ended",
                   "Open the link that luff serve printed last.");
  }
  Response response = SessionJson(begun);
  response.headers.emplace_back("Set-Cookie", fmt::format("{}={}{}{}", place_.cookie, *key, kAttributes,
                                                          Secrets::kSessionNs / 1'000'000'000));
  return response;
}

}  // namespace luff::server

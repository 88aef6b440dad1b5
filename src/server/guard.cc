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

Response NoSession(const Request& request, bool proxy) {
  if (proxy && request.authorization.empty()) {
    return Problem(401, "Not signed on", "the proxy in front of luff serve has named no user",
                   "Open the address of the proxy; scripts send Authorization: Bearer TOKEN.");
  }
  if (!request.authorization.empty()) {
    return Problem(401, "Wrong token",
                   "this token is none of this server's, or it was revoked or has expired",
                   "Send Authorization: Bearer TOKEN with the one of luff serve token add, or of the link.");
  }
  return Problem(401, "No session", "this browser has no session here, or it has ended",
                 "Open the link that luff serve printed; scripts send Authorization: Bearer TOKEN.");
}

Response SessionJson(const Visitor& visitor) {
  const nlohmann::ordered_json json{
      {"role", RoleName(visitor.role())}, {"csrf", visitor.csrf}, {"name", visitor.name}};
  return {.body = JsonText(json)};
}

bool IsHostName(std::string_view text) {
  return !text.empty() && text.size() <= 253 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == ':' || c == '[' ||
           c == ']';
  });
}

constexpr std::size_t kMaxUser = 256, kMaxGroups = 256, kMaxCookies = 8;

}  // namespace

Place LoopbackPlace(std::uint16_t port) {
  Place place;
  for (const char* name : {"[::1]", "localhost", "127.0.0.1"}) {
    place.hosts.push_back(fmt::format("{}:{}", name, port));
    place.origins.push_back("http://" + place.hosts.back());
  }
  if (port == 0) place.hosts = {"localhost"};   // a Unix socket: no browser comes by itself
  place.cookie = fmt::format("luff_{}", port);  // cookies do not know ports
  return place;
}

Status AddPublicUrl(std::string_view url, Place* place) {
  const Status wrong = InvalidArgument(fmt::format(
      "'{}' is no address as browsers show it: https://example.org or https://example.org/luff", url));
  const std::size_t colon = url.find("://");
  if (colon == std::string_view::npos) return wrong;
  const std::string_view scheme = url.substr(0, colon);
  const std::string_view rest = url.substr(colon + 3);
  const std::string_view host = rest.substr(0, rest.find('/'));
  std::string_view path = rest.substr(host.size());
  while (path.ends_with('/')) path.remove_suffix(1);
  if (!IsHostName(host) || (scheme != "http" && scheme != "https")) return wrong;
  Request parsed;
  if (!path.empty() && (!ParseTarget(path, &parsed).ok() || parsed.path != path || !parsed.query.empty()))
    return wrong;
  const std::string_view name = host.substr(0, host.rfind(':'));
  const bool here = name == "localhost" || name == "127.0.0.1" || name == "[::1]";
  if (scheme == "http" && !here) {
    return FailedPrecondition(
        fmt::format("{} would send tokens unencrypted; let the proxy speak https", url));
  }
  place->hosts.emplace_back(host);
  place->origins.push_back(fmt::format("{}://{}", scheme, host));
  place->secure = scheme == "https";
  place->base = path;
  return Status::Ok();
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

std::vector<std::string_view> Guard::CookiesOf(const Request& request) const {
  std::vector<std::string_view> keys;
  std::string_view rest = request.cookie;
  while (!rest.empty()) {
    std::string_view item = rest.substr(0, rest.find(';'));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    while (item.starts_with(' ')) item.remove_prefix(1);
    if (item.starts_with(place_.cookie) && item.substr(place_.cookie.size()).starts_with('=') &&
        keys.size() < kMaxCookies)
      keys.push_back(item.substr(place_.cookie.size() + 1));
  }
  return keys;
}

std::optional<Visitor> Guard::UserOf(const Request& request) const {
  const ProxySignOn& proxy = *place_.proxy;
  if (request.user.empty() || request.user.size() > kMaxUser) return std::nullopt;
  if (!proxy.secret.empty() && !SameSecret(request.proxy_secret, proxy.secret)) return std::nullopt;
  Visitor visitor{
      .csrf = secrets_->Sealed(request.user), .name = request.user, .key = "user " + request.user};
  std::vector<std::string_view> named = {"*"};
  std::string_view rest = request.groups;
  while (!rest.empty() && named.size() < kMaxGroups) {
    std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    if (item != "*") named.push_back(item);
  }
  for (const ProxySignOn::Group& group : proxy.groups) {
    if (std::ranges::find(named, group.name) != named.end()) visitor.grants.push_back(group.grant);
  }
  return visitor;
}

std::optional<Visitor> Guard::VisitorOf(const Request& request, std::int64_t now_ns) const {
  constexpr std::string_view kBearer = "Bearer ";
  if (place_.proxy) {
    if (auto user = UserOf(request)) return user;
  }
  if (request.authorization.starts_with(kBearer))
    return secrets_->ByToken(std::string_view(request.authorization).substr(kBearer.size()));
  for (const std::string_view key : CookiesOf(request)) {
    if (auto visitor = secrets_->BySession(key, now_ns)) return visitor;
  }
  return std::nullopt;
}

std::optional<Response> Guard::CheckOrigin(const Request& request, bool reads) const {
  const bool foreign = !request.fetch_site.empty() && request.fetch_site != "same-origin" &&
                       request.fetch_site != "none";  // none: typed or a bookmark
  const bool known =
      request.origin.empty() || std::ranges::find(place_.origins, request.origin) != place_.origins.end();
  if (known && (!foreign || (reads && request.fetch_mode == "navigate" && IsOpen(request))))
    return std::nullopt;
  return Problem(403, "From another site", "another site's page may not ask this server");
}

std::optional<Response> Guard::Check(const Request& request, std::int64_t now_ns,
                                     std::optional<Visitor>* visitor) const {
  if (std::ranges::find(place_.hosts, request.host) == place_.hosts.end()) {
    const bool socket = place_.hosts.size() == 1;  // and no address that browsers show
    return Problem(421, "Wrong host", "this server does not answer for the name in the address",
                   socket
                       ? "Use the name localhost: curl --unix-socket PATH http://localhost/. A browser needs "
                         "--public-url."
                       : fmt::format("Use {}{}/.", place_.origins.back(), place_.base));
  }
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (auto refused = CheckOrigin(request, reads)) return refused;
  if (IsOpen(request))
    return reads ? std::nullopt : std::optional(Problem(405, "Not allowed", "read it with GET"));

  const bool begins = request.path == kSession && request.method == "POST";
  if (!begins) {
    *visitor = VisitorOf(request, now_ns);
    if (!*visitor) return NoSession(request, place_.proxy.has_value());
    if ((*visitor)->grants.empty()) {
      return Problem(403, "Not allowed", "you are signed on, but none of your groups may look",
                     "Ask whoever runs luff serve to add one of your groups to its configuration.");
    }
    if (!secrets_->MayAsk(**visitor, now_ns)) {
      Response wait =
          Problem(429, "Too many requests",
                  fmt::format("more than {} requests a second", Secrets::kPerSecond), "Wait a second.");
      wait.headers.emplace_back("Retry-After", "1");
      return wait;
    }
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
  return std::nullopt;
}

std::string Guard::CookieText(std::string_view key, std::int64_t seconds) const {
  return fmt::format("{}={}; Path={}/; HttpOnly; SameSite=Strict; Max-Age={}{}", place_.cookie, key,
                     place_.base, seconds, place_.secure ? "; Secure" : "");
}

Response Guard::Session(const Request& request, std::int64_t now_ns,
                        const std::optional<Visitor>& visitor) const {
  if (request.method == "GET") {
    return visitor ? SessionJson(*visitor) : NoSession(request, place_.proxy.has_value());
  }
  if (request.method == "DELETE") {
    for (const std::string_view key : CookiesOf(request)) secrets_->End(key);
    return {.status = 204, .headers = {{"Set-Cookie", CookieText("", 0)}}};
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
  response.headers.emplace_back("Set-Cookie", CookieText(*key, Secrets::kSessionNs / 1'000'000'000));
  return response;
}

}  // namespace luff::server

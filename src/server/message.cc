#include "server/message.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "luff/base/env.h"

namespace luff::server {
namespace {

int HexDigit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// Decodes %XX, and "+" in queries. Returns false for a broken escape or a control character.
bool Decode(std::string_view text, bool query, std::string* out) {
  out->clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return false;
      const int high = HexDigit(text[i + 1]);
      const int low = HexDigit(text[i + 2]);
      if (high < 0 || low < 0) return false;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && query) {
      c = ' ';
    }
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
    out->push_back(c);
  }
  return true;
}

constexpr std::size_t kMaxParameters = 64;

}  // namespace

Status Work::Check() const {
  if (left_.load(std::memory_order_relaxed)) return Cancelled("nobody waits for the answer");
  if (Env::Real().NowMonotonicNs() > until_ns_)
    return DeadlineExceeded("the answer would take too long; ask for fewer tensors or steps");
  return Status::Ok();
}

std::string_view Request::Parameter(std::string_view name) const {
  for (auto at = query.rbegin(); at != query.rend(); ++at) {
    if (at->first == name) return at->second;
  }
  return {};
}

Status ParseTarget(std::string_view target, Request* request) {
  const Status bad = InvalidArgument("the address has a form that no route has");
  if (!target.starts_with('/')) return bad;
  const std::size_t mark = target.find('?');
  if (!Decode(target.substr(0, mark), false, &request->path)) return bad;
  for (const std::string_view part : {"//", "\\", ";", "/../", "/./", "%"}) {
    if (request->path.find(part) != std::string::npos) return bad;
  }
  if (request->path.ends_with("/..") || request->path.ends_with("/.")) return bad;
  request->query.clear();
  if (mark == std::string_view::npos) return Status::Ok();
  std::string_view rest = target.substr(mark + 1);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    if (item.empty()) continue;
    if (request->query.size() == kMaxParameters)
      return InvalidArgument("the address has too many parameters");
    const std::size_t equals = item.find('=');
    std::string name;
    std::string value;
    if (!Decode(item.substr(0, equals), true, &name)) return bad;
    if (equals != std::string_view::npos && !Decode(item.substr(equals + 1), true, &value)) return bad;
    request->query.emplace_back(std::move(name), std::move(value));
  }
  return Status::Ok();
}

Response Problem(int status, std::string_view title, std::string_view detail, std::string_view remedy) {
  nlohmann::ordered_json json{{"title", title}, {"status", status}, {"detail", detail}};
  if (!remedy.empty()) json["remedy"] = remedy;
  return {.status = status, .type = "application/problem+json", .body = JsonText(json)};
}

Response ProblemOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument: return Problem(400, "Bad request", status.message());
    case StatusCode::kNotFound:
    case StatusCode::kOutOfRange: return Problem(404, "Not found", status.message());
    case StatusCode::kUnavailable: return Problem(409, "Not yet", status.message());
    case StatusCode::kCancelled:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted:
      return Problem(503, "Too much at once", status.message(), "Ask again in a moment, or for less.");
    default: return Problem(422, "Cannot be read", status.message());
  }
}

}  // namespace luff::server

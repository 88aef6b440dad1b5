#pragma once
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "luff/base/result.h"

/// Requests and answers without sockets, so that routes and guards can be tested as tables.
namespace luff::server {

/// How long an answer may take. **Thread-safe.** The service asks it wherever WorkBound is asked.
class Work {
 public:
  explicit Work(std::int64_t until_monotonic_ns) : until_ns_(until_monotonic_ns) {}
  /// The client has gone: nobody waits for the answer.
  void Leave() noexcept { left_.store(true, std::memory_order_relaxed); }
  /// Errors: kCancelled when the client has gone, kDeadlineExceeded when the time is over.
  [[nodiscard]] Status Check() const;

 private:
  const std::int64_t until_ns_;
  std::atomic<bool> left_{false};
};

/// What the server reads of a request. Header values as they came; "" if absent.
struct Request {
  std::string method;                                      // "GET"
  std::string path;                                        // decoded: "/api/v1/runs"
  std::vector<std::pair<std::string, std::string>> query;  // decoded, in their order
  std::string host, origin, fetch_site, fetch_mode, cookie, authorization, csrf, content_type, if_none_match;
  std::string user, groups, proxy_secret;  // as the proxy says; which headers: ProxySignOn
  std::string from;                        // the peer's address, or "unix"
  std::string accept;
  bool accepts_gzip = false;
  std::string body;
  const Work* work = nullptr;  // the bound of what its answer may cost; null: none

  /// The last parameter of the name; "" if there is none.
  [[nodiscard]] std::string_view Parameter(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};  // made by the server, never from data
  bool gzipped = false;
  std::vector<std::string> live = {};  // runs of an event stream; its route answers with nothing else
  bool is_stream = false;
  std::string viewer = {};  // of an event stream: whose it is, so that nobody takes the places of all
};

inline constexpr std::string_view kApi = "/api/v1/";

/// Splits and decodes the target of a request. Errors: kInvalidArgument for anything but a path of the form
/// that routes have: absolute, without "..", "//", backslashes, ";", control characters and escapes that hide
/// them.
[[nodiscard]] Status ParseTarget(std::string_view target, Request* request);

/// The whole number that a text is. Errors: kInvalidArgument, which names `what`, for anything else.
template <typename T>
[[nodiscard]] Result<T> WholeNumber(std::string_view text, std::string_view what) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    return InvalidArgument(std::string(what) + " is no number in its range");
  return number;
}
/// The number in a parameter; `otherwise` if it is absent.
template <typename T>
[[nodiscard]] Result<T> NumberIn(const Request& request, std::string_view name, T otherwise) {
  const std::string_view text = request.Parameter(name);
  if (text.empty()) return otherwise;
  return WholeNumber<T>(text, name);
}

/// The whole numbers of a text like "3,7".
template <typename T>
[[nodiscard]] Result<std::vector<T>> NumbersIn(std::string_view text, char between) {
  std::vector<T> numbers;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(between));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    LUFF_ASSIGN_OR_RETURN(const T number, WholeNumber<T>(item, "an item"));
    numbers.push_back(number);
  }
  return numbers;
}

/// RFC 9457. `remedy`: "" if there is none.
[[nodiscard]] Response Problem(int status, std::string_view title, std::string_view detail,
                               std::string_view remedy = "");
/// The answer for an error of the rooms below.
[[nodiscard]] Response ProblemOf(const Status& status);

}  // namespace luff::server

// Who may ask what: requests as a table, without sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/guard.h"

namespace luff::server::guard_test {
namespace {

constexpr std::int64_t kNow = 1'000'000'000'000;

struct House {
  House() {
    secrets.Add("admin", Role::kAdmin);
    secrets.Add("scrape", Role::kMetrics);
  }
  Secrets secrets;
  Guard guard{LoopbackPlace(6006), &secrets};

  Request Asks(const std::string& method, const std::string& target) const {
    Request request;
    request.method = method;
    EXPECT_TRUE(ParseTarget(target, &request).ok()) << target;
    request.host = "127.0.0.1:6006";
    if (method != "GET") {
      request.origin = "http://127.0.0.1:6006";
      request.content_type = "application/json";
    }
    return request;
  }
  int Status(const Request& request, std::int64_t now = kNow) const {
    std::optional<Visitor> visitor;
    const auto refused = guard.Check(request, now, &visitor);
    return refused ? refused->status : 200;
  }
};

using ::testing::HasSubstr;

/// What somebody is told who comes by a name that is not the server's.
std::string Refusal(const Place& place) {
  Secrets secrets;
  const Guard guard(place, &secrets);
  Request request;
  request.method = "GET";
  EXPECT_TRUE(ParseTarget("/", &request).ok());
  request.host = "evil.test";
  std::optional<Visitor> visitor;
  const auto refused = guard.Check(request, kNow, &visitor);
  return refused ? refused->body : "";
}

TEST(Guard, TellsAWrongTokenFromAMissingSession) {
  const House house;
  const auto told = [&](const std::string& authorization) {
    Request request = house.Asks("GET", "/api/v1/runs");
    request.authorization = authorization;
    std::optional<Visitor> visitor;
    const auto refused = house.guard.Check(request, kNow, &visitor);
    EXPECT_TRUE(refused && refused->status == 401);
    return refused ? refused->body : "";
  };
  EXPECT_THAT(told(""), HasSubstr("this browser has no session here"));
  EXPECT_THAT(told("Bearer wrong"), HasSubstr("this token is none of this server's, or it was revoked"));
  EXPECT_THAT(told("Bearer "), HasSubstr("this token is none"));
}

TEST(Guard, LetsPassWhatTheTableSays) {
  const House house;
  const auto with = [&](const std::string& method, const std::string& target, auto change) {
    Request request = house.Asks(method, target);
    change(request);
    return house.Status(request);
  };
  const auto none = [](Request&) {};
  const auto bearer = [](const char* token) {
    return [token](Request& r) { r.authorization = std::string("Bearer ") + token; };
  };
  EXPECT_EQ(with("GET", "/healthz", none), 200);
  EXPECT_EQ(with("GET", "/", none), 200);
  EXPECT_EQ(with("GET", "/api/v1/runs", none), 401);
  EXPECT_EQ(with("GET", "/metrics", none), 401);
  EXPECT_EQ(with("GET", "/api/v1/runs?token=admin", none), 401);  // never in an address
  EXPECT_EQ(with("GET", "/api/v1/runs", bearer("admin")), 200);
  EXPECT_EQ(with("GET", "/api/v1/runs", bearer("admim")), 401);
  EXPECT_EQ(with("GET", "/api/v1/runs", bearer("")), 401);
  EXPECT_EQ(with("GET", "/metrics", bearer("scrape")), 200);
  EXPECT_EQ(with("POST", "/", none), 405);
}

TEST(Guard, AnswersOnlyForItsOwnNames) {
  const House house;
  for (const char* host :
       {"", "127.0.0.1", "127.0.0.1:6007", "127.0.0.1:6006.", "evil.test:6006", "localhost.evil.test:6006",
        "LOCALHOST:6006", "127.0.0.1:6006@evil.test", "0.0.0.0:6006", "[::]:6006", "[::1]"}) {
    for (const char* target : {"/", "/healthz", "/api/v1/runs", "/api/v1/live"}) {
      Request request = house.Asks("GET", target);
      request.authorization = "Bearer admin";
      request.host = host;
      EXPECT_EQ(house.Status(request), 421) << host << " " << target;
    }
  }
  EXPECT_THAT(Refusal(LoopbackPlace(6006)), HasSubstr("Use http://127.0.0.1:6006/."));
  EXPECT_THAT(Refusal(LoopbackPlace(0)), HasSubstr("curl --unix-socket PATH http://localhost/"));
  for (const char* host : {"127.0.0.1:6006", "localhost:6006", "[::1]:6006"}) {
    Request request = house.Asks("GET", "/healthz");
    request.host = host;
    EXPECT_EQ(house.Status(request), 200) << host;
  }
}

TEST(Guard, RefusesWhatAnotherSitesPageHasCaused) {
  const House house;
  const auto asks = [&](const char* method, const char* target, const char* site, const char* mode,
                        const char* origin) {
    Request request = house.Asks(method, target);
    request.authorization = "Bearer admin";
    request.fetch_site = site;
    request.fetch_mode = mode;
    request.origin = origin;
    return house.Status(request);
  };
  EXPECT_EQ(asks("GET", "/", "cross-site", "navigate", ""), 200);  // a link in a mail
  EXPECT_EQ(asks("GET", "/", "cross-site", "no-cors", ""), 403);
  EXPECT_EQ(asks("GET", "/api/v1/runs", "cross-site", "navigate", ""), 403);
  EXPECT_EQ(asks("GET", "/api/v1/runs", "same-site", "cors", ""), 403);
  EXPECT_EQ(asks("GET", "/api/v1/live", "cross-site", "cors", "http://evil.test"), 403);
  EXPECT_EQ(asks("GET", "/api/v1/runs", "", "", "http://evil.test"), 403);
  EXPECT_EQ(asks("GET", "/api/v1/runs", "", "", "null"), 403);
  EXPECT_EQ(asks("GET", "/api/v1/runs", "", "", "https://127.0.0.1:6006"), 403);
  EXPECT_EQ(asks("GET", "/api/v1/runs", "same-origin", "cors", "http://127.0.0.1:6006"), 200);
}

TEST(Guard, SessionsBeginWithATokenAndEnd) {
  House house;
  Request begin = house.Asks("POST", "/api/v1/session");
  begin.body = R"({"token": "admin"})";
  ASSERT_EQ(house.Status(begin), 200);
  const Response begun = house.guard.Session(begin, kNow, std::nullopt);
  ASSERT_EQ(begun.status, 200) << begun.body;
  ASSERT_EQ(begun.headers.size(), 1U);
  const std::string cookie = begun.headers[0].second;
  EXPECT_TRUE(cookie.starts_with("luff_6006="));
  EXPECT_NE(cookie.find("; HttpOnly; SameSite=Strict"), std::string::npos);

  Request get = house.Asks("GET", "/api/v1/runs");
  get.cookie = "other=1; " + cookie.substr(0, cookie.find(';'));
  EXPECT_EQ(house.Status(get), 200);
  Request tossed = get;  // by a page of another port, for a longer path
  tossed.cookie = "luff_6006=x; luff_6006=; " + get.cookie;
  EXPECT_EQ(house.Status(tossed), 200);
  EXPECT_EQ(house.Status(get, kNow + Secrets::kSessionNs - 1), 200);  // used: it goes on
  EXPECT_EQ(house.Status(get, kNow + 2 * Secrets::kSessionNs - 2), 200);
  EXPECT_EQ(house.Status(get, kNow + 9 * Secrets::kSessionNs), 401);

  Request other_port = get;
  other_port.cookie = "luff_6007" + get.cookie.substr(get.cookie.find('='));
  EXPECT_EQ(house.Status(other_port), 401);
}

TEST(Guard, ChangesNeedTheMarkOfThePage) {
  House house;
  Visitor visitor;
  bool wait = false;
  const auto key = house.secrets.Begin("admin", kNow, &visitor, &wait);
  ASSERT_TRUE(key.has_value());
  Request end = house.Asks("DELETE", "/api/v1/session");
  end.cookie = "luff_6006=" + *key;
  EXPECT_EQ(house.Status(end), 403);
  end.csrf = visitor.csrf;
  EXPECT_EQ(house.Status(end), 200);
  Request without_origin = end;
  without_origin.origin = "";
  EXPECT_EQ(house.Status(without_origin), 403);
  EXPECT_EQ(house.guard.Session(end, kNow, visitor).status, 204);
  EXPECT_EQ(house.Status(end), 401);
  Request form = house.Asks("POST", "/api/v1/session");
  form.content_type = "text/plain";
  EXPECT_EQ(house.Status(form), 415);
}

TEST(Guard, FewWrongTokensAMinute) {
  House house;
  Request begin = house.Asks("POST", "/api/v1/session");
  begin.body = R"({"token": "guess"})";
  for (std::size_t i = 0; i < Secrets::kTries; ++i)
    EXPECT_EQ(house.guard.Session(begin, kNow, std::nullopt).status, 401);
  EXPECT_EQ(house.guard.Session(begin, kNow, std::nullopt).status, 429);
  const Request guess = begin;
  begin.body = R"({"token": "admin"})";
  EXPECT_EQ(house.guard.Session(begin, kNow, std::nullopt).status, 200);  // guessing shuts nobody out
  EXPECT_EQ(house.guard.Session(guess, kNow, std::nullopt).status, 429);
  EXPECT_EQ(house.guard.Session(guess, kNow + 61'000'000'000, std::nullopt).status, 401);
  for (const char* body : {"", "[]", "{", R"({"token": 1})", R"({"other": "admin"})", "[[[[[[[["}) {
    begin.body = body;
    EXPECT_EQ(house.guard.Session(begin, kNow + 61'000'000'000, std::nullopt).status, 400) << body;
  }
}

TEST(Guard, AVisitorAsksSoMuchASecond) {
  const House house;
  Request request = house.Asks("GET", "/api/v1/runs");
  request.authorization = "Bearer admin";
  int refused = 0;
  for (int i = 0; i < 300; ++i) refused += house.Status(request) == 429 ? 1 : 0;
  EXPECT_GE(refused, 90);
  EXPECT_LE(refused, 100);
  EXPECT_EQ(house.Status(request, kNow + 1'000'000'000), 200);
  request.authorization = "Bearer scrape";
  EXPECT_EQ(house.Status(request), 200);  // another's requests count apart
}

struct Proxied {
  explicit Proxied(const std::string& secret) {
    place = LoopbackPlace(6006);
    EXPECT_TRUE(AddPublicUrl("https://luff.example.org/studio/", &place).ok());
    place.proxy = ProxySignOn{.secret = secret,
                              .groups = {{"ops", {Role::kOperator, {"/a"}}}, {"ml", {Role::kViewer, {}}}}};
  }
  std::optional<Visitor> Ask(const std::string& user, const std::string& groups, const std::string& with,
                             int* status) {
    const Guard guard(place, &secrets);
    Request request;
    request.method = "GET";
    request.path = "/api/v1/runs";
    request.host = "luff.example.org";
    request.user = user;
    request.groups = groups;
    request.proxy_secret = with;
    std::optional<Visitor> visitor;
    const auto refused = guard.Check(request, kNow, &visitor);
    *status = refused ? refused->status : 200;
    return visitor;
  }
  Place place;
  Secrets secrets;
};

TEST(Guard, TakesUsersFromAProxyThatKnowsTheSecret) {
  Proxied house("of the proxy, long");
  int status = 0;
  const auto ann = house.Ask("ann", "staff, ops ,ml", "of the proxy, long", &status);
  EXPECT_EQ(status, 200);
  EXPECT_EQ(ann->name, "ann");
  EXPECT_EQ(ann->role(), Role::kOperator);
  EXPECT_TRUE(ann->May(Role::kOperator, "/a/run"));
  EXPECT_FALSE(ann->May(Role::kOperator, "/ab/run"));
  EXPECT_TRUE(ann->May(Role::kViewer, "/b/run"));
  EXPECT_FALSE(ann->csrf.empty());
  EXPECT_NE(ann->csrf, house.Ask("bob", "ml", "of the proxy, long", &status)->csrf);
  for (const char* secret : {"", "x", "of the proxy, lonG", "of the proxy, long "}) {
    (void)house.Ask("ann", "ops", secret, &status);
    EXPECT_EQ(status, 401) << secret;
  }
  (void)house.Ask("", "ops", "of the proxy, long", &status);
  EXPECT_EQ(status, 401);
  (void)house.Ask("eve", "staff,*,o ps", "of the proxy, long", &status);
  EXPECT_EQ(status, 403);
}

TEST(Guard, WithoutAProxyNobodyCanNameAUser) {
  Proxied house("");
  int status = 0;
  EXPECT_EQ(house.Ask("ann", "ml", "", &status)->name, "ann");  // a Unix socket: only the proxy can connect
  house.place.proxy.reset();
  (void)house.Ask("ann", "ml", "", &status);
  EXPECT_EQ(status, 401);
}

TEST(Place, TakesTheAddressThatBrowsersShow) {
  Place place = LoopbackPlace(6006);
  ASSERT_TRUE(AddPublicUrl("https://luff.example.org:8443/a/b/", &place).ok());
  EXPECT_EQ(place.hosts.back(), "luff.example.org:8443");
  EXPECT_EQ(place.origins.back(), "https://luff.example.org:8443");
  EXPECT_EQ(place.base, "/a/b");
  EXPECT_TRUE(place.secure);
  EXPECT_EQ(AddPublicUrl("http://luff.example.org", &place).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(AddPublicUrl("http://localhost:8080", &place).ok());
  for (const char* url : {"", "luff.example.org", "https://", "ftp://x", "https://x/../y", "https://x/a?b=1",
                          "https://user@x", "https://x y", "https://x/%41", "https://X"})
    EXPECT_EQ(AddPublicUrl(url, &place).code(), StatusCode::kInvalidArgument) << url;
}

TEST(Target, HasTheFormOfARoute) {
  Request request;
  for (const char* target : {"",
                             "*",
                             "http://127.0.0.1/",
                             "runs",
                             "/a/../b",
                             "/..",
                             "/a/./b",
                             "//evil",
                             "/a%2e%2e%2fb/%2e%2e/c",
                             "/%2e%2e/x",
                             "/a\\b",
                             "/a%5cb",
                             "/a;b",
                             "/a%00",
                             "/a%0d%0aX",
                             "/a%",
                             "/a%4",
                             "/a%zz",
                             "/%252e%252e/x",
                             "/a?x=%0a"}) {
    EXPECT_FALSE(ParseTarget(target, &request).ok()) << target;
  }
  ASSERT_TRUE(ParseTarget("/api/v1/runs?where=lr+%3E+0.1&tag=a&tag=b&x", &request).ok());
  EXPECT_EQ(request.path, "/api/v1/runs");
  EXPECT_EQ(request.Parameter("where"), "lr > 0.1");
  EXPECT_EQ(request.Parameter("tag"), "b");
  EXPECT_EQ(request.Parameter("x"), "");
  std::string many = "/a?";
  for (int i = 0; i < 100; ++i) many += "x=1&";
  EXPECT_FALSE(ParseTarget(many, &request).ok());
}

}  // namespace
}  // namespace luff::server::guard_test

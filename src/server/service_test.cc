// Routes over real runs, without sockets.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "luff/base/work_bound.h"
#include "luff/rules/finding.h"
#include "luff/store/control.h"
#include "luff/store/owner.h"
#include "query/testing.h"
#include "server/service.h"

namespace luff::server::service_test {
namespace {

using query::testing::TempRun;
using query::testing::Writing;

struct House {
  House() : writing(run.path(), 0, 1) {
    secrets.Add("secret", Role::kAdmin);
    secrets.Add("look", Role::kViewer);
    writing.Define(0, "loss", 1, format::Role::kLoss);
    writing.Define(1, "fc.weight<img src=x>", 2, format::Role::kWeight);
    Write(20);
  }
  void Write(int count) {
    for (int i = 0; i < count; ++i) {
      writing.AddScalar(0, 1.0 / static_cast<double>(writing.global_step + 1));
      const float values[] = {1, 2};
      writing.AddSummary(1, values);
      writing.Step();
    }
  }
  Response Get(const std::string& target) {
    Request request;
    request.method = "GET";
    if (const Status parsed = ParseTarget(target, &request); !parsed.ok()) return ProblemOf(parsed);
    request.host = "127.0.0.1:1";
    request.authorization = "Bearer secret";
    return service.Answer(request);
  }
  nlohmann::json Json(const std::string& target) {
    const Response response = Get(target);
    EXPECT_EQ(response.status, 200) << target << response.body;
    return TryParseJson(response.body);
  }
  Response Post(const std::string& target, const std::string& body, const std::string& token = "secret") {
    Request request;
    request.method = "POST";
    if (const Status parsed = ParseTarget(target, &request); !parsed.ok()) return ProblemOf(parsed);
    request.host = "127.0.0.1:1";
    request.authorization = "Bearer " + token;
    request.content_type = "application/json";
    request.body = body;
    return service.Answer(request);
  }
  std::string Id() { return Json("/api/v1/runs")["runs"][0]["id"]; }

  TempRun run;
  Writing writing;
  Secrets secrets;
  Service service{
      LoopbackPlace(1), &secrets, {.roots = {std::filesystem::path(run.path()).parent_path().string()}}};
};

TEST(Service, ShowsARunOnEveryRoute) {
  House house;
  const auto list = house.Json("/api/v1/runs?sort=-begun&where=verdict+%3D+running");
  ASSERT_EQ(list["runs"].size(), 1U) << JsonText(list);
  const std::string at = "/api/v1/runs/" + house.Id();
  const auto document = house.Json(at);
  EXPECT_EQ(document["steps"]["count"], 20);
  EXPECT_EQ(document["steps"]["modes"]["TRAIN"]["last"], 19);
  EXPECT_EQ(document["losses"][0]["tensor"], 0);
  EXPECT_EQ(document["workers"][0]["alive"], true);
  const auto tensors = house.Json(at + "/tensors");
  EXPECT_EQ(tensors["tensors"][1]["name"], "fc.weight<img src=x>");
  EXPECT_EQ(tensors["tensors"][1]["role"], "weight");
  EXPECT_EQ(house.Get(at + "/steps").status, 200);
  EXPECT_EQ(house.Get(at + "/columns?tensor=0,1&stat=auto&points=8").status, 200);
  EXPECT_EQ(house.Json(at + "/heat?stat=std")["rows"], 2);
  const Response tile = house.Get(at + "/heat/l2/0/0/0");
  EXPECT_EQ(tile.body.size(), 65536U);
  EXPECT_EQ(house.Json(at + "/at/7")["rows"][0]["l2"].get<double>(), std::sqrt(5.0));
  EXPECT_TRUE(house.Json(at + "/findings")["findings"].empty());
  EXPECT_TRUE(house.Json(at + "/pages")["pages"].empty());
  const auto tensor = house.Json(at + "/tensors/1");
  EXPECT_EQ(tensor["dtype"], "float32");
  EXPECT_EQ(tensor["elements"], 2);
  EXPECT_EQ(tensor["steps"]["last"], 19);
  EXPECT_EQ(tensor["values"]["count"], 0);
  EXPECT_EQ(house.Get(at + "/histograms?tensor=1&points=64&scale=log").status, 200);
  EXPECT_EQ(house.Get(at + "/ranks").status, 200);
  EXPECT_EQ(house.Get(at + "/rows?tensor=0,1").status, 200);
  EXPECT_EQ(document["boosting"], false);
  EXPECT_TRUE(house.Json(at + "/boosting")["trainings"].empty());
  EXPECT_TRUE(house.Get("/api/v1/live?runs=" + house.Id()).is_stream);
}

TEST(Service, EveryRouteNeedsTheRoleOfTheTable) {
  House house;
  house.secrets.Add("scrape", Role::kMetrics);
  house.secrets.Add("act", Role::kOperator);
  const std::map<std::string, Role> tokens = {{"scrape", Role::kMetrics},
                                              {"look", Role::kViewer},
                                              {"act", Role::kOperator},
                                              {"secret", Role::kAdmin}};
  const std::string id = house.Id();
  for (const Route& route : Routes()) {
    if (route.path == "session") continue;
    std::string path =
        route.path.starts_with('/') ? std::string(route.path) : std::string(kApi) + std::string(route.path);
    for (std::size_t at = path.find('*'); at != std::string::npos; at = path.find('*'))
      path.replace(at, 1, path.find("runs/*") + 5 == at ? id : "0");
    for (const auto& [token, role] : tokens) {
      Request request;
      request.method = route.method;
      ASSERT_TRUE(ParseTarget(path, &request).ok()) << path;
      request.host = "127.0.0.1:1";
      request.authorization = "Bearer " + token;
      request.content_type = "application/json";
      const int status = house.service.Answer(request).status;
      EXPECT_EQ(status == 403, role < route.role) << route.method << " " << path << " " << token << status;
      EXPECT_NE(status, 401);
      request.authorization = "Bearer nobody";
      EXPECT_EQ(house.service.Answer(request).status, 401) << path;
    }
  }
}

TEST(Service, OpenApiNamesEveryRouteWithItsRole) {
  House house;
  const auto paths = house.Json("/api/v1/openapi.json")["paths"];
  std::map<std::string, std::string> told;  // "GET runs/*" -> role
  for (const auto& [path, methods] : paths.items()) {
    std::string pattern = path.starts_with(kApi) ? path.substr(kApi.size()) : path;
    for (std::size_t at = pattern.find('{'); at != std::string::npos; at = pattern.find('{'))
      pattern.replace(at, pattern.find('}', at) - at + 1, "*");
    for (const auto& [method, route] : methods.items()) {
      std::string upper = method;
      std::ranges::transform(upper, upper.begin(), [](char c) { return static_cast<char>(c - 'a' + 'A'); });
      told[upper + " " + pattern] = route["x-role"];
    }
  }
  std::map<std::string, std::string> are;
  for (const Route& route : Routes())
    are[std::string(route.method) + " " + std::string(route.path)] = RoleName(route.role);
  EXPECT_EQ(told, are);
}

TEST(Service, RunsElsewhereDoNotExist) {
  House house;
  const std::string folder = std::filesystem::path(house.run.path()).parent_path().string();
  const std::string id = house.Id();
  const auto ask = [&](const std::string& root, const std::string& target) {
    const House* of = &house;
    const std::string file = of->run.path() + "-tokens.json";
    const auto token = TokenFile(file).Add({.name = "x", .roots = {root}});
    EXPECT_TRUE(token.ok());
    Secrets secrets(file);
    Service service(LoopbackPlace(1), &secrets, {.roots = {folder}});
    Request request;
    request.method = "GET";
    EXPECT_TRUE(ParseTarget(target, &request).ok());
    request.host = "127.0.0.1:1";
    request.authorization = "Bearer " + *token;
    Response response = service.Answer(request);
    std::filesystem::remove(file);
    std::filesystem::remove(file + ".lock");
    return response;
  };
  const std::string at = "/api/v1/runs/" + id;
  EXPECT_EQ(ask(folder, at).status, 200);
  EXPECT_EQ(ask(house.run.path(), at + "/tensors").status, 200);
  EXPECT_EQ(ask(house.run.path() + "x", at).status, 404);
  EXPECT_EQ(ask("/elsewhere", at).status, 404);
  EXPECT_EQ(ask("/elsewhere", "/api/v1/live?runs=" + id).status, 404);
  EXPECT_EQ(ask("/elsewhere", "/api/v1/runs").body, R"({"runs":[],"matching":0,"all":0,"notes":[]})");
  EXPECT_EQ(TryParseJson(ask(folder, "/api/v1/runs").body)["all"], 1);
  EXPECT_EQ(ask("/elsewhere", "/api/v1/session?run=" + id).status, 404);
  EXPECT_EQ(TryParseJson(ask(folder, "/api/v1/session?run=" + id).body)["role"], "viewer");
  EXPECT_EQ(ask("/elsewhere", "/metrics").body.find("run=\""), std::string::npos);
  EXPECT_NE(ask(folder, "/metrics").body.find("run=\""), std::string::npos);
}

TEST(Service, ARoleMayHoldForSomeRunsOnly) {
  const Visitor visitor{.grants = {{Role::kViewer}, {Role::kOperator, {"/runs/ours"}}}, .name = "ann"};
  EXPECT_EQ(visitor.role(), Role::kOperator);
  EXPECT_EQ(visitor.At("/runs/ours/1").role(), Role::kOperator);
  EXPECT_EQ(visitor.At("/runs/ourselves").role(), Role::kViewer);
  EXPECT_EQ(visitor.At("/runs").name, "ann");
}

TEST(Service, TakesRequestsOfThoseWhoMayActAndShowsThem) {
  House house;
  const std::string at = "/api/v1/runs/" + house.Id();
  EXPECT_EQ(house.Post(at + "/requests", R"({"action":"stop"})", "look").status, 403);
  EXPECT_EQ(house.Post(at + "/marks", R"({"finding":"0a","as":"mute"})", "look").status, 403);
  EXPECT_EQ(house.Post(at + "/heat", "{}").status, 405);
  EXPECT_EQ(house.Post(at + "/nothing", "{}").status, 404);
  for (const char* body :
       {"", "[]", "{}", R"({"action":7})", R"({"action":"fly"})", R"({"action":"capture"})"})
    EXPECT_EQ(house.Post(at + "/requests", body).status, 400) << body;
  EXPECT_EQ(house.Post(at + "/marks", R"({"finding":"0a","as":"mute"})").status, 404);  // no such finding
  EXPECT_EQ(house.Post(at + "/marks", R"({"finding":"0a","as":"love"})").status, 400);
  EXPECT_EQ(house.Post(at + "/marks", R"({"finding":"0a","as":"mute","until_step":"x"})").status, 400);
  store::ControlRecord strange;  // of another's run, or of a hand
  strange.kind = "mark";
  strange.body = R"({"as":"mute","until_step":1.5})";
  ASSERT_TRUE(store::WriteControl(house.run.path(), strange).ok());
  EXPECT_TRUE(house.Json(at + "/requests")["requests"].empty());
  // A supervisor watches: it answers, the server only writes.
  const auto lock = store::SupervisorLock::Take(house.run.path());
  ASSERT_TRUE(lock.ok());
  const Response asked = house.Post(at + "/requests", R"({"action":"stop","reason":"enough"})");
  ASSERT_EQ(asked.status, 202) << asked.body;
  const auto list = house.Json(at + "/requests");
  ASSERT_EQ(list["requests"].size(), 1U);
  EXPECT_EQ(list["requests"][0]["action"], "stop");
  EXPECT_EQ(list["requests"][0]["state"], "asked");
  EXPECT_EQ(list["requests"][0]["reason"], "enough");
  EXPECT_NE(list["requests"][0]["author"].get<std::string>().find("luff serve"), std::string::npos);
}

TEST(Service, CoordinatesAJobThatNobodyWatchesAndEndsInTime) {
  House house;
  const std::string at = "/api/v1/runs/" + house.Id();
  ASSERT_EQ(house.Post(at + "/requests", R"({"action":"stop"})").status, 202);
  for (int i = 0; i < 200 && house.Json(at + "/requests")["requests"][0]["state"] != "proposed"; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(house.Json(at + "/requests")["requests"][0]["state"], "proposed");
  // The worker never answers; the house closes all the same.
}

TEST(Service, RefusesWithAReason) {
  House house;
  const std::string at = "/api/v1/runs/" + house.Id();
  const std::vector<std::pair<std::string, int>> table = {
      {"/api/v1/runs/..", 400},
      {"/api/v1/runs/%2e%2e%2f%2e%2e", 400},
      {"/api/v1/runs/0123", 404},
      {"/api/v1/runs/" + std::string(8000, 'a'), 404},
      {"/api/v1/runs/" + house.run.path().substr(1), 404},  // a path is no id
      {"/api/v1/nothing", 404},
      {at + "/nothing", 404},
      {at + "/columns", 400},
      {at + "/columns?tensor=99", 404},
      {at + "/columns?tensor=-1", 400},
      {at + "/columns?tensor=0&stat=evil", 404},
      {at + "/columns?tensor=0&points=1000000000000", 400},
      {at + "/columns?tensor=0&from=5&to=1", 400},
      {at + "/columns?tensor=0&from=nan", 400},
      {at + "/columns?tensor=0&mode=SLEEP", 400},
      {at + "/heat?stat=min", 404},
      {at + "/heat?stat=l2&mode=GLOBAL", 400},
      {at + "/columns?tensor=0&stat=update_ratio", 404},
      {at + "/overview?tensor=0&stat=l2&level=7", 404},
      {at + "/overview?tensor=99&stat=l2", 404},
      {at + "/overview?stat=l2", 400},
      {at + "/heat/l2/9/0/0", 404},
      {at + "/heat/l2/0/99999999999/0", 404},
      {at + "/heat/l2/0/18446744073709551615/0", 404},
      {at + "/heat/l2/0/0", 404},
      {at + "/at/20", 409},  // it may come
      {at + "/at/x", 400},
      {at + "/histogram?tensor=1&step=3", 404},
      {at + "/histograms", 404},
      {at + "/histograms?tensor=9", 404},
      {at + "/histograms?tensor=1&points=0", 400},
      {at + "/histograms?tensor=1&bins=1000000000000", 400},
      {at + "/histograms?tensor=1&scale=evil", 400},
      {at + "/histograms?tensor=1&from=5&to=1", 400},
      {at + "/ranks?points=99999999", 400},
      {at + "/ranks?from=-5", 400},
      {at + "/rows", 400},
      {at + "/rows?tensor=99", 404},
      {at + "/tensors/99", 404},
      {at + "/tensors/x", 400},
      {"/api/v1/runs?where=lr+%3E", 400},
      {"/api/v1/runs?where=losss+%3C+1", 400},
      {"/api/v1/runs?limit=-1", 400},
      {"/api/v1/live?runs=evil", 404},
      {"/assets/../secret", 400},
      {"/nothing", 404},
  };
  for (const auto& [target, status] : table) {
    const Response response = house.Get(target);
    EXPECT_EQ(response.status, status) << target << " " << response.body;
    EXPECT_EQ(response.type, "application/problem+json") << target;
    EXPECT_TRUE(TryParseJson(response.body)["detail"].is_string());
  }
}

TEST(Service, TellsStreamsWhatIsNew) {
  House house;
  Told told;
  told.runs = {house.Id()};
  Live& live = house.service.live();
  live.Watch(told);
  live.Look();
  std::string news = live.News(&told);
  EXPECT_NE(news.find("\"step_count\":20,"), std::string::npos) << news;
  EXPECT_EQ(live.News(&told), "");
  house.Write(5);
  std::this_thread::sleep_for(std::chrono::milliseconds(120));  // a run is read at most ten times a second
  live.Look();
  news = live.News(&told);
  EXPECT_NE(news.find("\"step_count\":25,"), std::string::npos) << news;
  live.Leave(told);
  EXPECT_FALSE(live.anybody());
}

TEST(Service, TellsStreamsOfFindingsOfEveryEvaluator) {
  House house;
  Told told;
  told.runs = {house.Id()};
  Live& live = house.service.live();
  live.Watch(told);
  const auto counts = [&] {
    live.Look();
    const std::string news = live.News(&told);
    const std::size_t data = news.find("data: ");
    if (data == std::string::npos) return std::string("no news");
    const auto event = TryParseJson(news.substr(data + 6, news.find('\n', data) - data - 6));
    return JsonText(event["findings"]) + " " + JsonText(event["stop"]);
  };
  EXPECT_EQ(counts(), "0 0");
  const auto write = [&](const std::string& evaluator, const std::string& id, rules::Severity severity) {
    const std::string folder = house.run.path() + "/rules/" + evaluator;
    std::filesystem::create_directories(folder);
    rules::Finding finding;
    finding.id = id;
    finding.rule = "ExplodingTensor";
    finding.severity = severity;
    std::ofstream(folder + "/findings.jsonl", std::ios::app) << rules::ToJson(finding, "new") << "\n";
  };
  write("luff", "00000000000000a1", rules::Severity::kStop);
  EXPECT_EQ(counts(), "1 1");
  EXPECT_EQ(counts(), "no news");
  write("own", "00000000000000a2", rules::Severity::kWarn);
  EXPECT_EQ(counts(), "2 1");
  write("own", "00000000000000a3", rules::Severity::kWarn);
  EXPECT_EQ(counts(), "3 1");
  live.Leave(told);
}

// A page that shows a run does not show the list, which is then looked at seldom: not where the run is gone.
TEST(Service, AWatchedRunThatMovedIsLookedForAtOnce) {
  House house;
  Told told;
  told.runs = {house.Id()};
  Live& live = house.service.live();
  live.Watch(told);
  live.Look();
  (void)live.News(&told);
  house.Write(1);
  live.Look();
  EXPECT_EQ(live.News(&told).find("event: runs"), std::string::npos);
  std::filesystem::rename(house.run.path(), house.run.path() + "-elsewhere");
  live.Look();
  EXPECT_NE(live.News(&told).find("unreadable"), std::string::npos);
  live.Look();
  EXPECT_NE(live.News(&told).find("event: runs"), std::string::npos);
  live.Leave(told);
  std::filesystem::rename(house.run.path() + "-elsewhere", house.run.path());
}

TEST(Service, AStrangersOutcomeMakesNoEventsOfItsOwn) {
  House house;
  store::ControlRecord record;
  record.kind = "outcome";
  record.body = R"({"state": "x\"}\n\nevent: run\ndata: {\"id\":\"evil\"", "why": ""})";
  ASSERT_TRUE(store::WriteControl(house.run.path(), record).ok());
  Told told;
  told.runs = {house.Id()};
  Live& live = house.service.live();
  live.Watch(told);
  live.Look();
  const std::string news = live.News(&told);
  live.Leave(told);
  const std::size_t data = news.find("data: ") + 6;
  EXPECT_EQ(news.find("\n\n", data) + 2, news.size()) << news;  // one event
  const auto event = TryParseJson(news.substr(data, news.size() - data - 2));
  ASSERT_TRUE(event.is_object()) << news;
  EXPECT_EQ(event["id"], told.runs.front());
}

TEST(Service, IsUsedByManyThreads) {
  House house;
  const std::string at = "/api/v1/runs/" + house.Id();
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 20; ++k) {
        const char* const route[] = {"/heat/l2/0/0/0", "/columns?tensor=1", "", "/at/3"};
        if (house.Get(at + route[(i + k) % 4]).status != 200) ++wrong;
        if (house.Get("/api/v1/runs").status != 200) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Service, ACopyOfARunHasItsOwnId) {
  House house;
  std::filesystem::copy(house.run.path(), house.run.path() + "-copy",
                        std::filesystem::copy_options::recursive);
  const auto runs = house.Json("/api/v1/runs")["runs"];
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_NE(runs[0]["id"], runs[1]["id"]);
  for (const auto& run : runs)
    EXPECT_EQ(house.Json("/api/v1/runs/" + run["id"].get<std::string>())["id"], run["id"]);
  std::filesystem::remove_all(house.run.path() + "-copy");
  EXPECT_EQ(house.Json("/api/v1/runs")["runs"].size(), 1U);
}

/// All routes of one run, with parameters that most of them need.
std::vector<std::string> RoutesOf(const std::string& id) {
  const std::map<std::string, std::string> parameters = {{"columns", "?tensor=0,1"},
                                                         {"rows", "?tensor=0,1"},
                                                         {"overview", "?tensor=1"},
                                                         {"histograms", "?tensor=1"},
                                                         {"histogram", "?tensor=1&step=7"}};
  std::vector<std::string> all;
  for (const Route& route : Routes()) {
    if (route.method != "GET" || !route.path.starts_with("runs/*")) continue;
    std::string path = "/api/v1/runs/" + id + std::string(route.path.substr(6));
    for (std::size_t at = path.find('*'); at != std::string::npos; at = path.find('*'))
      path.replace(at, 1, "0");
    if (path.find("/heat/") != std::string::npos) path.replace(path.find("/heat/"), 8, "/heat/l2/");
    const auto more = parameters.find(path.substr(path.rfind('/') + 1));
    all.push_back(more == parameters.end() ? path : path + more->second);
  }
  return all;
}

TEST(Service, TheWorkOfEveryRouteIsBounded) {
  House house;
  house.Write(300);
  std::size_t asked = 0, allowed = SIZE_MAX;
  const WorkBound::Check check = [&]() -> Status {
    return asked++ < allowed ? Status::Ok() : DeadlineExceeded("enough");
  };
  const std::string id = house.Id();
  const WorkBound bound(&check);
  std::size_t routes = 0;
  for (const std::string& target : RoutesOf(id)) {
    allowed = SIZE_MAX;
    const int status = house.Get(target).status;
    if (status != 200) {  // what this run does not have
      EXPECT_EQ(status, 404) << target;
      continue;
    }
    ++routes;
    asked = 0;
    EXPECT_EQ(house.Get(target).status, 200) << target;  // fewer looks: some columns are kept
    const std::size_t all = asked;
    ASSERT_GE(all, 2U) << target;
    for (const std::size_t enough : {std::size_t{0}, all / 2, all - 1}) {
      asked = 0;
      allowed = enough;
      const Response answer = house.Get(target);
      EXPECT_EQ(answer.status, 503) << target << enough;
      EXPECT_EQ(answer.type, "application/problem+json") << target << enough;
    }
    allowed = SIZE_MAX;
    EXPECT_EQ(house.Get(target).status, 200) << target;  // nothing of it is kept
  }
  EXPECT_GE(routes, 15U);
  // What reads more asks more often.
  const auto looks = [&](const std::string& target) {
    asked = 0;
    EXPECT_EQ(house.Get("/api/v1/runs/" + id + target).status, 200) << target;
    return asked;
  };
  EXPECT_GT(looks("/columns?tensor=0,1"), looks("/columns?tensor=0"));
}

TEST(Service, WhatNobodyWaitsForEnds) {
  House house;
  Work work(INT64_MAX);
  work.Leave();
  Request request;
  request.method = "GET";
  ASSERT_TRUE(ParseTarget("/api/v1/runs/" + house.Id() + "/columns?tensor=0", &request).ok());
  request.host = "127.0.0.1:1";
  request.authorization = "Bearer secret";
  request.work = &work;
  EXPECT_EQ(house.service.Answer(request).status, 503);
  const Work late(0);
  request.work = &late;
  EXPECT_EQ(house.service.Answer(request).status, 503);
}

TEST(Service, NoLinkIsFollowedOutOfWhatIsServed) {
  House house;
  const TempRun other;
  Writing elsewhere(other.path(), 0, 1);
  elsewhere.Define(0, "another", 1, format::Role::kLoss);
  elsewhere.AddScalar(0, 1);
  elsewhere.Step();
  const std::string id = house.Id();
  const std::string at = "/api/v1/runs/" + id;
  ASSERT_EQ(house.Get(at + "/columns?tensor=0").status, 200);  // open
  const std::string aside = house.run.path() + ".aside";
  std::filesystem::rename(house.run.path(), aside);
  for (const std::string& target : {aside, other.path()}) {
    std::filesystem::create_directory_symlink(target, house.run.path());
    for (const std::string& route : RoutesOf(id)) EXPECT_EQ(house.Get(route).status, 404) << route;
    for (const char* what : {"/requests", "/marks", "/labels"})
      EXPECT_EQ(house.Post(at + what, R"({"action": "stop"})").status, 404) << what;
    std::filesystem::remove(house.run.path());
  }
  std::filesystem::rename(aside, house.run.path());
  EXPECT_EQ(house.Get(at + "/columns?tensor=0").status, 200);
}

TEST(Service, AnotherRunInItsPlaceIsNotTakenForIt) {
  House house;
  const TempRun other;
  const Writing elsewhere(other.path(), 0, 1);
  const std::string run_json = other.path() + "/run.json";
  std::ifstream in(run_json);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::size_t own = text.find("\"07");
  ASSERT_NE(own, std::string::npos) << text;
  text[own + 2] = '8';
  std::ofstream(run_json) << text;
  const std::string at = "/api/v1/runs/" + house.Id();
  ASSERT_EQ(house.Get(at).status, 200);
  std::filesystem::rename(house.run.path(), house.run.path() + ".aside");
  std::filesystem::rename(other.path(), house.run.path());
  EXPECT_EQ(house.Get(at).status, 404);
  EXPECT_EQ(house.Post(at + "/requests", R"({"action": "stop"})").status, 404);
  EXPECT_EQ(house.Post(at + "/labels", R"({"add": ["x"]})").status, 404);
}

TEST(Service, ActsOnlyOnRunsOfItsUser) {
  House house;
  const std::string at = "/api/v1/runs/" + house.Id();
  EXPECT_EQ(house.Json(at + "/requests")["refused"], "");
  const auto expect_refused = [&] {
    for (const auto& [what, body] :
         std::map<std::string, std::string>{{"/requests", R"({"action": "stop"})"},
                                            {"/marks", R"({"finding": "x", "as": "mute"})"},
                                            {"/labels", R"({"add": ["x"]})"}}) {
      const Response answer = house.Post(at + what, body);
      EXPECT_EQ(answer.status, 403) << what << answer.body;
      EXPECT_NE(answer.body.find("Only the owner"), std::string::npos) << answer.body;
    }
    EXPECT_EQ(house.Get(at + "/columns?tensor=0").status, 200);  // reading is free
    EXPECT_NE(house.Json(at + "/requests")["refused"].get<std::string>().find("Only the owner"),
              std::string::npos);
    EXPECT_TRUE(std::filesystem::is_empty(house.run.path() + "/control"));
  };
  namespace fs = std::filesystem;
  const auto open = fs::perms::owner_all | fs::perms::others_all;
  fs::permissions(house.run.path(), open);
  expect_refused();
  fs::permissions(house.run.path(), fs::perms::owner_all);
  fs::permissions(house.run.path() + "/control", open);
  expect_refused();
  fs::permissions(house.run.path() + "/control", fs::perms::owner_all);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(house.run.path().c_str(), 12345, static_cast<gid_t>(-1)), 0);
    expect_refused();
  }
}

}  // namespace
}  // namespace luff::server::service_test

// Routes about many runs, and samples, over real runs, without sockets.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "query/testing.h"
#include "server/service.h"

namespace luff::server::many_test {
namespace {

using query::testing::TempRun;
using query::testing::Writing;

/// Two runs in one directory, as a server answers about them.
struct Street {
  Street() {
    secrets.Add("secret", Role::kAdmin);
    secrets.Add("look", Role::kViewer);
    Write("one", 1.0);
    Write("two", 1.5);
  }
  void Write(const std::string& name, double loss) {
    Writing writing(Path(name), 0, 1);
    writing.Define(0, "loss", 1, format::Role::kLoss);
    writing.Define(1, "fc.weight", 2, format::Role::kWeight);
    writing.batch.documents.emplace_back("environment", R"({"host": "here", "python": "3.)" +
                                                            std::string(name == "one" ? "11" : "12") +
                                                            R"(.1", "seed": 1})");
    for (int i = 0; i < 50; ++i) {
      writing.AddScalar(0, loss / (i + 1));
      const float values[] = {static_cast<float>(loss), 2};
      writing.AddSummary(1, values);
      writing.Step();
    }
    writing.Close();
  }
  [[nodiscard]] std::string Path(const std::string& name) const {
    return std::filesystem::path(folder.path()).parent_path() / "runs" / name;
  }
  Response Send(const std::string& method, const std::string& target, const std::string& body = "",
                const std::string& token = "secret") {
    Request request;
    request.method = method;
    if (const Status parsed = ParseTarget("/api/v1/" + target, &request); !parsed.ok())
      return ProblemOf(parsed);
    request.host = "127.0.0.1:1";
    request.authorization = "Bearer " + token;
    request.content_type = "application/json";
    request.body = body;
    return service.Answer(request);
  }
  nlohmann::json Json(const std::string& target) {
    const Response response = Send("GET", target);
    EXPECT_EQ(response.status, 200) << target << response.body;
    return TryParseJson(response.body);
  }
  std::string Id(const std::string& name) {
    const nlohmann::json list = Json("runs?brief=1");
    for (const auto& run : list["runs"]) {
      if (run["name"] == name) return run["id"];
    }
    return "";
  }
  std::string Both() { return Id("one") + "," + Id("two"); }

  TempRun folder;
  Secrets secrets;
  Service service{LoopbackPlace(1),
                  &secrets,
                  {.roots = {std::filesystem::path(folder.path()).parent_path().string() + "/runs"}}};
};

TEST(Runs, BriefRowsHaveTheFieldsThatWereAskedFor) {
  Street street;
  const auto rows = street.Json("runs?brief=1&fields=version.python,loss,nothing&sort=loss")["runs"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["name"], "one");
  EXPECT_EQ(rows[0]["fields"][0], "3.11.1");
  EXPECT_EQ(rows[0]["fields"][1], "0.02");
  EXPECT_EQ(rows[0]["fields"][2], "");
  EXPECT_EQ(rows[0]["steps"], 50);
  EXPECT_EQ(rows[0]["course"].size(), 32U);
  EXPECT_EQ(rows[0]["loss"]["last"], 0.02);
  EXPECT_FALSE(rows[0].contains("scalars"));
  const auto names = street.Json("fields")["fields"];
  EXPECT_NE(std::find(names.begin(), names.end(), "version.python"), names.end());
  EXPECT_EQ(street.Send("GET", "runs?brief=1&fields=a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q").status, 400);
}

TEST(Labels, AreOfThoseWhoMayActAndOfAReader) {
  Street street;
  const std::string at = "runs/" + street.Id("one") + "/labels";
  EXPECT_EQ(street.Send("POST", at, R"({"add":["a"]})", "look").status, 403);
  for (const char* bad : {"", "{}", R"({"add":["two words"]})", R"({"tags":["a"]})", R"({"title":"a\nb"})"})
    EXPECT_EQ(street.Send("POST", at, bad).status, 400) << bad;
  EXPECT_EQ(
      street.Send("POST", at, R"({"add":["night","<b>"],"title":"the best","note":"two\nlines"})").status,
      202);
  EXPECT_EQ(street.Send("POST", at, R"({"remove":["<b>"]})").status, 202);
  const auto label = street.Json(at);
  EXPECT_EQ(label["tags"], nlohmann::json({"night"}));
  EXPECT_EQ(label["title"], "the best");
  ASSERT_EQ(label["changes"].size(), 2U);
  EXPECT_EQ(label["changes"][0]["remove"][0], "<b>");
  EXPECT_NE(label["changes"][0]["author"].get<std::string>().find("luff serve"), std::string::npos);
  const auto rows = street.Json("runs?brief=1&where=tag+%3D+night&fields=tag")["runs"];
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["title"], "the best");
  EXPECT_EQ(rows[0]["fields"][0], "night");
}

TEST(Compare, AnswersAboutTwoRuns) {
  Street street;
  const auto answer = street.Json("compare?runs=" + street.Both());
  EXPECT_EQ(answer["runs"][0]["id"], street.Id("one"));
  EXPECT_EQ(answer["settings"][0]["name"], "python");
  EXPECT_EQ(answer["settings"][0]["values"][1], "3.12.1");
  EXPECT_EQ(answer["divergence"][0]["any"]["step"], 0);
  EXPECT_EQ(answer["divergence"][0]["beyond"].size(), 2U);
  const auto tensors = street.Json("compare/tensors?runs=" + street.Both())["tensors"];
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors[1]["role"], "weight");
  EXPECT_EQ(tensors[1]["ids"], nlohmann::json({1, 1}));
  const Response map = street.Send("GET", "compare/map?columns=10&runs=" + street.Both());
  EXPECT_EQ(map.status, 200) << map.body;
  EXPECT_NE(map.body.find("\"cells\""), std::string::npos);
}

TEST(Compare, RefusesWithAReason) {
  Street street;
  const std::vector<std::pair<std::string, int>> table = {
      {"compare", 400},
      {"compare?runs=" + street.Id("one"), 400},
      {"compare?runs=" + street.Id("one") + "," + street.Id("one"), 400},
      {"compare?runs=..,..", 404},
      {"compare/map?columns=0&runs=" + street.Both(), 400},
      {"compare/map?columns=99999&runs=" + street.Both(), 400},
      {"compare/map?from=9&to=3&runs=" + street.Both(), 400},
      {"compare/nothing?runs=" + street.Both(), 404},
  };
  for (const auto& [target, status] : table) {
    const Response response = street.Send("GET", target);
    EXPECT_EQ(response.status, status) << target << " " << response.body;
    EXPECT_TRUE(TryParseJson(response.body)["detail"].is_string());
  }
  EXPECT_EQ(street.Send("POST", "compare?runs=" + street.Both(), "{}").status, 405);
}

/// The JSON text under `about`, and an array of the answer.
struct Numbers {
  explicit Numbers(const std::string& body) : bytes(body) {
    std::uint64_t length = 0;
    std::memcpy(&length, body.data(), sizeof(length));
    header = TryParseJson(body.substr(8, length));
    begin = 8 + length;
    about = TryParseJson(header["__metadata__"]["about"].get<std::string>());
  }
  [[nodiscard]] std::vector<double> Doubles(const std::string& name) const {
    const auto& at = header.at(name)["data_offsets"];
    std::vector<double> values((at[1].get<std::size_t>() - at[0].get<std::size_t>()) / sizeof(double));
    std::memcpy(values.data(), bytes.data() + begin + at[0].get<std::size_t>(),
                values.size() * sizeof(double));
    return values;
  }
  std::string bytes;
  nlohmann::json header, about;
  std::size_t begin = 0;
};

TEST(Samples, ShowLossesOfRowsAndPairsOfClasses) {
  Street street;
  {
    Writing w(street.Path("sampled"), 0, 1);
    w.Define(0, "BCEWithLogitsLoss_output_0", 1, format::Role::kLoss);
    w.Define(1, "sample/BCEWithLogitsLoss_input_0", 4, format::Role::kSample);
    w.Define(2, "sample/BCEWithLogitsLoss_input_1", 4, format::Role::kSample);
    w.Define(3, "sample/Net_input_0", 4, format::Role::kSample);
    const float logits[] = {4, -4, 4, -4}, targets[] = {1, 0, 0, 1}, inputs[] = {1, 2, 3, 4};
    for (int step = 0; step < 3; ++step) {
      double sum = 0;
      for (int i = 0; i < 4; ++i) sum += std::log1p(std::exp(targets[i] == 1 ? -logits[i] : logits[i]));
      w.AddScalar(0, sum / 4);
      if (step != 1) {
        for (const auto& [id, values] : {std::pair(1U, std::span(logits)), std::pair(2U, std::span(targets)),
                                         std::pair(3U, std::span(inputs))}) {
          w.AddSummary(id, values);
          w.AddValue(id, values);
        }
      }
      w.Step();
    }
    w.Close();
  }
  const std::string at = "runs/" + street.Id("sampled");
  const Response response = street.Send("GET", at + "/samples?step=1");
  ASSERT_EQ(response.status, 200) << response.body;
  const Numbers numbers(response.body);
  EXPECT_EQ(numbers.about["step"]["global_step"], 0);  // the one before
  ASSERT_EQ(numbers.about["losses"].size(), 1U);
  EXPECT_EQ(numbers.about["losses"][0]["classes"], 2);
  EXPECT_EQ(numbers.about["losses"][0]["each"], 1);
  EXPECT_EQ(numbers.about["inputs"][0]["model"], "Net");
  const auto loss = numbers.Doubles("loss.0.value");
  ASSERT_EQ(loss.size(), 4U);
  EXPECT_NEAR(loss[0], std::log1p(std::exp(-4.0)), 1e-9);
  EXPECT_NEAR(loss[2], std::log1p(std::exp(4.0)), 1e-9);
  EXPECT_EQ(numbers.Doubles("loss.0.guess"), (std::vector<double>{1, 0, 1, 0}));
  EXPECT_NEAR(numbers.Doubles("loss.0.sure")[1], 1 / (1 + std::exp(-4.0)), 1e-9);
  EXPECT_EQ(Numbers(street.Send("GET", at + "/samples").body).about["step"]["global_step"], 2);

  const auto pairs = street.Json(at + "/confusion");
  EXPECT_EQ(pairs["loss"], "BCEWithLogitsLoss");
  EXPECT_EQ(pairs["rows"], 8);
  EXPECT_EQ(pairs["right"], 4);
  ASSERT_EQ(pairs["cells"].size(), 4U);
  for (const auto& cell : pairs["cells"]) {
    EXPECT_EQ(cell["count"], 2);
    EXPECT_EQ(cell["samples"].size(), 2U);
    if (cell["truth"] == 0 && cell["guess"] == 1) {
      EXPECT_EQ(cell["samples"][0]["row"], 2);
    }
  }
  EXPECT_EQ(street.Json(at + "/confusion?from=1")["rows"], 4);
  EXPECT_EQ(street.Json(at + "/confusion?loss=nothing")["rows"], 0);
  EXPECT_EQ(street.Send("GET", at + "/confusion?from=3&to=1").status, 400);
  EXPECT_EQ(street.Send("GET", at + "/samples?mode=SLEEP").status, 400);
  // Of a run that has none.
  const std::string none = "runs/" + street.Id("one");
  EXPECT_TRUE(Numbers(street.Send("GET", none + "/samples").body).about["step"].is_null());
  EXPECT_TRUE(street.Json(none + "/confusion")["cells"].empty());
}

}  // namespace
}  // namespace luff::server::many_test

// What a report holds of real runs: the bytes of the routes, the most important first, never more than it
// may.
#include "server/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <tuple>

#include <nlohmann/json.hpp>

#include "query/testing.h"
#include "query/testing/forge.h"
#include "server/run_api.h"
#include "server/testing.h"

namespace luff::server::report_test {
namespace {

using query::testing::TempRun;
using query::testing::Writing;
using ::testing::HasSubstr;

constexpr const char* kPage = "<head><!--luff-archive--><end>";
constexpr const char* kHostile = "<img src=x onerror=alert(1)></script>\x1b[31m";

struct House {
  explicit House(std::uint32_t tensors = 4) : writing(run.path(), 0, 1), tensors_(tensors) {
    writing.Define(0, "loss", 1, format::Role::kLoss);
    for (std::uint32_t id = 1; id < tensors; ++id)
      writing.Define(id, id == 1 ? kHostile : "block." + std::to_string(id), 2, format::Role::kWeight);
  }
  /// Tensor 2 is NaN from step 50 on.
  void Write(int count) {
    for (int i = 0; i < count; ++i) {
      const std::int64_t step = writing.global_step;
      writing.AddScalar(0, 1.0 / static_cast<double>(step + 1));
      for (std::uint32_t id = 1; id < tensors_; ++id) {
        const float bad = std::numeric_limits<float>::quiet_NaN();
        const float values[] = {id == 2 && step >= 50 ? bad : static_cast<float>(std::sin(step * id)) + 2, 1};
        writing.AddSummary(id, values);
      }
      writing.Step();
    }
  }
  void AddFinding(std::int64_t step, const std::string& tensor) const {
    AddFinding(step, step, step, tensor);
  }
  void AddFinding(std::int64_t global_step, std::int64_t step, std::int64_t since_step,
                  const std::string& tensor) const {
    const std::filesystem::path folder = std::filesystem::path(run.path()) / "rules/luff";
    std::filesystem::create_directories(folder);
    const nlohmann::json finding{
        {"event", "new"},           {"id", "f1"},         {"rule", "NonFinite"},
        {"cause", "nan"},           {"severity", "stop"}, {"tensor", tensor},
        {"mode", "TRAIN"},          {"step", step},       {"global_step", global_step},
        {"since_step", since_step}, {"last_step", step},  {"what", "weights are NaN"}};
    std::ofstream(folder / "findings.jsonl") << finding.dump() << "\n";
  }
  [[nodiscard]] std::string Report(std::size_t max_bytes = kReportBytes) const {
    auto report = MakeReport(run.path(), kPage, {.max_bytes = max_bytes});
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return std::move(report).value_or("");
  }
  TempRun run;
  Writing writing;

 private:
  std::uint32_t tensors_;
};

// Findings are bytes from outside: their steps need not fit each other (UBSan looks on).
TEST(Report, StepsOfAFindingThatDoNotFitEachOtherHarmNothing) {
  House house;
  house.Write(10);
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const auto& [global_step, step, since] : {std::tuple{kMost, std::int64_t{0}, kMost},
                                                 {std::int64_t{0}, kLeast, kMost},
                                                 {kLeast, kMost, kLeast}}) {
    house.AddFinding(global_step, step, since, "block.2");
    EXPECT_THAT(house.Report(), HasSubstr("luff-index"));
  }
}

TEST(Report, HoldsWhatTheRoutesAnswer) {
  House house;
  house.Write(120);
  house.AddFinding(50, "block.2");
  const std::string report = house.Report();
  EXPECT_TRUE(report.starts_with("<head><script"));
  EXPECT_TRUE(report.ends_with("</script>\n<end>"));
  EXPECT_EQ(report.find("<img"), std::string::npos);  // no byte of the run stands in the page
  EXPECT_EQ(report.find('\x1b'), std::string::npos);
  const ArchiveReader reader(report);

  auto trial = query::Trial::Open(house.run.path());
  ASSERT_TRUE(trial.ok());
  const auto listed = DescribeRun(house.run.path());
  ASSERT_TRUE(listed.ok());
  EXPECT_EQ(reader.index["run"], listed->id);
  OpenRun open(std::move(trial).value());
  for (const std::string route :
       {"", "tensors", "findings", "requests", "steps", "at/50", "at/119", "heat/l2/0/0/0"}) {
    Request request;
    request.method = "GET";
    request.path = "/api/v1/runs/" + listed->id + "/" + route;
    const auto answer =
        FindRoute("GET", "runs/x" + (route.empty() ? "" : "/" + route))->answer(*listed, open, request);
    ASSERT_TRUE(answer.ok()) << route << answer.status().ToString();
    EXPECT_EQ(reader.Answer(route), answer->body) << route;
  }
  EXPECT_EQ(reader.Json("tensors")["tensors"][1]["name"], kHostile);
  EXPECT_EQ(reader.Json("findings")["findings"][0]["what"], "weights are NaN");
  EXPECT_EQ(reader.Json("heat?stat=l2")["rows"], 4);
  for (const char* curve : {"columns?tensor=0&stat=auto", "columns?tensor=2&stat=auto",
                            "columns?tensor=3&stat=l2", "columns?tensor=3&stat=zero_share"})
    EXPECT_TRUE(reader.Answer(curve)) << curve;
  EXPECT_EQ(reader.index["steps"].size(), 120U);
  EXPECT_TRUE(reader.index["left_out"].empty()) << reader.index["left_out"];
  EXPECT_EQ(house.Report(), report);  // nothing in it depends on when it was made
}

TEST(Report, KeepsToItsSize_AndWhatMattersMost) {
  House house(200);
  house.Write(600);
  house.AddFinding(50, "block.2");
  const std::size_t all = house.Report().size();
  for (const std::size_t most : {all, all / 3, all / 10, all / 40}) {
    const std::string report = house.Report(most);
    EXPECT_LE(report.size(), most);
    const ArchiveReader reader(report);
    EXPECT_TRUE(reader.Answer("columns?tensor=0&stat=auto"));
    EXPECT_TRUE(reader.Answer("columns?tensor=2&stat=auto"));  // the finding names it
    EXPECT_EQ(reader.Json("findings")["findings"].size(), 1U);
    if (most < all) {
      EXPECT_FALSE(reader.index["left_out"].empty()) << most;
    }
    for (const auto& step : reader.index["steps"])
      EXPECT_TRUE(reader.Answer("at/" + std::to_string(step.get<std::int64_t>())));
  }
  const auto none = MakeReport(house.run.path(), kPage, {.max_bytes = 500});
  EXPECT_EQ(none.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(none.status().message(), HasSubstr("--max-bytes"));
  EXPECT_EQ(MakeReport(house.run.path(), kPage, {.max_bytes = 3}).status().code(),
            StatusCode::kResourceExhausted);
}

/// A run with samples of a loss with two classes at every second step.
void WriteSamples(const std::string& path, int steps) {
  Writing w(path, 0, 1);
  w.Define(0, "BCEWithLogitsLoss_output_0", 1, format::Role::kLoss);
  w.Define(1, "sample/BCEWithLogitsLoss_input_0", 64, format::Role::kSample);
  w.Define(2, "sample/BCEWithLogitsLoss_input_1", 64, format::Role::kSample);
  for (int step = 0; step < steps; ++step) {
    w.AddScalar(0, 0.5);
    std::vector<float> logits, targets;
    for (int i = 0; step % 2 == 0 && i < 64; ++i) {
      logits.push_back(std::sin(static_cast<float>(64 * step + i)));
      targets.push_back(static_cast<float>(i % 2));
    }
    if (!logits.empty()) {
      w.AddSummary(1, logits);
      w.AddValue(1, logits);
      w.AddSummary(2, targets);
      w.AddValue(2, targets);
    }
    w.Step();
  }
  w.Close();
}

TEST(Report, HoldsSamplesAsFarAsTheyFit_TheNewestFirst) {
  TempRun run;
  WriteSamples(run.path(), 400);
  const auto make = [&](const ReportOptions& options) {
    auto report = MakeReport(run.path(), kPage, options);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return ArchiveReader(std::move(report).value_or(""));
  };
  const ArchiveReader whole = make({});
  EXPECT_EQ(whole.index["samples"]["all"], 200);
  EXPECT_EQ(whole.index["samples"]["steps"].size(), 200U);
  EXPECT_EQ(whole.index["samples"]["modes"][0], "TRAIN");
  EXPECT_TRUE(whole.Answer("samples?step=398"));
  EXPECT_FALSE(whole.Answer("samples?step=399"));  // has none
  EXPECT_EQ(whole.Json("confusion?mode=TRAIN")["rows"], 200 * 64);
  EXPECT_EQ(whole.Answer("confusion?mode=TRAIN&loss=BCEWithLogitsLoss"),
            whole.Answer("confusion?mode=TRAIN"));

  const ArchiveReader small = make({.max_bytes = 120'000});
  const auto& steps = small.index["samples"]["steps"];
  ASSERT_GT(steps.size(), 1U);
  ASSERT_LT(steps.size(), 200U);
  EXPECT_EQ(steps.back(), 398);
  EXPECT_EQ(steps.front(), 0);  // the others at equal distances, the first among them
  for (const auto& step : steps)
    EXPECT_TRUE(small.Answer("samples?step=" + std::to_string(step.get<std::int64_t>())));
  EXPECT_THAT(small.index["left_out"].dump(), HasSubstr("of 200 steps"));

  const ArchiveReader none = make({.samples = false});
  EXPECT_TRUE(none.index["samples"]["steps"].empty());
  EXPECT_FALSE(none.Answer("samples?step=398"));
  EXPECT_FALSE(none.Answer("confusion?mode=TRAIN"));
  EXPECT_THAT(none.index["left_out"].dump(), HasSubstr("--no-samples"));
}

TEST(Report, CoarserHeatMapsHaveTheLevelsThatFit) {
  House house(40);
  house.Write(3000);
  std::size_t finest = 0;
  for (const std::size_t most : {kReportBytes, std::size_t{300'000}}) {
    const ArchiveReader reader(house.Report(most));
    const auto info = reader.Json("heat?stat=l2");
    ASSERT_TRUE(info.is_object()) << most;
    const auto& levels = info["levels"];
    ASSERT_FALSE(levels.empty());
    for (std::size_t level = 0; level < levels.size(); ++level) {
      const std::size_t tiles = (levels[level]["columns"].get<std::size_t>() + 255) / 256;
      for (std::size_t x = 0; x < tiles; ++x)
        EXPECT_EQ(reader.Answer("heat/l2/" + std::to_string(level) + "/" + std::to_string(x) + "/0")->size(),
                  65536U);
      EXPECT_FALSE(reader.Answer("heat/l2/" + std::to_string(level) + "/" + std::to_string(tiles) + "/0"));
    }
    EXPECT_GE(levels[0]["bucket_steps"].get<std::size_t>(), finest);
    finest = levels[0]["bucket_steps"].get<std::size_t>();
  }
}

TEST(Report, ARunWithoutSteps_WithGaps_AndADamagedOne) {
  House house;
  const ArchiveReader empty(house.Report());
  EXPECT_EQ(empty.Json("")["steps"]["count"], 0);
  EXPECT_TRUE(empty.index["steps"].empty());

  House gaps;
  gaps.Write(3);
  format::GapRow row{};
  row.tensor = row.collection = format::kNoId;
  row.first_step = 3;
  row.last_step = 5;
  row.count = 3;
  gaps.writing.batch.gaps.push_back(row);
  gaps.writing.Step();
  EXPECT_EQ(ArchiveReader(gaps.Report()).Json("")["gaps"].size(), 1U);

  House damaged;
  damaged.Write(30);
  damaged.writing.Close();
  query::testing::Forged file(damaged.run.path() + "/w0000/m-000001.lfm");
  file.summary_steps(file.entries()[3])[4] = 0;  // a row that goes backwards
  file.Seal();
  file.Save();
  const ArchiveReader told(damaged.Report());
  EXPECT_THAT(told.index["left_out"].dump(), HasSubstr("curves of 1 tensor, which cannot be read"));
  EXPECT_FALSE(told.Answer("columns?tensor=3&stat=auto"));
  EXPECT_TRUE(told.Answer("columns?tensor=2&stat=auto"));
  EXPECT_EQ(MakeReport(damaged.run.path() + "/nothing", kPage).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace luff::server::report_test

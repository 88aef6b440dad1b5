// Operators of a trace, where workers stand, and lines of long waits in the answer of runs/RUN/profile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "profile/testing/phases_run.h"
#include "server/profile_api.h"
#include "server/run_list.h"

namespace luff::server::time_json_test {
namespace {

using format::EndReason;
using format::Mode;
using format::Phase;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
using profile::testing::Written;

constexpr const char* kTrace =
    R"({"traceEvents":[{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":10,"dur":30},
    {"ph":"X","cat":"cpu_op","name":"aten::linear","pid":1,"tid":1,"ts":0,"dur":50}]})";
constexpr const char* kStall =
    R"({"after_step":9,"seconds":31.5,"looks":1,"same":1,"phase":"other","no_stack":"","threads":[{"thread":7,
    "trains":true,"state":"S","call":"futex","frames":[{"function":"train","file":"/jobs/train.py","line":31,
    "own":true}]}]})";

std::string Listed(std::uint64_t bytes) {
  return fmt::format(
      R"({{"traces":[{{"file":"traces/one.json","first_step":4,"steps":2,"bytes":{},"cost_s":0.1}},
      {{"refused":"another profiler","first_step":6}}]}})",
      bytes);
}

/// A server's run.
struct Served {
  explicit Served(Written* run)
      : path(run->path()),
        listed(DescribeRun(path).value()),
        open(run->Read(EndReason::kSignal)) {}
  Json Ask() {
    const auto answer = ProfileRoute(listed, open, {});
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    return Json::parse(answer.ok() ? answer->body : "{}");
  }
  void Put(const std::string& text) const {
    std::filesystem::create_directories(path + "/w0000/traces");
    std::ofstream(path + "/w0000/traces/one.json") << text;
  }
  const std::string path;
  const ListedRun listed;
  OpenRun open;
};

void Train(Written* run, bool phases = true) {
  for (int i = 0; i < 10; ++i) {
    if (phases)
      run->Step(Mode::kTrain, {{Phase::kForward, 10}, {Phase::kOther, 30}});
    else
      run->Step(Mode::kTrain, {});
  }
}

TEST(TimeJson, HasWhatTheTraceSays_ReadOnce) {
  Written run;
  Train(&run);
  run.Document("traces", Listed(400));
  Served served(&run);
  EXPECT_THAT(served.Ask()["traces"][0]["unread"].get<std::string>(), Not(HasSubstr(served.path)));
  served.Put(std::string(kTrace).substr(0, 90));  // a copy of a run gets its files one after the other
  EXPECT_THAT(served.Ask()["traces"][0]["unread"].get<std::string>(),
              HasSubstr("90 of its 400 bytes are here"));
  served.Put(kTrace);
  const Json traces = served.Ask()["traces"];
  ASSERT_EQ(traces.size(), 2U);
  EXPECT_EQ(traces[0]["file"], "w0000/traces/one.json");
  EXPECT_EQ(traces[0]["summary"]["events"], 2);
  EXPECT_EQ(traces[0]["summary"]["operators"][0]["name"], "aten::mm");
  EXPECT_NEAR(traces[0]["summary"]["operators"][1]["self"].get<double>(), 20e-6, 1e-12);
  EXPECT_EQ(traces[1]["refused"], "another profiler");
  EXPECT_TRUE(traces[1]["file"].is_null());
  served.Put("no trace");
  EXPECT_EQ(served.Ask()["traces"], traces);
}

TEST(TimeJson, ATraceThatIsTooLargeForAServerIsNamed) {
  Written run;
  Train(&run);
  run.Document("traces", Listed(100'000'000));
  Served served(&run);
  served.Put(kTrace);
  EXPECT_THAT(served.Ask()["traces"][0]["unread"].get<std::string>(), HasSubstr("100 MB"));
  served.open.traces().AllowBytes(profile::kMaxTraceBytes);  // as a report does
  EXPECT_EQ(served.Ask()["traces"][0]["summary"]["events"], 2);
}

TEST(TimeJson, HasWhereWorkersStandAndTheLinesOfLongWaits_AlsoWithoutPhases) {
  for (const bool phases : {true, false}) {
    Written run;
    Train(&run, phases);
    run.Document("stall", kStall);
    std::string lines;
    for (int i = 0; i < 150; ++i)
      lines += fmt::format(R"({}{{"phase":"other","file":"/a.py","line":{},"function":"f","count":1}})",
                           i == 0 ? "" : ",", i);
    run.Document("lines", R"({"lines":[)" + lines + "]}");
    Served served(&run);
    const Json told = served.Ask();
    EXPECT_EQ(told["steps"], phases ? 10 : 0);
    ASSERT_EQ(told["stalls"].size(), 1U);
    EXPECT_EQ(
        told["stalls"][0]["text"],
        "the training stands still for at least 31.5 s after global step 9: in train.py:31 train, which "
        "waits for a lock or another thread (futex)");
    EXPECT_EQ(told["stalls"][0]["threads"][0]["frames"][0]["own"], true);
    EXPECT_EQ(told["stalls_left_out"], 0);
    EXPECT_EQ(told["lines"].size(), 100U);
    EXPECT_TRUE(told["traces"].empty());
  }
}

TEST(TimeJson, OfManyWorkersThatStandTheFirstAreTold) {
  Written run;
  for (std::uint32_t worker = 0; worker < 20; ++worker) {
    if (worker > 0) run.Worker(worker);
    Train(&run);
    run.Document("stall", kStall);
  }
  Served served(&run);
  const Json told = served.Ask();
  EXPECT_EQ(told["stalls"].size(), 16U);
  EXPECT_EQ(told["stalls_left_out"], 4);
  EXPECT_THAT(told["stalls"][0]["text"].get<std::string>(), HasSubstr("rank"));
}

}  // namespace
}  // namespace luff::server::time_json_test

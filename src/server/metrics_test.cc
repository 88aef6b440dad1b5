#include <gtest/gtest.h>

#include "server/metrics.h"

namespace luff::server::metrics_test {
namespace {

constexpr std::int64_t kNow = 2'000'000'000'000'000'000;

std::string Card(const std::string& name, const std::string& outcome, std::int64_t begun_s) {
  return R"({"name":")" + name + R"(","outcome":")" + outcome + R"(","begun_unix_ns":)" +
         std::to_string(begun_s * 1'000'000'000) +
         R"(,"took_s":10,"steps":{"TRAIN":41},"framework":"torch","versions":{"torch":"2.13"},"host":"h",)"
         R"("findings":{"count":2,"rules":["NonFinite"]},"problems":[],)"
         R"("scalars":[{"name":"loss","mode":"TRAIN","last":"NaN"},{"name":"acc","mode":"EVAL","last":0.5}]})";
}

TEST(Metrics, TellARunByItsCard) {
  const std::string text = Metrics({{"ab", "/r", "ab", Card("mine", "running", 1)}}, 3, kNow);
  for (const char* line :
       {"luff_run_info{run=\"mine\",run_id=\"ab\",framework=\"torch\",version=\"2.13\",host=\"h\"} 1\n",
        "luff_run_state{run=\"mine\",state=\"running\"} 1\n",
        "luff_run_state{run=\"mine\",state=\"failed\"} 0\n", "luff_train_steps_total{run=\"mine\"} 41\n",
        "luff_loss{run=\"mine\",name=\"loss\",mode=\"TRAIN\"} NaN\n",
        "luff_loss_nonfinite{run=\"mine\",name=\"loss\",mode=\"TRAIN\"} 1\n",
        "luff_loss{run=\"mine\",name=\"acc\",mode=\"EVAL\"} 0.5\n", "luff_findings{run=\"mine\"} 2\n",
        "luff_finding_open{run=\"mine\",rule=\"NonFinite\"} 1\n", "luff_serve_open_runs 3\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

TEST(Metrics, LeaveOutWhatEndedLongAgoAndCountWhatIsTooMuch) {
  std::vector<ListedRun> runs = {{"a", "/a", "a", Card("old", "completed", 1)},
                                 {"b", "/b", "b", Card("fresh", "failed", kNow / 1'000'000'000 - 60)}};
  std::string text = Metrics(runs, 0, kNow);
  EXPECT_EQ(text.find("\"old\""), std::string::npos);
  EXPECT_NE(text.find("\"fresh\""), std::string::npos);
  for (std::size_t i = 0; i < kMaxRuns + 5; ++i)
    runs.push_back({"c", "/c", "c", Card("r" + std::to_string(i), "running", 1)});
  text = Metrics(runs, 0, kNow);
  EXPECT_NE(text.find("luff_exported_runs_dropped 6\n"), std::string::npos);
}

TEST(Metrics, NamesCannotBreakTheFormat) {
  const std::string text = Metrics({{"a", "/a", "a", Card(R"(x\"} 1\nluff_evil 1\\)", "running", 1)},
                                    {"b", "/b", "b", "no JSON"},
                                    {"c", "/c", "c", "[]"}},
                                   0, kNow);
  EXPECT_EQ(text.find("\nluff_evil"), std::string::npos);
  EXPECT_NE(text.find(R"(run="x\"} 1\nluff_evil 1\\")"), std::string::npos) << text;
  const std::string longest = Metrics({{"a", "/a", "a", Card(std::string(500, 'n'), "running", 1)}}, 0, kNow);
  EXPECT_EQ(longest.find(std::string(129, 'n')), std::string::npos);
}

}  // namespace
}  // namespace luff::server::metrics_test

// Metrics of real runs.
#include "server/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "query/testing.h"

namespace luff::server::metrics_test {
namespace {

using query::testing::TempRun;
using query::testing::Writing;

constexpr std::int64_t kNow = 2'000'000'000'000'000'000;

std::string Card(const std::string& outcome, std::int64_t begun_s) {
  return R"({"outcome":")" + outcome + R"(","begun_unix_ns":)" + std::to_string(begun_s * 1'000'000'000) +
         R"(,"took_s":10,"framework":"torch","versions":{"torch":"2.13"},"host":"h","problems":[],)"
         R"("scalars":[{"name":"loss","mode":"TRAIN","last":"NaN"}]})";
}

std::string Text(Metrics& metrics, const std::vector<ListedRun>& runs) {
  Exposition exposition;
  metrics.Put(runs, kNow, &exposition);
  return exposition.Prometheus();
}

bool Has(const std::string& text, std::string_view line) { return text.find(line) != std::string::npos; }

TEST(Metrics, FollowARun) {
  TempRun run;
  Writing writing(run.path(), 0, 1);
  writing.Define(0, "loss", 1, format::Role::kLoss);
  writing.Define(1, "fc.weight", 2, format::Role::kWeight);
  writing.Define(2, "gradient/fc.weight", 2, format::Role::kGradient);
  const auto step = [&](float gradient) {
    const float values[] = {3, gradient};
    writing.AddSummary(1, values);
    writing.AddSummary(2, values);
    writing.Step();
  };
  writing.batch.documents.emplace_back("cost", R"({"steps":1,"spent_ns":1,"time_ns":4})");
  step(4);
  Metrics metrics;
  metrics.Configure({"https://luff.example/", Regex::Compile("^fc").value()});
  const std::vector<ListedRun> runs = {{"ab", run.path(), "mine", Card("running", 1)}};
  std::string text = Text(metrics, runs);
  for (const char* line :
       {"luff_run_info{run=\"mine\",run_id=\"ab\",framework=\"torch\",version=\"2.13\",host=\"h\","
        "page=\"https://luff.example/#/run/ab\"} 1\n",
        "luff_run_state{run=\"mine\",state=\"running\"} 1\n", "luff_train_steps_total{run=\"mine\"} 1\n",
        "luff_step_duration_seconds_count{run=\"mine\"} 1\n",
        "luff_gradient_norm{run=\"mine\",group=\"all\"} 5\n",
        "luff_nonfinite_tensors{run=\"mine\",role=\"gradient\"} 0\n",
        "luff_capture_ratio{run=\"mine\"} 0.25\n", "luff_tensor_l2{run=\"mine\",tensor=\"fc.weight\"} 5\n",
        "luff_loss_nonfinite{run=\"mine\",name=\"loss\",mode=\"TRAIN\"} 1\n"}) {
    EXPECT_TRUE(Has(text, line)) << line << text;
  }
  step(NAN);
  text = Text(metrics, runs);
  for (const char* line :
       {"luff_train_steps_total{run=\"mine\"} 2\n", "luff_gradient_norm{run=\"mine\",group=\"all\"} NaN\n",
        "luff_nonfinite_tensors{run=\"mine\",role=\"weight\"} 1\n",
        "luff_tensor_nonfinite{run=\"mine\",tensor=\"fc.weight\"} 1\n"}) {
    EXPECT_TRUE(Has(text, line)) << line << text;
  }
}

TEST(Metrics, LeaveOutWhatEndedLongAgoAndCountWhatCannotBeRead) {
  TempRun run;
  Writing writing(run.path(), 0, 1);
  Metrics metrics;
  const std::string text =
      Text(metrics, {{"a", run.path(), "old", Card("completed", 1)},
                     {"b", run.path(), "fresh", Card("failed", kNow / 1'000'000'000 - 60)},
                     {"c", "/nowhere", "gone", Card("running", 1)},
                     {"d", "/nowhere", "text", "no JSON"}});
  EXPECT_FALSE(Has(text, "\"old\"")) << text;
  EXPECT_TRUE(Has(text, "run=\"fresh\""));
  EXPECT_FALSE(Has(text, "\"gone\""));
  EXPECT_TRUE(Has(text, "luff_exported_runs_dropped 1\n"));
}

TEST(Metrics, TwoRunsOfOneNameHaveTwoLabels) {
  TempRun run;
  Writing writing(run.path(), 0, 1);
  Metrics metrics;
  const std::string text = Text(metrics, {{"0123456789abcdef01", run.path(), "same", Card("running", 1)},
                                          {"fedcba987654321001", run.path(), "same", Card("running", 1)}});
  EXPECT_TRUE(Has(text, "luff_run_info{run=\"same~0123456789abcdef\"")) << text;
  EXPECT_TRUE(Has(text, "luff_run_info{run=\"same~fedcba9876543210\"")) << text;
}

}  // namespace
}  // namespace luff::server::metrics_test

#include "server/exposition.h"

#include <gtest/gtest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace luff::server::exposition_test {
namespace {

bool Has(const std::string& text, std::string_view line) { return text.find(line) != std::string::npos; }

TEST(Exposition, WritesBothTexts) {
  Exposition exposition;
  exposition.BeginRun("mine");
  exposition.Put(Metric::kTrainSteps, {}, 41);
  exposition.Put(Metric::kLoss, {{"name", "loss"}, {"mode", "TRAIN"}}, std::nan(""));
  StepHistogram steps;
  steps.Add(0.001);  // a bound belongs to its bucket
  steps.Add(0.0011);
  steps.Add(500);
  exposition.Put(Metric::kStepDuration, {}, steps);
  exposition.EndRun();
  const std::string text = exposition.Prometheus();
  for (const char* line :
       {"# TYPE luff_train_steps_total counter\nluff_train_steps_total{run=\"mine\"} 41\n",
        "luff_loss{run=\"mine\",name=\"loss\",mode=\"TRAIN\"} NaN\n",
        "luff_step_duration_seconds_bucket{run=\"mine\",le=\"0.001\"} 1\n",
        "luff_step_duration_seconds_bucket{run=\"mine\",le=\"1.0\"} 2\n",
        "luff_step_duration_seconds_bucket{run=\"mine\",le=\"+Inf\"} 3\n",
        "luff_step_duration_seconds_count{run=\"mine\"} 3\n", "luff_run_series_dropped{run=\"mine\"} 0\n"}) {
    EXPECT_TRUE(Has(text, line)) << line << text;
  }
  const std::string open = exposition.OpenMetrics();
  EXPECT_TRUE(Has(open, "# TYPE luff_train_steps counter\nluff_train_steps_total{run=\"mine\"} 41\n"))
      << open;
  EXPECT_TRUE(open.ends_with("\n# EOF\n"));
}

TEST(Exposition, TellsWhatIsLeftOut) {
  Exposition exposition;
  for (const char* run : {"a", "b"}) {
    exposition.BeginRun(run);
    for (int i = 0; i < 100; ++i)
      exposition.Put(Metric::kLoss, {{"name", std::to_string(i)}, {"mode", "TRAIN"}}, i);
    exposition.Put(Metric::kStepDuration, {}, StepHistogram{});  // whole, or not at all
    exposition.Put(Metric::kTensorL2, {{"tensor", "asked"}}, 1);
    exposition.EndRun();
  }
  const std::string text = exposition.Prometheus();
  for (const std::string run : {"a", "b"}) {
    std::size_t series = 0;
    for (std::size_t at = 0; (at = text.find("{run=\"" + run, at)) != std::string::npos; ++at) ++series;
    EXPECT_EQ(series, Exposition::kMaxRunSeries + 1);  // and the one that was asked for
    EXPECT_TRUE(Has(text, "luff_run_series_dropped{run=\"" + run + "\"} 35\n")) << text;
  }
}

TEST(Exposition, NamesCannotBreakTheFormat) {
  Exposition exposition;
  exposition.BeginRun("x\"} 1\nluff_evil 1\\\x01");
  exposition.Put(Metric::kLoss, {{"name", std::string(127, 'n') + "\u20AC"}, {"mode", "TRAIN"}}, HUGE_VAL);
  exposition.EndRun();
  const std::string text = exposition.Prometheus();
  EXPECT_FALSE(Has(text, "\nluff_evil")) << text;
  EXPECT_TRUE(Has(text, R"(run="x\"} 1\\x0aluff_evil 1\\\\x01",name=")" + std::string(127, 'n') +
                            "\",mode=\"TRAIN\"} +Inf\n"))
      << text;  // cut at a character
}

TEST(Exposition, IsJsonForOpenTelemetry) {
  Exposition exposition;
  exposition.BeginRun("mine");
  exposition.Put(Metric::kLoss, {{"name", "loss"}, {"mode", "TRAIN"}}, std::nan(""));
  StepHistogram steps;
  steps.Add(2);
  exposition.Put(Metric::kStepDuration, {}, steps);
  exposition.EndRun();
  const auto json = TryParseJson(exposition.Json(7));
  EXPECT_EQ(json["unix_ns"], 7);
  EXPECT_EQ(json["metrics"][0]["name"], "luff.step.duration");
  EXPECT_EQ(json["metrics"][0]["unit"], "s");
  EXPECT_EQ(json["metrics"][0]["points"][0]["counts"][7], 1);
  EXPECT_EQ(json["metrics"][1]["points"][0]["value"], "NaN");
  EXPECT_EQ(json["metrics"][1]["points"][0]["labels"]["run"], "mine");
}

TEST(Exposition, TheClientChoosesTheFormat) {
  EXPECT_TRUE(PrefersOpenMetrics("application/openmetrics-text;version=1.0.0,text/plain;q=0.5,*/*;q=0.1"));
  EXPECT_FALSE(PrefersOpenMetrics("text/plain"));
  EXPECT_FALSE(PrefersOpenMetrics(""));
}

}  // namespace
}  // namespace luff::server::exposition_test

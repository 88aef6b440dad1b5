#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::running_statistics_test {
namespace {

using format::EventKind;
using testing::FakeTrial;

constexpr std::uint64_t kTraining = 1U << 8, kTold = 1U << 12;

std::vector<Finding> With(const std::string& layer, bool loaded = false) {
  FakeTrial trial;
  trial.SetDocument(
      "model",
      R"({"models": [{"name": "Net", "modules": [{"path": "1", "name": "norm", "type": )" + layer + "}]}]}");
  for (int step = 0; step < 300; ++step) {
    trial.Step().Event(EventKind::kForward, 7, kTraining | kTold);
    if (loaded && step == 0) trial.EventJson(R"({"kind": "load_state_dict", "model": "Net", "matched": 9})");
    if (step % 100 == 99) trial.Step(query::Mode::kEval).Event(EventKind::kForward, 7, kTold);
  }
  return testing::FindingsOf(trial, "RunningStatistics", ParameterSet::kLuff);
}

TEST(RunningStatistics, AMomentumOfAnotherLibrary_WarnsAtTheSecondEvaluation) {
  const auto findings = With(R"("BatchNorm2d", "training": true, "settings": {"momentum": 1e-4})");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].what.find("98 %"), std::string::npos) << findings[0].what;
  EXPECT_NE(findings[0].remedy.find("momentum"), std::string::npos);
  EXPECT_EQ(With(R"("BatchNorm1d", "training": true, "settings": {"momentum": 0})").size(), 1U);
}

TEST(RunningStatistics, Ordinary_Loaded_Untracked_AndFrozenLayers_AreSilent) {
  EXPECT_TRUE(With(R"("BatchNorm1d", "training": true, "settings": {"momentum": 0.01})").empty());
  EXPECT_TRUE(With(R"("BatchNorm1d", "training": true, "settings": {"momentum": null})").empty());
  EXPECT_TRUE(With(R"("BatchNorm1d", "training": true, "settings": {"momentum": 1e-4})", true).empty());
  EXPECT_TRUE(With(R"("BatchNorm1d", "training": false, "settings": {"momentum": 1e-4})").empty());
  EXPECT_TRUE(With(R"("BatchNormalization", "training": true, "settings": {"momentum": 1e-4})").empty());
  EXPECT_TRUE(
      With(R"("BatchNorm1d", "training": true, "settings": {"momentum": 1e-4, "track_running_stats": false})")
          .empty());
}

// An average of the weights of Net, which is evaluated after every 20 updates.
std::vector<Finding> Average(int layers, const std::string& optimizer = "null", int moves_at = 400,
                             int updates = 100, const std::string& trained = "\"SGD\"", bool kept = false) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [
    {"name": "Net", "parameters": [{"path": "w", "name": "Net.w", "optimizer": )" +
                                 trained + R"(}]},
    {"name": "Net_1", "parameters": [{"path": "w", "name": "Net_1.w", "optimizer": )" +
                                 optimizer + R"(}]}],
    "optimizers": [{"number": 0, "name": "SGD"}]})");
  for (int step = 0; step < updates; ++step) {
    trial.Step().Event(EventKind::kOptimizerStep, 0).Event(EventKind::kForward, 7, kTraining | kTold);
    const int told = step >= moves_at ? 0 : layers;
    if (step % 20 == 0)
      trial.EventJson(R"({"kind": "initial_statistics", "model": "Net_1", "layers": )" +
                      std::to_string(told) + R"(, "kept": )" + (kept ? "true}" : "false}"));
  }
  return testing::FindingsOf(trial, "RunningStatistics", ParameterSet::kLuff);
}

TEST(RunningStatistics, AnAverageWithoutBuffers_IsToldOnce_AndHealsWhenTheyCome) {
  const auto findings = Average(2);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "left_behind");
  EXPECT_EQ(findings[0].step, 31);
  EXPECT_FALSE(findings[0].healed);
  EXPECT_NE(findings[0].remedy.find("buffers"), std::string::npos);
  EXPECT_TRUE(Average(2, "null", 60).at(0).healed);
}

TEST(RunningStatistics, StatisticsThatStandStillBesideAnAverage_AreTold) {
  const auto findings = Average(2, "null", 400, 100, "\"SGD\"", true);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "left_behind");
  EXPECT_NE(findings[0].what.find("stood still"), std::string::npos) << findings[0].what;
  EXPECT_TRUE(Average(2, "\"SGD\"", 400, 100, "\"SGD\"", true).empty());
}

TEST(RunningStatistics, ModelsThatAreTrained_ThatMove_AndNewOnes_AreSilent) {
  EXPECT_TRUE(Average(0).empty());              // buffers come along
  EXPECT_TRUE(Average(2, "\"SGD\"").empty());   // trained with frozen statistics: ModeMismatch's
  EXPECT_TRUE(Average(2, "null", 20).empty());  // the first evaluation only
  EXPECT_TRUE(Average(2, "null", 400, 30).empty());
  EXPECT_TRUE(Average(2, "null", 400, 100, "null").empty());  // weights that are changed by hand, all of them
}

std::vector<Finding> WithRows(const std::string& type, const std::string& momentum, std::int64_t rows,
                              bool points = false) {
  FakeTrial trial;
  trial.SetDocument(
      "model", R"({"models": [{"name": "Net", "modules": [{"path": "1", "name": "norm", "type": ")" + type +
                   R"(", "training": true, "settings": {"momentum": )" + momentum + "}}]}]}");
  for (int step = 0; step < 300; ++step) {
    trial.Step().Event(EventKind::kForward, 7, kTraining | kTold);
    if (step < 16)
      trial.Sample("sample/Net_input_0",
                   points ? std::vector<std::int64_t>{rows, 1, 1} : std::vector<std::int64_t>{rows, 1},
                   std::vector<double>(static_cast<std::size_t>(rows)));
    if (step % 100 == 99) trial.Step(query::Mode::kEval).Event(EventKind::kForward, 7, kTold);
  }
  return testing::FindingsOf(trial, "RunningStatistics", ParameterSet::kLuff);
}

TEST(RunningStatistics, AMomentumNextToOneOfSmallBatches_IsNamed) {
  const auto findings = WithRows("BatchNorm1d", "0.99", 8);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "fast");
  EXPECT_NE(findings[0].remedy.find("to 0.01"), std::string::npos) << findings[0].remedy;
  const auto images = WithRows("BatchNorm2d", "0.9", 16);
  ASSERT_EQ(images.size(), 1U);
  EXPECT_EQ(images[0].remedy.find("or to 0.1"), std::string::npos) << images[0].remedy;
  EXPECT_TRUE(WithRows("BatchNorm1d", "0.9", 16, true).empty());  // clouds of points
  EXPECT_TRUE(WithRows("BatchNorm2d", "0.9", 32).empty());        // each sample has many places
  EXPECT_TRUE(WithRows("BatchNorm1d", "0.99", 64).empty());
  EXPECT_TRUE(WithRows("BatchNorm1d", "0.1", 2).empty());
  EXPECT_TRUE(WithRows("BatchNorm", "0.99", 8).empty());  // Flax
}

// A model whose passes tell at steps 0, 1, 2, 4, … of layers that they use at two places.
std::vector<Finding> TwoPlaces(int steps, const std::string& layers, int until = 1 << 20,
                               bool evaluates = true) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step) {
    trial.Step().Loss(1).Event(EventKind::kForward, 7, kTraining | kTold);
    if ((step & (step - 1)) == 0)
      trial.EventJson(R"({"kind": "shared_norms", "layers": [)" + (step < until ? layers : std::string()) +
                      "]}");
    if (step % 20 == 19)
      trial.Step(query::Mode::kEval)
          .Loss(1)
          .Event(EventKind::kForward, 7, (evaluates ? 0 : kTraining) | kTold);
  }
  return testing::FindingsOf(trial, "RunningStatistics", ParameterSet::kLuff);
}

TEST(RunningStatistics, OneLayerForTwoPlaces_IsTold_WhereEvaluationsUseIt) {
  const std::string layer = R"({"layer": "Net_body.1", "share": 0.9, "apart": 3.5})";
  const auto findings = TwoPlaces(90, layer);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "shared");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].since_step, 0);
  EXPECT_NE(findings[0].what.find("Net_body.1"), std::string::npos);
  EXPECT_NE(findings[0].remedy.find("deepcopy"), std::string::npos);
  EXPECT_TRUE(TwoPlaces(90, layer, 33).at(0).healed);
  EXPECT_TRUE(TwoPlaces(30, layer).empty());      // the first updates
  EXPECT_TRUE(TwoPlaces(90, layer, 17).empty());  // no longer
  EXPECT_TRUE(TwoPlaces(90, "").empty());
  EXPECT_TRUE(TwoPlaces(90, layer, 1 << 20, false).empty());  // evaluations use the batch's own statistics
  for (const char* broken : {"7", R"({"layer": 3})", R"({"share": 1})", "[]"})
    EXPECT_TRUE(TwoPlaces(90, broken).empty()) << broken;
}

}  // namespace
}  // namespace luff::rules::running_statistics_test

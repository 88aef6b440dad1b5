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

}  // namespace
}  // namespace luff::rules::running_statistics_test

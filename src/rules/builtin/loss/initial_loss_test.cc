#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules::initial_loss_test {
namespace {

using testing::Batch;
using testing::FakeTrial;

// A fresh model whose scores have this standard deviation, with updates from the second step on.
std::vector<Finding> FindingsOf(double deviation, int classes = 10, const char* event = nullptr) {
  FakeTrial trial;
  std::mt19937 random(5);
  std::normal_distribution<double> normal(0, deviation);
  for (int step = 0; step < 6; ++step) {
    Batch batch;
    for (int i = 0; i < 32; ++i) {
      batch.ids.push_back(i % classes);
      for (int c = 0; c < classes; ++c) batch.scores.push_back(normal(random));
    }
    testing::TellClasses(&trial, batch, static_cast<std::size_t>(classes));
    if (step == 0 && event != nullptr) trial.EventJson(event);
  }
  return testing::FindingsOf(trial, "InitialLoss", ParameterSet::kLuff);
}

TEST(InitialLoss, AnOutputLayerInitialisedFarTooLarge_IsToldAtOnce) {
  const auto findings = FindingsOf(60);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 2);
  EXPECT_EQ(findings[0].since_step, 0);
  EXPECT_GT(findings[0].evidence[2].value, 10);
}

TEST(InitialLoss, OrdinaryAndModeratelyHighLosses_AreSilent) {
  EXPECT_TRUE(FindingsOf(0.1).empty());
  EXPECT_TRUE(FindingsOf(6).empty());  // a trained model on new data
  EXPECT_TRUE(FindingsOf(0.1, 1000).empty());
}

TEST(InitialLoss, LoadedWeights_AreSilent) {
  EXPECT_TRUE(FindingsOf(60, 10, R"({"kind": "load_state_dict", "matched": 6})").empty());
  EXPECT_EQ(FindingsOf(60, 10, R"({"kind": "load_state_dict", "matched": 0})").size(), 1U);
}

TEST(InitialLoss, LaterLosses_AreNotThoseOfTheInitialisation) {
  FakeTrial trial;
  testing::TellClasses(&trial, {{}, std::vector<double>(32, 0), std::vector<double>(16, 0)}, 2);
  for (int step = 0; step < 4; ++step) {
    Batch batch{{}, std::vector<double>(32, 0), std::vector<double>(16, 0)};
    for (std::size_t i = 0; i < 16; ++i) batch.scores[2 * i + 1] = 500;
    testing::TellClasses(&trial, batch, 2);
  }
  EXPECT_TRUE(testing::FindingsOf(trial, "InitialLoss", ParameterSet::kLuff).empty());
}

}  // namespace
}  // namespace luff::rules::initial_loss_test

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

/// DataLeak, windows.
namespace luff::rules::data_leak_windows_test {
namespace {

using testing::FakeTrial;
using Series = std::function<double(int)>;
constexpr int kBatch = 32;

struct Story {
  std::vector<int> train, eval;  // where windows begin
  int length = 24, features = 1;
  bool channels_first = false;
  bool ids = false;
  bool labelled = true;
  int passes = 3;
};

double Noise(int at) {
  std::mt19937 random(static_cast<unsigned>(at) * 7919 + 1);
  return std::normal_distribution<double>(0, 1)(random);
}
double Letter(int at) {
  std::mt19937 random(static_cast<unsigned>(at) * 104729 + 3);
  return static_cast<double>(random() % 40);
}
double Period(int at) { return std::sin(6.283185307179586 * (at % 12) / 12); }

std::vector<Finding> Told(const Story& story, const Series& series) {
  FakeTrial trial;
  std::mt19937 random(5);
  const auto step = [&](const std::vector<int>& begins, bool train) {
    std::vector<double> values;
    for (const int begin : begins) {
      const int outer = story.channels_first ? story.features : story.length;
      const int inner = story.channels_first ? story.length : story.features;
      for (int i = 0; i < outer; ++i)
        for (int j = 0; j < inner; ++j)
          values.push_back(series(begin + (story.channels_first ? j : i)) *
                           (1 + (story.channels_first ? i : j)));
    }
    const auto n = static_cast<std::int64_t>(begins.size());
    std::vector<std::int64_t> shape = {n, story.length};
    if (story.features > 1 && story.channels_first) shape = {n, story.features, story.length};
    if (story.features > 1 && !story.channels_first) shape = {n, story.length, story.features};
    trial.Step(train ? query::Mode::kTrain : query::Mode::kEval)
        .Sample("sample/Net_input_0", shape, values, story.ids ? DType::kInt64 : DType::kFloat32);
    if (train || story.labelled) trial.Loss(1);
  };
  std::vector<int> order = story.train;
  for (int pass = 0; pass < story.passes; ++pass) {
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t at = 0; at < order.size(); at += kBatch)
      if (at / kBatch % 3 == 0)  // the others are not captured
        step({order.begin() + static_cast<std::ptrdiff_t>(at),
              order.begin() + static_cast<std::ptrdiff_t>(std::min(at + kBatch, order.size()))},
             true);
    for (std::size_t at = 0; at < story.eval.size(); at += kBatch)
      step({story.eval.begin() + static_cast<std::ptrdiff_t>(at),
            story.eval.begin() + static_cast<std::ptrdiff_t>(std::min(at + kBatch, story.eval.size()))},
           false);
  }
  return testing::FindingsOf(trial, "DataLeak", ParameterSet::kLuff);
}

std::vector<int> Range(int from, int to, int by = 1) {
  std::vector<int> all;
  for (int i = from; i < to; i += by) all.push_back(i);
  return all;
}

// The windows of 0 to 900, divided at random: a fifth for evaluations.
Story AtRandom(int by = 1) {
  std::vector<int> all = Range(0, 900, by);
  std::mt19937 random(2);
  std::shuffle(all.begin(), all.end(), random);
  const auto fifth = static_cast<std::ptrdiff_t>(all.size() / 5);
  return {.train = {all.begin() + fifth, all.end()}, .eval = {all.begin(), all.begin() + fifth}};
}

TEST(DataLeakWindows, WindowsDividedAtRandom_AreNamed) {
  const auto findings = Told(AtRandom(), Noise);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "windows");
  EXPECT_NE(findings[0].remedy.find("split the series by time"), std::string::npos);
  Story story = AtRandom(4);
  story.passes = 8;
  EXPECT_EQ(Told(story, Noise).size(), 1U);
  story = AtRandom();
  story.features = 3;
  EXPECT_EQ(Told(story, Noise).size(), 1U);
  story.channels_first = true;
  EXPECT_EQ(Told(story, Noise).size(), 1U);
  story = AtRandom();
  story.length = 40;
  story.ids = true;
  EXPECT_EQ(Told(story, Letter).size(), 1U);
}

TEST(DataLeakWindows, WindowsOfALaterTime_AndOfABlockBetween_AreSilent) {
  EXPECT_TRUE(Told({.train = Range(0, 700), .eval = Range(700, 900)}, Noise).empty());
  // So many blocks one after the other that nearly all of their windows touch the training before them.
  EXPECT_TRUE(Told({.train = Range(0, 700), .eval = Range(700, 716)}, Noise).empty());
  std::vector<int> around = Range(0, 400);
  const std::vector<int> behind = Range(600, 900);
  around.insert(around.end(), behind.begin(), behind.end());
  EXPECT_TRUE(Told({.train = around, .eval = Range(400, 600)}, Noise).empty());
}

TEST(DataLeakWindows, WindowsThatDoNotOverlap_OrRecur_AndTablesAreSilent) {
  EXPECT_TRUE(Told(AtRandom(24), Noise).empty());
  EXPECT_TRUE(Told(AtRandom(20), Noise).empty());  // by less than half
  EXPECT_TRUE(Told(AtRandom(), Period).empty());
  EXPECT_TRUE(Told(AtRandom(), [](int at) { return at % 50 == 0 ? 1.0 : 0.0; }).empty());
  EXPECT_TRUE(Told(AtRandom(1000), Noise).empty());
}

TEST(DataLeakWindows, EvaluationsOfTheTraining_AndPassesWithoutTargets_AreSilent) {
  Story story = AtRandom();
  story.labelled = false;
  EXPECT_TRUE(Told(story, Noise).empty());
  story = {.train = Range(0, 700), .eval = Range(0, 700)};
  for (const Finding& finding : Told(story, Noise)) EXPECT_NE(finding.cause, "windows");
}

}  // namespace
}  // namespace luff::rules::data_leak_windows_test

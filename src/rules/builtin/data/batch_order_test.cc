#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules::batch_order_test {
namespace {

using testing::Batch;
using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "BatchOrder", ParameterSet::kLuff);
}

// Batches of 16 labels, given by `label_of(step, i)`.
FakeTrial Labels(const std::function<int(int, int)>& label_of, int steps = 40) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step) {
    Batch batch{{}, std::vector<double>(160, 0.1), {}};
    for (int i = 0; i < 16; ++i) batch.ids.push_back(label_of(step, i));
    testing::TellClasses(&trial, batch, 10);
  }
  return trial;
}

TEST(BatchOrder, ClassAfterClass_IsTold) {
  const auto findings = FindingsOf(Labels([](int step, int i) { return (step * 16 + i) / 64 % 10; }));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "sorted");
  EXPECT_EQ(findings[0].step, 11);
}

TEST(BatchOrder, ClassesAsSmallAsABatch_AreTold) {
  EXPECT_EQ(FindingsOf(Labels([](int step, int) { return step % 6; })).size(), 1U);
}

TEST(BatchOrder, ShuffledBlocksOfTasksAndAlternatingBatches_AreSilent) {
  std::mt19937 random(1);
  EXPECT_TRUE(FindingsOf(Labels([&](int, int) { return static_cast<int>(random() % 10); })).empty());
  // two tasks in blocks
  EXPECT_TRUE(FindingsOf(Labels([&](int step, int) {
                return static_cast<int>(random() % (step / 10 % 2 == 0 ? 2 : 10));
              })).empty());
  // one class per batch, in turns: real, generated, real ...
  EXPECT_TRUE(FindingsOf(Labels([](int step, int) { return step % 2; })).empty());
  // rare positives
  EXPECT_TRUE(FindingsOf(Labels([&](int, int) { return random() % 30 == 0 ? 1 : 0; })).empty());
  // only one class so far
  EXPECT_TRUE(FindingsOf(Labels([](int, int) { return 3; })).empty());
}

FakeTrial Numbers(const std::function<double(int, int)>& number_of, int steps = 160) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step) {
    std::vector<double> outputs(16, 0.5);
    std::vector<double> targets;
    for (int i = 0; i < 16; ++i) targets.push_back(number_of(step, i));
    testing::TellPairs(&trial, "MSELoss", testing::SquaredError(outputs, targets), outputs, targets);
  }
  return trial;
}

TEST(BatchOrder, NumbersFromLowToHigh_PassAfterPass_AreTold) {
  const auto sorted = [](int step, int i) { return 1e6 * (step % 30 * 16 + i); };
  EXPECT_EQ(FindingsOf(Numbers(sorted)).size(), 1U);
}

TEST(BatchOrder, ShuffledNumbersAndNumbersThatDrift_AreSilent) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  EXPECT_TRUE(FindingsOf(Numbers([&](int, int) { return normal(random); })).empty());
  EXPECT_TRUE(FindingsOf(Numbers([&](int step, int) { return 10 * step + normal(random); })).empty());
}

// A value network on episodes as they come, its targets made of its own answers: rises and falls pass for
// passes over a sorted table, but no number comes again, unless at once, as in the updates of one rollout.
TEST(BatchOrder, TargetsThatNeverComeAgain_AreNoTable) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(0, 0.1);
  const auto wave = [](int step) { return std::abs(step % 30 - 15); };
  EXPECT_TRUE(FindingsOf(Numbers([&](int step, int) { return wave(step) + normal(random); })).empty());
  std::vector<double> rollout(16);
  EXPECT_TRUE(FindingsOf(Numbers([&](int step, int i) {
                if (step % 3 == 0) rollout[i] = wave(step) + normal(random);
                return rollout[i];  // three updates each
              })).empty());
  EXPECT_TRUE(FindingsOf(Numbers([&](int step, int i) {
                return i == 0 ? 0.01 : wave(step) + normal(random);  // the last one of an episode
              })).empty());
  EXPECT_EQ(FindingsOf(Numbers([](int step, int) { return step % 30; })).size(), 1U);  // few numbers
  // a table whose passes end in the middle of a batch
  EXPECT_EQ(FindingsOf(Numbers([](int step, int i) { return 1e3 * ((16 * step + i) % 472); })).size(), 1U);
}

// Batches of 16 windows of 6 numbers; `number_of(row, place)`, 480 rows a pass, in the order of `row_of`.
FakeTrial Windows(const std::function<double(int, int)>& number_of,
                  const std::function<int(int, int)>& row_of, int steps = 160) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step) {
    std::vector<double> targets;
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 6; ++j) targets.push_back(number_of(row_of(step, i), j));
    }
    const std::vector<double> outputs(targets.size(), 0.5);
    trial.Step()
        .Loss(testing::SquaredError(outputs, targets), "MSELoss_output_0")
        .Sample("sample/MSELoss_input_0", {16, 6}, outputs)
        .Sample("sample/MSELoss_input_1", {16, 6}, targets);
  }
  return trial;
}

int InOrder(int step, int i) { return step % 30 * 16 + i; }
double Noise(int row, int place) { return std::sin(37.0 * row * row + 11.0 * place); }

TEST(BatchOrder, WindowsSortedByTheirTargets_AreTold) {
  const auto sorted = [](int row, int place) { return 0.01 * row + 0.002 * Noise(row, place); };
  const auto by_first = [](int row, int place) {
    return 0.01 * row + (place > 0 ? 0.1 * Noise(row, place) : 0);
  };
  EXPECT_EQ(FindingsOf(Windows(sorted, InOrder)).size(), 1U);
  EXPECT_EQ(FindingsOf(Windows(by_first, InOrder)).size(), 1U);
  EXPECT_EQ(FindingsOf(Windows(sorted, [](int step, int i) { return 479 - InOrder(step, i); })).size(), 1U);
}

TEST(BatchOrder, WindowsInTheOrderOfTime_Shuffled_OrSortedWithinBatchesOnly_AreSilent) {
  const auto season = [](int row, int place) { return std::sin(0.02 * (row + place)); };
  EXPECT_TRUE(FindingsOf(Windows(season, InOrder)).empty());
  const auto drift = [](int row, int place) { return 0.01 * row + 0.1 * Noise(row, place); };
  EXPECT_TRUE(FindingsOf(Windows(drift, InOrder)).empty());
  const auto level = [](int row, int) { return 0.01 * row; };
  EXPECT_TRUE(FindingsOf(Windows(level, [](int step, int i) { return (16 * step + i) * 97 % 480; })).empty());
  EXPECT_TRUE(FindingsOf(Windows(level, [](int step, int i) { return step % 30 + 30 * i; })).empty());
  // one long way upwards, without a second pass
  EXPECT_TRUE(FindingsOf(Windows(level, [](int step, int i) { return 16 * step + i; })).empty());
}

// A training whose loader was started several times, as its document says.
std::vector<Finding> Passes(const std::string& loader) {
  FakeTrial trial;
  trial.SetDocument("loaders", R"({"loaders": [)" + loader + "]}");
  for (int step = 0; step < 8; ++step) trial.Step().Loss(1);
  return FindingsOf(trial);
}

TEST(BatchOrder, ASamplerThatIsNotToldTheEpoch_IsNamedAtTheEnd) {
  const auto findings =
      Passes(R"({"number": 0, "sampler": "DistributedSampler", "trains": true, "same_epoch": 4})");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "same_order");
  EXPECT_NE(findings[0].remedy.find("set_epoch"), std::string::npos);
  EXPECT_TRUE(Passes(R"({"number": 0, "trains": true, "same_epoch": 2})").empty());
  EXPECT_TRUE(Passes(R"({"number": 0, "trains": false, "same_epoch": 9})").empty());  // of an evaluation
  EXPECT_TRUE(Passes(R"({"number": 0, "trains": true})").empty());
}

}  // namespace
}  // namespace luff::rules::batch_order_test

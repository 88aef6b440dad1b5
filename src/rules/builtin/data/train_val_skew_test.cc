#include <random>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::train_val_skew_test {
namespace {

using query::Mode;
using testing::FakeTrial;

struct Side {
  double shift = 0, spread = 1;
  std::int64_t features = 6;
};

// Features have mean 3 and deviation 2 in training. In evaluations they are shifted and scaled as `side`
// says, in units of that deviation.
FakeTrial Story(const Side& side, std::size_t concerned = 99, bool rare = false) {
  FakeTrial trial;
  std::mt19937 noise(5);
  std::normal_distribution<double> normal(0, 1);
  for (int step = 0; step < 60; ++step) {
    const bool train = step % 20 < 18;
    trial.Step(train ? Mode::kTrain : Mode::kEval);
    const std::int64_t features = train ? 6 : side.features;
    std::vector<double> values;
    for (int row = 0; row < 32; ++row) {
      for (std::int64_t f = 0; f < features; ++f) {
        const bool other = !train && static_cast<std::size_t>(f) < concerned;
        double value = normal(noise);
        if (rare) value = train && row == 7 && step % 5 == f ? 1 : 0;
        values.push_back(3 + 2 * (other ? side.shift + side.spread * value : value));
      }
    }
    trial.Sample("sample/Net_input_0", {32, features}, values);
  }
  return trial;
}

std::vector<Finding> Findings(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "TrainValSkew", ParameterSet::kLuff);
}

TEST(TrainValSkew, OtherScale_IsToldAfterTheFirstEvaluation) {
  for (const Side side : {Side{4, 1}, Side{0, 6}, Side{0, 0.1}}) {
    const auto findings = Findings(Story(side));
    ASSERT_EQ(findings.size(), 1U) << side.shift << " " << side.spread;
    EXPECT_EQ(findings[0].step, 17);
    EXPECT_EQ(findings[0].mode, "TRAIN");
    EXPECT_EQ(findings[0].tensor, "sample/Net_input_0");
  }
}

TEST(TrainValSkew, AlikeDrift_FewFeatures_OtherTasks_AndRareFlags_AreSilent) {
  EXPECT_TRUE(Findings(Story({})).empty());
  EXPECT_TRUE(Findings(Story({1, 1.8})).empty());
  EXPECT_TRUE(Findings(Story({9, 1}, 2)).empty());
  EXPECT_TRUE(Findings(Story({9, 9, 4})).empty());
  EXPECT_TRUE(Findings(Story({0, 1}, 99, true)).empty());
}

// Twenty features, the first `lost` of which are constant in training. In evaluations they vary, or
// (`rarely`) do so in one row per batch only.
FakeTrial Lost(std::size_t lost, bool rarely = false, int batches = 20) {
  FakeTrial trial;
  std::mt19937 noise(5);
  std::normal_distribution<double> normal(0, 1);
  for (int step = 0; step <= batches; ++step) {
    const bool train = step < batches;
    trial.Step(train ? Mode::kTrain : Mode::kEval);
    std::vector<double> values;
    for (int row = 0; row < 32; ++row) {
      for (std::size_t f = 0; f < 20; ++f) {
        const bool still = f < lost && (train || (rarely && row != 7));
        values.push_back(still ? 0 : normal(noise));
      }
    }
    trial.Sample("sample/Net_input_0", {32, 20}, values);
  }
  trial.Step();
  return trial;
}

TEST(TrainValSkew, ColumnsLostInTraining_AreNamed_OneOrRareOnesOrFewRowsAreSilent) {
  const auto findings = Findings(Lost(5));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "absent");
  EXPECT_NE(findings[0].what.find("5 of the 20"), std::string::npos) << findings[0].what;
  EXPECT_TRUE(Findings(Lost(1)).empty());
  EXPECT_TRUE(Findings(Lost(5, true)).empty());
  EXPECT_TRUE(Findings(Lost(5, false, 3)).empty());
}

TEST(TrainValSkew, PreparationThatIsRepaired_Heals) {
  FakeTrial trial = Story({4, 1});
  std::mt19937 noise(6);
  std::normal_distribution<double> normal(3, 2);
  for (const Mode mode : {Mode::kTrain, Mode::kEval, Mode::kTrain}) {
    std::vector<double> values(192);
    for (double& value : values) value = normal(noise);
    trial.Step(mode).Sample("sample/Net_input_0", {32, 6}, values);
  }
  EXPECT_TRUE(Findings(trial).at(0).healed);
}

}  // namespace
}  // namespace luff::rules::train_val_skew_test

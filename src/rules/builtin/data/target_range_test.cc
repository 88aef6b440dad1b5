#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules::target_range_test {
namespace {

using testing::Batch;
using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "TargetRange", ParameterSet::kLuff);
}

FakeTrial BinaryStory(double low, double high) {
  FakeTrial trial;
  for (int step = 0; step < 8; ++step) {
    const std::vector<double> scores = {0.5, -1, 2, 0.1 * step};
    const std::vector<double> targets = {low, high, low, high};
    testing::TellPairs(&trial, "BCEWithLogitsLoss", testing::BceWithLogits(scores, targets), scores, targets);
  }
  return trial;
}

TEST(TargetRange, LabelsMinusOneAndOne_Stop) {
  const auto findings = FindingsOf(BinaryStory(-1, 1));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "no_probabilities");
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 2);
  EXPECT_EQ(FindingsOf(BinaryStory(0, 255)).size(), 1U);
}

TEST(TargetRange, LabelsAndSmoothedLabels_AreSilent) {
  EXPECT_TRUE(FindingsOf(BinaryStory(0, 1)).empty());
  EXPECT_TRUE(FindingsOf(BinaryStory(0.05, 0.95)).empty());
}

std::vector<Finding> Masks(double low, double high, double third) {
  FakeTrial trial;
  for (int step = 0; step < 20; ++step) {
    std::vector<double> scores;
    std::vector<double> targets;
    for (int i = 0; i < 32; ++i) {
      scores.push_back(std::sin(i + 0.1 * step));
      targets.push_back(i % 3 == 0 ? high : i == 1 ? third : low);
    }
    testing::TellPairs(&trial, "BCEWithLogitsLoss", testing::BceWithLogits(scores, targets), scores, targets);
  }
  return FindingsOf(trial);
}

TEST(TargetRange, MasksThatWereScaledTwice_AreTold) {
  const auto findings = Masks(0, 1.0 / 255, 0);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "scaled_twice");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_TRUE(Masks(0, 1, 0).empty());
  EXPECT_TRUE(Masks(0, 0.9, 0).empty());         // one side smoothed
  EXPECT_TRUE(Masks(0.05, 0.95, 0.05).empty());  // both
  EXPECT_TRUE(Masks(0, 0.004, 0.002).empty());   // rates of something rare
  EXPECT_TRUE(Masks(0.001, 0.004, 0.001).empty());
  EXPECT_TRUE(Masks(0, 0.05, 0).empty());      // of a game of two networks
  EXPECT_TRUE(Masks(0, 1.0 / 12, 0).empty());  // twelve labels share a row's 1
  EXPECT_TRUE(Masks(0, 0, 0).empty());         // nothing is there
}

TEST(TargetRange, LabelsSmoothedToAHalf_AreTold) {
  const auto findings = Masks(0.05, 0.55, 0.05);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "smoothed_to_a_half");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].what.find("0.05 and 0.55"), std::string::npos);
  EXPECT_TRUE(Masks(0.05, 0.95, 0.05).empty());
  EXPECT_TRUE(Masks(0.05, 0.8, 0.05).empty());   // one side of a game, or a prior that is mixed in
  EXPECT_TRUE(Masks(0.45, 0.55, 0.45).empty());  // smoothed as far as one can: both alike
  EXPECT_TRUE(Masks(0, 0.55, 0).empty());        // rates of two groups
  EXPECT_TRUE(Masks(0.05, 0.55, 0.3).empty());   // of many rows
  EXPECT_TRUE(Masks(0.05, 0.5, 0.05).empty());   // a half is not known
}

FakeTrial RegressionStory(const char* last, double scale) {
  FakeTrial trial;
  trial.SetDocument("model", std::string(R"({"models": [{"name": "Net", "modules": [
    {"path": "", "type": "Sequential", "name": "Net", "number": 0},
    {"path": "0", "type": ")") + last +
                                 R"(", "name": "Net_0", "number": 1}]}]})");
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (int step = 0; step < 16; ++step) {
    std::vector<double> outputs(32);
    std::vector<double> targets(32);
    for (std::size_t i = 0; i < 32; ++i) {
      outputs[i] = std::tanh(normal(random));
      targets[i] = scale * normal(random);
    }
    testing::TellPairs(&trial, "MSELoss", testing::SquaredError(outputs, targets), outputs, targets);
  }
  return trial;
}

// A regression whose outputs are `output` of a normal number. Its last module is unknown.
std::vector<Finding> Bounded(const std::function<double(double)>& output, double scale,
                             const std::string& made_by = "", int call = 0,
                             const std::string& clamped = "null", std::size_t rows = 32) {
  FakeTrial trial;
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (int step = 0; step < 48; ++step) {
    std::vector<double> outputs(rows);
    std::vector<double> targets(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      outputs[i] = output(normal(random));
      targets[i] = scale * normal(random);
    }
    testing::TellPairs(&trial, "MSELoss", testing::SquaredError(outputs, targets), outputs, targets);
    if (step == 0)
      trial.EventJson(R"({"kind": "loss_input", "loss": "MSELoss", "call": )" + std::to_string(call) +
                      R"(, "made_by": ")" + made_by + R"(", "clamped": )" + clamped + "}");
  }
  return FindingsOf(trial);
}

TEST(TargetRange, TargetsThatTheLastOperationCannotGive_AreTold) {
  const auto softplus = [](double x) { return std::log1p(std::exp(x)); };
  const auto findings = Bounded(softplus, 3, "softplus");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "out_of_reach");
  EXPECT_NE(findings[0].why.find("softplus"), std::string::npos);
  EXPECT_TRUE(Bounded(softplus, 3).empty());                                // nobody knows what bounds them
  EXPECT_TRUE(Bounded([](double x) { return x; }, 3, "softplus").empty());  // outputs beyond its range
  EXPECT_TRUE(Bounded(softplus, 3, "softplus", 1).empty());                 // an event of another call
}

TEST(TargetRange, FewTargetsThatTheGraphsReluCannotGive_AreTold_WhereTheyAreMany) {
  const auto relu = [](double x) { return std::max(x, 0.0); };
  EXPECT_EQ(Bounded(relu, 3, "relu", 0, "null", 4).size(), 1U);  // 192 targets, half of them below 0
  EXPECT_TRUE(Bounded(relu, 3, "relu", 0, "null", 1).empty());   // 48
  EXPECT_TRUE(Bounded(relu, 3, "", 0, "null", 4).empty());       // nobody knows what bounds them
  const auto tanh = [](double x) { return std::tanh(x); };
  EXPECT_TRUE(Bounded(tanh, 0.75, "tanh", 0, "null", 4).empty());  // a tenth, outliers
  EXPECT_EQ(Bounded(tanh, 0.75, "tanh").size(), 1U);               // of more of them
}

// A regression of counts whose output is 0 where `silent` says so.
std::vector<Finding> Counts(const std::function<bool(int row, double target)>& silent,
                            const std::string& made_by = "relu", int steps = 120) {
  FakeTrial trial;
  std::mt19937 random(3);
  std::poisson_distribution<int> count(1.0);
  int row = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<double> outputs(32);
    std::vector<double> targets(32);
    for (std::size_t i = 0; i < 32; ++i) {
      targets[i] = count(random);
      outputs[i] = silent(row++, targets[i]) ? 0 : 0.5 + 0.3 * targets[i];
    }
    testing::TellPairs(&trial, "MSELoss", testing::SquaredError(outputs, targets), outputs, targets);
    if (step == 0)
      trial.EventJson(R"({"kind": "loss_input", "loss": "MSELoss", "call": 0, "made_by": ")" + made_by +
                      "\"}");
  }
  return FindingsOf(trial);
}

// A regression whose output ends in a ReLU and is 0 where `silent` says so of the target.
std::vector<Finding> Silenced(const std::string& kind, const std::function<double(int row)>& target,
                              const std::function<bool(double)>& silent) {
  FakeTrial trial;
  int row = 0;
  for (int step = 0; step < 320; ++step) {
    std::vector<double> outputs(32);
    std::vector<double> targets(32);
    double loss = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      targets[i] = target(row++);
      outputs[i] = silent(targets[i]) ? 0 : 0.75 * targets[i];
      const double error = std::abs(outputs[i] - targets[i]);
      loss += (kind == "L1Loss" ? error : error * error) / 32;
    }
    testing::TellPairs(&trial, kind, loss, outputs, targets);
    if (step == 0)
      trial.EventJson(R"({"kind": "loss_input", "loss": ")" + kind + R"(", "call": 0, "made_by": "relu"})");
  }
  return FindingsOf(trial);
}

TEST(TargetRange, AReluAtTheOutputThatSilencesNearlyAll_IsTold_AndHeals) {
  const auto findings = Counts([](int row, double) { return row % 40 != 0; });
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "silenced");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_FALSE(findings[0].healed);
  EXPECT_TRUE(Counts([](int row, double) { return row < 32 * 90; }).at(0).healed);
  EXPECT_TRUE(Counts([](int, double target) { return target == 0; }).empty());  // and this is right
  EXPECT_TRUE(Counts([](int row, double) { return row % 4 != 0; }).empty());
  EXPECT_TRUE(Counts([](int row, double) { return row < 32 * 60; }).empty());  // at first
  EXPECT_TRUE(Counts([](int row, double) { return row % 40 != 0; }, "softplus").empty());
  // A ReLU that is right: beside a peak targets are nearly 0, and an absolute error is least at the median.
  const auto peak = [](double share) {
    return [share](int row) { return row % 100 < 100 * share ? 1.0 : 1e-6; };
  };
  EXPECT_TRUE(Silenced("MSELoss", peak(0.08), [](double y) { return y < 0.5; }).empty());
  EXPECT_EQ(Silenced("MSELoss", peak(0.2), [](double) { return true; }).size(), 1U);
  const auto dry = [](int row) { return row % 10 < 4 ? 1.0 : 0.0; };
  EXPECT_TRUE(Silenced("L1Loss", dry, [](double) { return true; }).empty());
  EXPECT_EQ(Silenced("MSELoss", dry, [](double) { return true; }).size(), 1U);
}

TEST(TargetRange, TargetsThatAClampCutsOff_AreTold) {
  const auto clamp = [](double x) { return std::clamp(x, -2.0, 2.0); };
  const auto findings = Bounded(clamp, 3, "", 0, "[-2, 2]");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "out_of_reach");
  EXPECT_NE(findings[0].why.find("clamp"), std::string::npos);
  EXPECT_EQ(Bounded(clamp, 3, "", 0, "[null, 2]").size(), 1U);
  EXPECT_TRUE(Bounded(clamp, 0.5, "", 0, "[-2, 2]").empty());  // targets within
  EXPECT_TRUE(Bounded(clamp, 3).empty());                      // nobody knows what bounds them
  EXPECT_TRUE(Bounded(clamp, 3, "", 0, "[-100, 100]").empty());
  EXPECT_TRUE(Bounded([](double x) { return 3 * x; }, 3, "", 0, "[-2, 2]").empty());  // added to later
  for (const char* broken : {"[2]", "7", "[\"a\", {}]", "[[1], null]"})
    EXPECT_TRUE(Bounded(clamp, 0.5, "", 0, broken).empty()) << broken;
}

TEST(TargetRange, OutputsThatAFunctionBounds_AreTold_OthersAreSilent) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-4 * x)); };
  const auto findings = Bounded(sigmoid, 3);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "out_of_reach");
  EXPECT_NE(findings[0].remedy.find("sigmoid"), std::string::npos);
  EXPECT_EQ(Bounded([](double x) { return std::tanh(3 * x); }, 3).size(), 1U);
  EXPECT_TRUE(Bounded([](double x) { return std::tanh(3 * x); }, 0.3).empty());       // few targets beyond
  EXPECT_TRUE(Bounded([](double x) { return x; }, 3).empty());                        // unbounded
  EXPECT_TRUE(Bounded([](double x) { return 0.5 + 0.1 * std::sin(x); }, 3).empty());  // not learnt yet
  EXPECT_EQ(Bounded([](double x) { return std::max(x, 0.0); }, 3).size(), 1U);
  // An output layer that starts at zero and moves towards the mean of the targets.
  EXPECT_TRUE(Bounded([](double) { return 0.0; }, 3).empty());
  int calls = 0;
  EXPECT_TRUE(
      Bounded([&](double x) { return 1e-3 * (calls++ / 32) + 0.01 * std::abs(std::sin(x)); }, 3).empty());
}

TEST(TargetRange, TargetsBeyondATanh_AreTold) {
  const auto findings = FindingsOf(RegressionStory("Tanh", 3));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "out_of_reach");
  EXPECT_TRUE(FindingsOf(RegressionStory("Tanh", 0.3)).empty());
  EXPECT_TRUE(FindingsOf(RegressionStory("Linear", 3)).empty());
}

// A regression on targets of this mean and deviation; outputs are `share` of the targets, as of the step.
std::vector<Finding> Scaled(double mean, double deviation, const std::function<double(int)>& share) {
  FakeTrial trial;
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (int step = 0; step < 100; ++step) {
    std::vector<double> outputs(32);
    std::vector<double> targets(32);
    for (std::size_t i = 0; i < 32; ++i) {
      targets[i] = mean + deviation * normal(random);
      outputs[i] = 0.3 * normal(random) + share(step) * targets[i];
    }
    testing::TellPairs(&trial, "MSELoss", testing::SquaredError(outputs, targets), outputs, targets);
  }
  return FindingsOf(trial);
}

TEST(TargetRange, TargetsOfThousandsThatOutputsDoNotApproach_AreTold) {
  const auto still = [](int step) { return 1e-5 * step; };
  for (const double mean : {0.0, 2e5}) {
    const auto findings = Scaled(mean, 3e4, still);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "scale");
    EXPECT_EQ(findings[0].step, 64);
    EXPECT_NE(findings[0].remedy.find("standardise the targets"), std::string::npos);
  }
  const auto overshot = Scaled(0, 3e4, [](int step) { return step < 3 ? 0 : -std::pow(30, step - 2); });
  ASSERT_EQ(overshot.size(), 1U);
  EXPECT_EQ(overshot[0].step, 3);
}

TEST(TargetRange, LargeTargetsThatAreLearnt_AndSmallOnes_AreSilent) {
  EXPECT_TRUE(Scaled(2e5, 3e4, [](int step) { return 0.001 * step; }).empty());  // on its way
  EXPECT_TRUE(Scaled(2e5, 3e4, [](int) { return 0.9; }).empty());                // a bias that was set
  EXPECT_TRUE(Scaled(20, 8, [](int) { return 0.0; }).empty());                   // a small rate
  EXPECT_TRUE(Scaled(2e5, 3e4, [](int step) { return step < 40 ? 0.9 : 1e-4; }).empty());
}

FakeTrial ConstantStory(bool evaluations_vary) {
  FakeTrial trial;
  for (int step = 0; step < 20; ++step) {
    Batch batch{{}, std::vector<double>(64, 0.1 * step), std::vector<double>(32, 0)};
    testing::TellClasses(&trial, batch, 2);
  }
  Batch batch{{}, std::vector<double>(64, 0.5), std::vector<double>(32, 0)};
  if (evaluations_vary) batch.ids[3] = 1;
  testing::TellClasses(&trial, batch, 2, query::Mode::kEval);
  return trial;
}

TEST(TargetRange, OneTargetInTraining_IsToldWhenEvaluationsHaveMore) {
  const auto findings = FindingsOf(ConstantStory(true));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "constant");
  EXPECT_EQ(findings[0].step, 19);
  EXPECT_TRUE(FindingsOf(ConstantStory(false)).empty());
}

// Eight batches of 40 rows of three tags, and an evaluation; `column` gives the middle one in training.
std::vector<Finding> Tags(const std::function<double(int row)>& column, double share_in_evaluation) {
  FakeTrial trial;
  std::mt19937 random(3);
  const auto tell = [&](query::Mode mode) {
    std::vector<double> answers;
    std::vector<double> targets;
    for (int row = 0; row < 40; ++row) {
      const double drawn = static_cast<double>(random() % 1000) / 1000;
      const double middle =
          mode == query::Mode::kTrain ? column(row) : (drawn < share_in_evaluation ? 1.0 : 0.0);
      for (const double y : {static_cast<double>(row % 2), middle, static_cast<double>(row % 3 == 0)}) {
        targets.push_back(y);
        answers.push_back(0.1 * y);
      }
    }
    trial.Step(mode)
        .Loss(testing::BceWithLogits(answers, targets), "BCEWithLogitsLoss_output_0")
        .Sample("sample/BCEWithLogitsLoss_input_0", {40, 3}, answers)
        .Sample("sample/BCEWithLogitsLoss_input_1", {40, 3}, targets);
  };
  for (int step = 0; step < 8; ++step) tell(query::Mode::kTrain);
  for (int step = 0; step < 3; ++step) tell(query::Mode::kEval);
  return FindingsOf(trial);
}

TEST(TargetRange, OneOfSeveralTargetsThatIsMissingInTraining_IsTold) {
  const auto findings = Tags([](int) { return 0.0; }, 0.3);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "constant_column");
  EXPECT_NE(findings[0].what.find("column 1 of the targets"), std::string::npos) << findings[0].what;
}

TEST(TargetRange, RareAndUnusedTags_AreSilent) {
  EXPECT_TRUE(Tags([](int) { return 0.0; }, 0.02).empty());
  EXPECT_TRUE(Tags([](int) { return 0.0; }, 0).empty());
  EXPECT_TRUE(Tags([](int row) { return row == 7 ? 1.0 : 0.0; }, 0.3).empty());
}

}  // namespace
}  // namespace luff::rules::target_range_test

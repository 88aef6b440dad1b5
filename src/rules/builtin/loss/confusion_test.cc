#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules::confusion_test {
namespace {

using testing::Batch;
using testing::FakeTrial;

using format::Role;

std::vector<Finding> Original(const std::vector<double>& labels, const std::vector<double>& predictions,
                              const std::string& rule = "Confusion") {
  FakeTrial trial;
  trial.Step().Tensor("labels", Role::kLabel, labels).Tensor("predictions", Role::kOutput, predictions);
  return testing::FindingsOf(trial, rule, ParameterSet::kOriginal);
}

const std::vector<double> kTen = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

TEST(Confusion, Original_APerfectResultIsSilent) { EXPECT_TRUE(Original(kTen, kTen).empty()); }

TEST(Confusion, Original_OneWrongPredictionFires) {
  std::vector<double> predictions = kTen;
  predictions[4] = 7;
  EXPECT_EQ(Original(kTen, predictions).size(), 1U);
  EXPECT_EQ(Original(kTen, predictions, "Confusion:min_diag=0:max_off_diag=0.01").size(), 1U);
  EXPECT_TRUE(Original(kTen, predictions, "Confusion:min_diag=0:max_off_diag=0.5").empty());
}

// Evaluations of a model that predicts `answer(label, i)`.
std::vector<Finding> Evaluated(const std::function<int(int, int)>& answer, int evaluations = 3) {
  FakeTrial trial;
  for (int round = 0; round < evaluations; ++round) {
    testing::TellClasses(&trial, {{}, std::vector<double>(64, 0.5), std::vector<double>(16, 1)}, 4);
    Batch batch;
    for (int i = 0; i < 80; ++i) {
      batch.ids.push_back(i % 4);
      const int predicted = answer(i % 4, i / 4);
      for (int c = 0; c < 4; ++c) batch.scores.push_back(c == predicted ? 2 : 0);
    }
    testing::TellClasses(&trial, batch, 4, query::Mode::kEval);
  }
  return testing::FindingsOf(trial, "Confusion", ParameterSet::kLuff);
}

TEST(Confusion, TwoClassesThatAreExchanged_AreTold) {
  const auto findings = Evaluated([](int label, int) { return label < 2 ? 1 - label : label; });
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "exchanged");
  EXPECT_TRUE(Evaluated([](int label, int) { return label < 2 ? 1 - label : label; }, 1).empty());
}

TEST(Confusion, HardClassesAndOneAnswerForAll_AreSilent) {
  EXPECT_TRUE(Evaluated([](int label, int i) { return label < 2 ? i % 2 : label; }).empty());
  EXPECT_TRUE(Evaluated([](int, int) { return 1; }).empty());
  EXPECT_TRUE(Evaluated([](int label, int) { return label; }).empty());
}

// Trainings on 4 classes of which `trained(i)` is the label of row i; evaluations of `each` rows of each
// class.
std::vector<Finding> Trained(const std::function<int(int)>& trained,
                             const std::function<int(int, int)>& answer, int each = 40) {
  FakeTrial trial;
  for (int round = 0; round < 4; ++round) {
    for (int step = 0; step < 10; ++step) {
      Batch batch;
      for (int i = 0; i < 40; ++i) {
        batch.inputs.push_back(step * 40 + i);  // the same rows in each pass
        batch.ids.push_back(trained(i));
        for (int c = 0; c < 4; ++c) batch.scores.push_back(c == trained(i) ? 2 : 0);
      }
      testing::TellClasses(&trial, batch, 4);
    }
    Batch batch;
    for (int i = 0; i < 4 * each; ++i) {
      batch.ids.push_back(i % 4);
      const int predicted = answer(i % 4, i / 4);
      for (int c = 0; c < 4; ++c) batch.scores.push_back(c == predicted ? 2 : 0);
    }
    testing::TellClasses(&trial, batch, 4, query::Mode::kEval);
  }
  return testing::FindingsOf(trial, "Confusion", ParameterSet::kLuff);
}

TEST(Confusion, ClassesNumberedFromAnotherStart_AreTold) {
  const auto findings = Evaluated([](int label, int) { return (label + 1) % 4; });
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "renumbered");
  EXPECT_TRUE(Evaluated([](int label, int) { return (label + 1) % 4; }, 1).empty());
  EXPECT_TRUE(Evaluated([](int label, int i) { return (label + i) % 4; }).empty());
}

TEST(Confusion, AClassThatIsLabelledAsAnother_IsToldWithBoth) {
  // Of ten rows of class 0, eight have label 1.
  const auto mostly = [](int i) { return i % 4 == 0 && i < 32 ? 1 : i % 4; };
  const auto findings = Trained(mostly, [](int label, int) { return label == 0 ? 1 : label; });
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "taken");
  EXPECT_NE(findings[0].what.find("class 0 for class 1"), std::string::npos);
  // Alike classes, as many in training as in evaluations; and labels that differ, but are predicted.
  EXPECT_TRUE(
      Trained([](int i) { return i % 4; }, [](int label, int) { return label == 0 ? 1 : label; }).empty());
  EXPECT_TRUE(Trained(mostly, [](int label, int) { return label; }).empty());
}

TEST(Confusion, RareClassesOfATrainingThatIsNotBalanced_AreNotLabelledAsAnother) {
  const auto rare = [](int i) { return i < 2 ? 0 : i < 26 ? 1 : i < 34 ? 2 : 3; };
  const auto mostly = [](int i) { return i % 4 == 0 && i < 32 ? 1 : i % 4; };
  // Nothing is learned but the most frequent class.
  EXPECT_TRUE(Trained(rare, [](int, int) { return 1; }).empty());
  EXPECT_TRUE(Trained(mostly, [](int, int) { return 1; }).empty());
  // A rare class is taken for a frequent one: together they are more than in evaluations.
  EXPECT_TRUE(Trained(rare, [](int label, int) { return label == 0 ? 1 : label; }).empty());
}

TEST(Confusion, FewRowsOfTheClassThatIsTaken_AreSilent) {
  const auto mostly = [](int i) { return i % 4 == 0 && i < 32 ? 1 : i % 4; };
  const auto taken = [](int label, int) { return label == 0 ? 1 : label; };
  EXPECT_EQ(Trained(mostly, taken, 40).size(), 1U);
  EXPECT_TRUE(Trained(mostly, taken, 9).empty());
}

// Trainings on targets of three columns, which the model's answers tell with an error of `error`; targets of
// evaluations are `changed`.
std::vector<Finding> Columns(const std::function<std::vector<double>(std::vector<double>)>& changed,
                             double error = 0.3, int evaluations = 3, bool binary = false) {
  FakeTrial trial;
  std::mt19937 random(4);
  std::normal_distribution<double> normal(0, 1);
  const auto tell = [&](query::Mode mode, bool change) {
    std::vector<double> answers;
    std::vector<double> targets;
    for (int row = 0; row < 64; ++row) {
      std::vector<double> y = {normal(random), normal(random), normal(random)};
      for (double& value : y) value = binary ? (value > 0 ? 1 : 0) : value;
      for (const double value : y)
        answers.push_back((binary ? 4 * value - 2 : value) + error * normal(random));
      if (change) y = changed(y);
      targets.insert(targets.end(), y.begin(), y.end());
    }
    const std::string kind = binary ? "BCEWithLogitsLoss" : "MSELoss";
    trial.Step(mode)
        .Loss(binary ? testing::BceWithLogits(answers, targets) : testing::SquaredError(answers, targets),
              kind + "_output_0")
        .Sample("sample/" + kind + "_input_0", {64, 3}, answers)
        .Sample("sample/" + kind + "_input_1", {64, 3}, targets);
  };
  for (int round = 0; round < evaluations; ++round) {
    for (int step = 0; step < 4; ++step) tell(query::Mode::kTrain, false);
    for (int step = 0; step < 2; ++step) tell(query::Mode::kEval, true);
  }
  return testing::FindingsOf(trial, "Confusion", ParameterSet::kLuff);
}
using Values = std::vector<double>;

TEST(Confusion, ColumnsOfTargetsInAnotherOrder_AreTold) {
  for (const bool binary : {false, true}) {
    const auto findings = Columns([](Values y) { return Values{y[1], y[0], y[2]}; }, 0.3, 3, binary);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "columns_exchanged");
    EXPECT_NE(findings[0].remedy.find("order of the target's columns"), std::string::npos);
  }
  EXPECT_EQ(Columns([](Values y) { return Values{y[2], y[0], y[1]}; }).size(), 1U);
  double last = 0;  // moved on by a place: windows that lie otherwise in time
  EXPECT_TRUE(Columns([&last](Values y) {
                std::swap(last, y[0]);
                return Values{last, y[0], y[1]};
              }).empty());
  EXPECT_TRUE(Columns([](Values y) { return Values{y[1], y[0], y[2]}; }, 0.3, 1).empty());
}

TEST(Confusion, TargetsThatAreTurnedOver_AreTold) {
  const auto findings = Columns([](Values y) { return Values{1 - y[0], 1 - y[1], 1 - y[2]}; }, 0.3, 3, true);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "inverted");
  const auto one = Columns([](Values y) { return Values{y[0], -y[1], y[2]}; });
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].what, "column 1 of the targets of MSELoss_output_0 is turned over in evaluations");
}

TEST(Confusion, ColumnsThatAreHardScaledOrAlike_AreSilent) {
  EXPECT_TRUE(Columns([](Values y) { return y; }).empty());
  EXPECT_TRUE(Columns([](Values y) { return y; }, 3).empty());  // hardly learnt
  EXPECT_TRUE(Columns([](Values y) { return Values{y[1], y[0], y[2]}; }, 3).empty());
  EXPECT_TRUE(Columns([](Values y) { return Values{100 * y[0], y[1] - 7, y[2]}; }).empty());
  EXPECT_TRUE(
      Columns([](Values y) { return Values{y[0], y[1], y[1]}; }).empty());  // one column of other data
  EXPECT_TRUE(Columns([](Values) { return Values{0, 1, 1}; }).empty());
  int row = 0;  // noise where the training had none
  EXPECT_TRUE(Columns([&row](Values y) { return Values{std::sin(7.0 * ++row), y[1], y[2]}; }).empty());
}

}  // namespace
}  // namespace luff::rules::confusion_test

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::unchanged_tensor_test {
namespace {

using query::Mode;
using testing::FakeTrial;

// A training of Net, with an evaluation of two batches after each 16 updates. The functions give the output
// of an evaluation for row `i`, and the rows of its inputs.
struct Story {
  std::string model = "Net_1";  // that is evaluated
  std::function<double(int, int)> output = [](int, int i) { return std::sin(3.0 * i); };
  std::function<double(int, int)> input = [](int, int i) { return 0.1 * i; };
  bool weights_change = true, labels = true;
  DType dtype = DType::kFloat32;
  std::string beside = "";  // another model that is evaluated without labels
  int every = 16, evaluations = 5;
};

std::vector<Finding> FindingsOf(const Story& story) {
  FakeTrial trial;
  for (int evaluation = 0; evaluation < story.evaluations; ++evaluation) {
    for (int step = 0; step < story.every; ++step) {
      trial.Step().Loss(1).Sample("sample/Net_input_0", {4, 1}, {1, 2, 3, 0.1 * step});
      if (step % 8 == 0) trial.Difference("Net_a.weight", 1, 1, 1, story.weights_change ? 4 : 0);
    }
    for (int batch = 0; batch < 2; ++batch) {
      std::vector<double> inputs;
      std::vector<double> outputs;
      for (int i = 0; i < 16; ++i) {
        inputs.push_back(story.input(evaluation, 16 * batch + i));
        outputs.push_back(story.output(evaluation, 16 * batch + i));
      }
      trial.Step(Mode::kEval).Sample("sample/" + story.model + "_input_0", {16, 1}, inputs);
      if (story.labels) {
        trial.Loss(1, "MSELoss_output_0")
            .Sample("sample/MSELoss_input_0", {16}, outputs, story.dtype)
            .Sample("sample/MSELoss_input_1", {16}, std::vector<double>(16, 0.5));
      }
    }
    if (!story.beside.empty())
      trial.Step(Mode::kEval).Sample("sample/" + story.beside + "_input_0", {2, 1}, {1, 2});
  }
  trial.Step();
  return testing::FindingsOf(trial, "UnchangedTensor", ParameterSet::kLuff);
}

TEST(UnchangedTensor, EvaluationsOfAModelThatStandsStill_AreTold) {
  const auto findings = FindingsOf({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "evaluated");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].since_step, 15);
  EXPECT_EQ(findings[0].step, 47);
  EXPECT_NE(findings[0].why.find("Net_1"), std::string::npos);
  EXPECT_FALSE(findings[0].healed);
}

TEST(UnchangedTensor, EvaluationsThatChange_AreSilent) {
  // An average that follows slowly.
  Story average;
  average.output = [](int evaluation, int i) { return std::sin(3.0 * i) + 1e-7 * evaluation; };
  EXPECT_TRUE(FindingsOf(average).empty());
  // One batch of the two has other answers.
  Story partly;
  partly.output = [](int evaluation, int i) { return std::sin(3.0 * i) + (i >= 16 ? 1e-6 * evaluation : 0); };
  EXPECT_TRUE(FindingsOf(partly).empty());
  // The model that is trained: its weights do not matter for these rows.
  Story itself;
  itself.model = "Net";
  EXPECT_TRUE(FindingsOf(itself).empty());
}

TEST(UnchangedTensor, EvaluationsThatCannotBeCompared_AreSilent) {
  Story shuffled;
  shuffled.input = [](int evaluation, int i) { return 0.1 * ((i * 7 + evaluation) % 32); };
  EXPECT_TRUE(FindingsOf(shuffled).empty());
  Story still;  // the training stands still, too: other rules say so
  still.weights_change = false;
  for (const Finding& finding : FindingsOf(still)) EXPECT_NE(finding.cause, "evaluated");
  Story features;  // a frozen model whose features nothing is compared with
  features.labels = false;
  EXPECT_TRUE(FindingsOf(features).empty());
  Story baseline;  // the trained model is evaluated, too, by NumPy
  baseline.beside = "Net";
  EXPECT_TRUE(FindingsOf(baseline).empty());
  Story other;  // so is a third one
  other.beside = "Net_2";
  EXPECT_TRUE(FindingsOf(other).empty());
  Story coarse;  // 16 bits hide a small change
  coarse.dtype = DType::kBFloat16;
  EXPECT_TRUE(FindingsOf(coarse).empty());
  Story sure;  // outputs at their limits
  sure.output = [](int, int i) { return i % 2; };
  EXPECT_TRUE(FindingsOf(sure).empty());
  Story reference;  // of each batch, beside the training
  reference.every = 2;
  reference.evaluations = 30;
  EXPECT_TRUE(FindingsOf(reference).empty());
  Story twice;
  twice.evaluations = 2;
  EXPECT_TRUE(FindingsOf(twice).empty());
}

TEST(UnchangedTensor, AnAverageThatBeginsLate_Heals) {
  Story late;
  late.evaluations = 6;
  late.output = [](int evaluation, int i) { return std::sin(3.0 * i) + (evaluation > 3 ? 0.01 : 0); };
  const auto findings = FindingsOf(late);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
}

}  // namespace
}  // namespace luff::rules::unchanged_tensor_test

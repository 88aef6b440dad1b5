#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <utility>
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

// Values that are learnt from those of a second network, which is asked about the next states of each batch.
struct Learning {
  int updates = 240, copied_every = 0;  // 0: never
  bool copy = false;                    // the second network begins as a copy
  int asked = 1;                        // how often for each update
  std::string loss = "MSELoss";
  bool same_states = false, in_training = false, drawn = true, with_gradients = false, every_update = true;
  int rows = 32;  // that the second network is asked about; the loss has 32
  std::string shape = "[32, 16]", optimizer = "null";
};

std::vector<Finding> Learn(const Learning& learning) {
  constexpr std::uint64_t kTold = 1U << 12, kGradients = 1U << 11;
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [
    {"name": "Q", "type": "Q", "modules": [{"path": "", "type": "Q", "number": 1}],
     "parameters": [{"path": "a.weight", "name": "Q_a.weight", "shape": [32, 16], "optimizer": "Adam"}]},
    {"name": "Q_1", "type": "Q", "modules": [{"path": "", "type": "Q", "number": 2}],
     "parameters": [{"path": "a.weight", "name": "Q_1_a.weight", "shape": )" +
                                 learning.shape + R"(, "optimizer": )" + learning.optimizer + R"(}]}],
    "optimizers": [{"number": 0, "name": "Adam"}]})");
  std::mt19937 random(3);
  std::uniform_real_distribution<double> even(-0.25, 0.25);
  std::vector<double> trained(512);
  std::vector<double> target(512);
  for (double& value : trained) value = even(random);
  for (double& value : target) value = learning.drawn ? even(random) : 0.1 * even(random);
  if (learning.copy) target = trained;
  const std::vector<double> outputs(32, 1.0);
  const auto ask = [&](int update) {
    trial.Event(format::EventKind::kForward, 2, kTold | (learning.with_gradients ? kGradients : 0))
        .Event(format::EventKind::kBatch, 2,
               static_cast<std::uint64_t>(learning.same_states ? update : -update - 7));
  };
  for (int update = 0; update < learning.updates; ++update) {
    const bool asks = learning.every_update || update % 2 == 0;
    for (int time = 0; !learning.in_training && asks && time < learning.asked; ++time) {
      trial.Step(query::Mode::kEval);
      ask(update);
      trial.Sample("sample/Q_1_input_0", {learning.rows, 1},
                   std::vector<double>(static_cast<std::size_t>(learning.rows), 0.5));
    }
    trial.Step()
        .Loss(1, learning.loss + "_output_0")
        .Sample("sample/" + learning.loss + "_input_0", {32}, outputs)
        .Sample("sample/" + learning.loss + "_input_1", {32}, std::vector<double>(32, 0.0))
        .Event(format::EventKind::kForward, 1, kTold | kGradients)
        .Event(format::EventKind::kBatch, 1, static_cast<std::uint64_t>(update));
    if (learning.in_training && asks) ask(update);
    if (learning.copied_every > 0 && update % learning.copied_every == 0) target = trained;
    if (update % (learning.updates > 1000 ? 500 : 1) == 0)
      trial.Tensor("Q_a.weight", format::Role::kWeight, trained)
          .Tensor("Q_1_a.weight", format::Role::kWeight, target);
    trial.Event(format::EventKind::kOptimizerStep, 0);
    for (double& value : trained) value += 1e-3;  // weights are recorded as the update finds them
  }
  std::vector<Finding> found;
  for (Finding& finding : testing::FindingsOf(trial, "UnchangedTensor", ParameterSet::kLuff))
    if (finding.cause == "target") found.push_back(std::move(finding));
  return found;
}

TEST(UnchangedTensor, ATargetNetworkThatIsNeverBroughtUpToDate_IsToldAtTheEnd) {
  const auto findings = Learn({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].what.find("Q_1"), std::string::npos);
  EXPECT_NE(findings[0].remedy.find("load_state_dict"), std::string::npos);
  EXPECT_EQ(Learn({.in_training = true}).size(), 1U);
  EXPECT_EQ(Learn({.rows = 128}).size(), 1U);  // the loss gets a part of them
}

// Many programs copy each 10,000 updates: a run that ends before says nothing.
TEST(UnchangedTensor, ATargetNetworkThatBeganAsACopy_IsToldOnlyAfterManyUpdates) {
  EXPECT_TRUE(Learn({.updates = 2000, .copy = true}).empty());
  const auto findings = Learn({.updates = 20'050, .copy = true});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].why.find("at the start"), std::string::npos);
}

TEST(UnchangedTensor, TargetsThatFollow_AndOtherModelsThatStand_AreSilent) {
  EXPECT_TRUE(Learn({.copied_every = 1}).empty());
  EXPECT_TRUE(Learn({.copied_every = 100}).empty());
  EXPECT_TRUE(Learn({.updates = 150}).empty());          // too short to say
  EXPECT_TRUE(Learn({.same_states = true}).empty());     // features that are random on purpose, a reference
  EXPECT_TRUE(Learn({.drawn = false}).empty());          // a teacher, from a file
  EXPECT_TRUE(Learn({.with_gradients = true}).empty());  // a part of the model
  EXPECT_TRUE(Learn({.rows = 1}).empty());               // an opponent
  EXPECT_TRUE(Learn({.asked = 5}).empty());              // one of many games at a time
  EXPECT_TRUE(Learn({.loss = "BCELoss"}).empty());       // no values are learnt
  EXPECT_TRUE(Learn({.shape = "[16, 32]"}).empty());     // another network
  EXPECT_TRUE(Learn({.updates = 480, .every_update = false}).empty());
  EXPECT_TRUE(Learn({.optimizer = "\"Adam\""}).empty());
}

}  // namespace
}  // namespace luff::rules::unchanged_tensor_test

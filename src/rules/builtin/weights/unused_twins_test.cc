#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// A module that never runs while one of its kind runs more than once (NoGradient, unused_twin).
namespace luff::rules::unused_twins_test {
namespace {

using format::EventKind;
using format::Form;
using format::Role;
using testing::FakeTrial;

struct Layer {
  std::string path, type = "Linear", shape = "[4, 4]";
  int calls = 1;           // in a TRAIN step
  bool evaluated = false;  // it runs in evaluations
  std::string optimizer = "\"Adam\"";
  double moves = 0;
  int from = 0;  // first step with these calls
  bool mentioned = false;
};

struct Story {
  std::vector<Layer> layers;
  std::string parent = "Net", parent_path = {};
  int calls_of_model = 1, steps = 200;
};

void Runs(FakeTrial* trial, const std::string& path, int times) {
  for (int i = 0; i < times; ++i) {
    const std::string name = "Net_" + path + "_output_" + std::to_string(i);
    query::Trial::FormEntry entry{};
    entry.tensor = trial->Define(name, Role::kOutput);
    entry.row.form = static_cast<std::uint16_t>(Form::kShape);
    trial->Place(name, "Net_" + path);
    trial->Last().forms.push_back(entry);
  }
}

std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  std::string modules = R"({"path": "", "type": "Net", "name": "Net"})";
  if (!story.parent_path.empty())
    modules += R"(, {"path": ")" + story.parent_path + R"(", "type": ")" + story.parent +
               R"(", "name": "Net_)" + story.parent_path + R"(", "builtin": true})";
  std::string parameters;
  for (const Layer& layer : story.layers) {
    modules += R"(, {"path": ")" + layer.path + R"(", "type": ")" + layer.type + R"(", "name": "Net_)" +
               layer.path + R"(", "builtin": true, "mentioned": )" + (layer.mentioned ? "true" : "false") +
               "}";
    parameters += std::string(parameters.empty() ? "" : ", ") + R"({"path": ")" + layer.path +
                  R"(.weight", "name": "Net_)" + layer.path + R"(.weight", "shape": )" + layer.shape +
                  R"(, "requires_grad": true, "optimizer": )" + layer.optimizer + "}";
  }
  trial.SetDocument("model", R"({"models": [{"name": "Net", "type": "Net", "modules": [)" + modules +
                                 R"(], "parameters": [)" + parameters + R"(]}], "optimizers": [
    {"number": 0, "name": "Adam", "type": "Adam", "foreign": 0, "groups": [{"parameters": 2}]}]})");
  for (int step = 0; step < story.steps; ++step) {
    trial.Step().Loss(1).Event(EventKind::kOptimizerStep, 0);
    for (int i = 0; i < story.calls_of_model; ++i) trial.Event(EventKind::kForward, 7);
    std::string without;
    int count = 0;
    for (const Layer& layer : story.layers) {
      const bool runs = layer.calls > 0 && step >= layer.from;
      if (step < 3 && runs) Runs(&trial, layer.path, layer.calls * story.calls_of_model);
      trial.Tensor("Net_" + layer.path + ".weight", Role::kWeight, {1, 2 + layer.moves * step});
      if (runs) {
        trial.Tensor("gradient/Net_" + layer.path + ".weight", Role::kGradient, {1, 1});
      } else {
        without += std::string(count++ == 0 ? "" : ", ") + "\"Net_" + layer.path + ".weight\"";
      }
    }
    if ((step & (step - 1)) == 0)
      trial.EventJson(R"({"kind": "reach", "without_gradient": [)" + without +
                      R"(], "without_gradient_count": )" + std::to_string(count) +
                      R"(, "foreign": [], "reached_count": 1})");
    if (step == 2) {
      trial.Step(query::Mode::kEval);
      for (const Layer& layer : story.layers)
        if ((layer.calls > 0 && layer.from == 0) || layer.evaluated) Runs(&trial, layer.path, 1);
    }
  }
  return testing::FindingsOf(trial, "NoGradient", ParameterSet::kLuff);
}

TEST(UnusedTwins, AModuleThatNeverRuns_WhileItsTwinRunsThreeTimes_IsNamed) {
  const auto findings = Told({{{.path = "center", .type = "Embedding", .calls = 3},
                               {.path = "outside", .type = "Embedding", .calls = 0}}});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "unused_twin");
  EXPECT_EQ(findings[0].tensor, "Net_outside.weight");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].what.find("three times"), std::string::npos);
  EXPECT_LE(findings[0].step, 130);
}

TEST(UnusedTwins, TheSecondOfThreeLayers_CalledTwice_IsNamed) {
  EXPECT_EQ(Told({{{.path = "fc1"}, {.path = "fc2", .calls = 2}, {.path = "fc3", .calls = 0}}}).size(), 1U);
  EXPECT_EQ(Told({{{.path = "block.conv1", .type = "Conv2d", .calls = 2},
                   {.path = "block.conv2", .type = "Conv2d", .calls = 0},
                   {.path = "block.norm", .type = "BatchNorm2d"}},
                  "Block",
                  "block"})
                .size(),
            1U);
}

TEST(UnusedTwins, RestingHeadsSpareLayersAndSharedOnes_AreSilent) {
  const auto silent = [](const Story& story) { return Told(story).empty(); };
  // Heads of two tasks, one of which rests.
  EXPECT_TRUE(silent({{{.path = "first"}, {.path = "second", .calls = 0}}}));
  // Towers that share their weights: the whole model runs twice.
  EXPECT_TRUE(silent({{{.path = "first"}, {.path = "second", .calls = 0}}, "Net", {}, 2}));
  // A cell that is unrolled over time.
  EXPECT_TRUE(silent({{{.path = "cell", .calls = 5}, {.path = "decoder", .calls = 0}}}));
  // Layers of a list, of which one is applied again and others are spare.
  EXPECT_TRUE(
      silent({{{.path = "layers.0", .calls = 2}, {.path = "layers.1", .calls = 0}}, "ModuleList", "layers"}));
  EXPECT_TRUE(silent({{{.path = "a", .calls = 2}, {.path = "b", .calls = 0}, {.path = "c", .calls = 0}}}));
  // Two layers that are shared on purpose.
  EXPECT_TRUE(silent({{{.path = "a", .calls = 2}, {.path = "b", .calls = 2}, {.path = "c", .calls = 0}}}));
  // Other shapes, or another class.
  EXPECT_TRUE(silent({{{.path = "a", .calls = 2}, {.path = "b", .shape = "[4, 2]", .calls = 0}}}));
  EXPECT_TRUE(silent({{{.path = "a", .calls = 2}, {.path = "b", .type = "Bilinear", .calls = 0}}}));
  EXPECT_TRUE(
      silent({{{.path = "a", .type = "Cell", .calls = 2}, {.path = "b", .type = "Cell", .calls = 0}}}));
}

TEST(UnusedTwins, ModulesOfEvaluationsOfALaterPhaseAndAverages_AreSilent) {
  const auto silent = [](const Story& story) { return Told(story).empty(); };
  EXPECT_TRUE(silent({{{.path = "a", .calls = 2}, {.path = "b", .calls = 0, .evaluated = true}}}));
  EXPECT_TRUE(silent({{{.path = "a", .calls = 2}, {.path = "b", .calls = 1, .from = 60}}}));  // a later phase
  EXPECT_TRUE(
      silent({{{.path = "a", .calls = 2}, {.path = "b", .calls = 0, .moves = 0.1}}}));  // an average of a
  EXPECT_TRUE(silent({{{.path = "a", .calls = 2}, {.path = "b", .calls = 0, .optimizer = "null"}}}));
  EXPECT_TRUE(
      silent({{{.path = "a", .calls = 2}, {.path = "b", .calls = 0}}, "Net", {}, 1, 100}));  // too early
}

TEST(UnusedTwins, AModuleThatAConditionMayChooseLater_IsSilent) {
  // Norms of two domains, of which the second comes late.
  EXPECT_TRUE(Told({{{.path = "a", .calls = 2}, {.path = "b", .calls = 0, .mentioned = true}}}).empty());
  EXPECT_EQ(Told({{{.path = "a", .calls = 2, .mentioned = true}, {.path = "b", .calls = 0}}}).size(), 1U);
}

TEST(UnusedTwins, ALaterPhase_HealsIt) {
  const auto findings =
      Told({{{.path = "a", .calls = 2}, {.path = "b", .calls = 1, .from = 140}}, "Net", {}, 1, 300});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
}

}  // namespace
}  // namespace luff::rules::unused_twins_test

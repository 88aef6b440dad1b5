#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// Rules on the model's structure, on trees, and on another run.
namespace luff::rules::model_structure_test {
namespace {

using format::EventKind;
using format::Form;
using format::Role;
using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial, const std::string& rule,
                                ParameterSet set = ParameterSet::kLuff) {
  return testing::FindingsOf(trial, rule, set);
}

std::string Model(const std::string& encoder_optimizer, const std::string& head_optimizer, int foreign = 0,
                  bool encoder_trains = true) {
  return R"({"models": [{"name": "Net", "type": "Net", "modules": [{"path": "", "type": "Net"}], "parameters": [
    {"path": "enc.weight", "name": "Net_enc.weight", "shape": [4, 4], "requires_grad": )" +
         std::string(encoder_trains ? "true" : "false") + R"(, "optimizer": )" + encoder_optimizer +
         R"(}, {"path": "head.weight", "name": "Net_head.weight", "shape": [4, 2], "requires_grad": true,
    "optimizer": )" +
         head_optimizer +
         R"(}]}], "optimizers": [{"number": 0, "name": "Adam", "type": "Adam", "foreign": )" +
         std::to_string(foreign) + R"(, "groups": [{"parameters": 2}]}]})";
}

struct Story {
  std::string model, reach;
  bool encoder_gradient = false, encoder_runs = true;
  double encoder_value = 1, gradient_value = 1;
  std::string load = {};
};

FakeTrial Tell(const Story& story, int steps = 70) {
  FakeTrial trial;
  trial.SetDocument("model", story.model);
  for (int step = 0; step < steps; ++step) {
    trial.Step().Loss(1).Event(EventKind::kOptimizerStep, 0);
    if (step == 0 && !story.load.empty()) trial.EventJson(story.load);
    if ((step & (step - 1)) == 0) trial.EventJson(story.reach);
    trial.Tensor("Net_enc.weight", Role::kWeight, {story.encoder_value, story.encoder_value});
    trial.Tensor("Net_head.weight", Role::kWeight, {1, 2});
    trial.Tensor("gradient/Net_head.weight", Role::kGradient, {1, 1});
    if (story.encoder_gradient) {
      trial.Tensor("gradient/Net_enc.weight", Role::kGradient, {story.gradient_value, story.gradient_value});
    }
  }
  return trial;
}

constexpr const char* kAll =
    R"({"kind": "reach", "without_gradient": [], "without_gradient_count": 0, "foreign": [],
  "reached_count": 2})";
constexpr const char* kNoEncoder = R"({"kind": "reach", "without_gradient": ["Net_enc.weight"],
  "without_gradient_count": 1, "foreign": [], "reached_count": 1})";

TEST(ParamNotOptimized, APartThatGetsGradients_Warns_AllOfIt_Stops) {
  const auto part = FindingsOf(Tell({Model("null", "\"Adam\""), kAll}), "ParamNotOptimized");
  ASSERT_EQ(part.size(), 1U);
  EXPECT_EQ(part[0].tensor, "Net_enc.weight");
  EXPECT_EQ(part[0].severity, Severity::kWarn);
  EXPECT_LE(part[0].step, 8);
  FakeTrial copy = Tell({Model("null", "null", 2), kAll});
  const auto all = FindingsOf(copy, "OptimizerDetached");
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].severity, Severity::kStop);
}

TEST(ParamNotOptimized, FrozenPartsUnreachedPartsAndLoadedParts_AreSilent) {
  EXPECT_TRUE(FindingsOf(Tell({Model("null", "\"Adam\"", 0, false), kAll}), "ParamNotOptimized").empty());
  EXPECT_TRUE(FindingsOf(Tell({Model("null", "\"Adam\""), kNoEncoder}), "ParamNotOptimized").empty());
  Story loaded{Model("null", "\"Adam\""), kAll};
  loaded.load = R"({"kind": "load_state_dict", "model": "Net", "matched": 2, "missing": []})";
  EXPECT_TRUE(FindingsOf(Tell(loaded), "ParamNotOptimized").empty());
  EXPECT_TRUE(FindingsOf(Tell({Model("\"Adam\"", "\"Adam\""), kAll}), "ParamNotOptimized").empty());
}

TEST(ParamNotOptimized, AnOptimizerThatIsHandedItsGradients_TrainsACopy_AndAYoungOneMay) {
  Story story{Model("null", "null", 2), kAll};
  story.load = R"({"kind": "gradients_handed", "optimizer": 0})";
  EXPECT_TRUE(FindingsOf(Tell(story), "ParamNotOptimized").empty());
  story.load = R"({"kind": "gradients_handed", "optimizer": 1})";  // another one
  EXPECT_EQ(FindingsOf(Tell(story), "ParamNotOptimized").size(), 1U);
  for (const char* broken :
       {"{}", R"({"kind": "gradients_handed"})", R"({"kind": "gradients_handed", "optimizer": -1})",
        R"({"kind": "gradients_handed", "optimizer": "0"})"}) {
    story.load = broken;
    EXPECT_EQ(FindingsOf(Tell(story), "ParamNotOptimized").size(), 1U);
  }
  // A part of a model that is trained is not a copy.
  story = {Model("null", "\"Adam\"", 1), kAll};
  story.load = R"({"kind": "gradients_handed", "optimizer": 0})";
  EXPECT_EQ(FindingsOf(Tell(story), "ParamNotOptimized").size(), 1U);
  // Updates by optimizers of inner steps, which are gone: the one that holds something has made none.
  FakeTrial young;
  young.SetDocument("model", Model("null", "null", 2));
  for (int step = 0; step < 70; ++step) {
    young.Step().Loss(1).Event(EventKind::kOptimizerStep, step < 40 ? 1 : 0);
    if ((step & (step - 1)) == 0) young.EventJson(kAll);
  }
  const auto late = FindingsOf(young, "ParamNotOptimized");
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0].step, 64);
}

// The optimizer of an older copy makes its updates, and there is another one.
TEST(ParamNotOptimized, AnotherOptimizer_ThatTrainsSomethingElse_OrNeverSteps_ExcusesNothing) {
  const auto told = [](bool older, bool other, const std::string& reach) {
    std::string model = Model("null", "null", 2);
    const std::size_t end = model.rfind(']');
    model.insert(
        end, R"(, {"number": 1, "name": "SGD", "type": "SGD", "foreign": 1, "groups": [{"parameters": 1}]})");
    FakeTrial trial;
    trial.SetDocument("model", model);
    for (int step = 0; step < 70; ++step) {
      trial.Step().Loss(1);
      if (older) trial.Event(EventKind::kOptimizerStep, 0);
      if (other) trial.Event(EventKind::kOptimizerStep, 1);
      if ((step & (step - 1)) == 0) trial.EventJson(reach);
    }
    return FindingsOf(trial, "ParamNotOptimized");
  };
  const std::string latents = R"({"kind": "reach", "without_gradient": [], "without_gradient_count": 0,
    "foreign": [{"shape": [90, 8], "optimizer": "SGD"}], "reached_count": 2})";
  for (const auto& findings : {told(true, true, latents), told(true, false, kAll)}) {
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].severity, Severity::kStop);
  }
  // One of a training before, which no longer steps; the latents may be all that is to be trained.
  EXPECT_TRUE(told(false, true, latents).empty());
}

TEST(ParamNotOptimized, AnOptimizerWhoseTensorsThePassReaches_TrainsThem) {
  const std::string reach = R"({"kind": "reach", "without_gradient": [], "without_gradient_count": 0,
    "foreign": [{"shape": [8, 8], "optimizer": "Adam"}, {"shape": [9], "optimizer": "Adam"}], "reached_count": 2})";
  EXPECT_TRUE(FindingsOf(Tell({Model("null", "null", 2), reach}), "ParamNotOptimized").empty());
}

TEST(ParamNotOptimized, AnOlderCopyThatAPenaltyReaches_IsSilent) {
  const auto reach = [](const std::string& shapes) {
    std::string foreign;
    for (const char* shape : {"[4, 4]", "[4, 2]", "[7, 2]"})
      if (shapes.find(shape) != std::string::npos)
        foreign +=
            std::string(foreign.empty() ? "" : ", ") + R"({"shape": )" + shape + R"(, "optimizer": null})";
    return R"({"kind": "reach", "without_gradient": [], "without_gradient_count": 0, "foreign": [)" +
           foreign + R"(], "reached_count": 2})";
  };
  const std::string model = Model("\"Adam\"", "\"Adam\"");
  EXPECT_TRUE(FindingsOf(Tell({model, reach("[4, 4] [4, 2]")}), "ParamNotOptimized").empty());
  EXPECT_EQ(FindingsOf(Tell({model, reach("[4, 4]")}), "ParamNotOptimized").size(), 1U);
  EXPECT_EQ(FindingsOf(Tell({model, reach("[4, 4] [4, 2] [7, 2]")}), "ParamNotOptimized").size(), 1U);
}

TEST(ParamNotOptimized, LeavesOutsideOfTheModel_Warn_InputsAndHeldOnesAreSilent) {
  const auto reach = [](const std::string& optimizer) {
    return R"({"kind": "reach", "without_gradient": [], "without_gradient_count": 0,
      "foreign": [{"shape": [4, 3], "optimizer": )" +
           optimizer + R"(}], "reached_count": 2})";
  };
  const std::string model = Model("\"Adam\"", "\"Adam\"");
  EXPECT_EQ(FindingsOf(Tell({model, reach("null")}), "UnregisteredParameter").at(0).cause, "unregistered");
  EXPECT_TRUE(FindingsOf(Tell({model, reach("\"Adam\"")}), "ParamNotOptimized").empty());
  FakeTrial input;
  input.SetDocument("model", model);
  for (int step = 0; step < 20; ++step) {
    input.Step()
        .Event(EventKind::kOptimizerStep, 0)
        .Sample("sample/Net_input_0", {4, 3}, std::vector<double>(12, 1.0));
    input.EventJson(reach("null"));
  }
  EXPECT_TRUE(FindingsOf(input, "ParamNotOptimized").empty());
}

// The encoder and the head in the order in which they run.
FakeTrial Ran(const std::vector<std::string>& modules, double gradient = 1) {
  FakeTrial trial;
  trial.SetDocument("model", Model("\"Adam\"", "\"Adam\""));
  for (int step = 0; step < 70; ++step) {
    trial.Step().Event(EventKind::kOptimizerStep, 0);
    if ((step & (step - 1)) == 0) trial.EventJson(kNoEncoder);
    if (step == 1) {
      for (const std::string& module : modules) trial.Ran(module);
    }
    trial.Tensor("Net_enc.weight", Role::kWeight, {1, 2}).Place("Net_enc.weight", "enc");
    trial.Tensor("Net_head.weight", Role::kWeight, {1, 2}).Place("Net_head.weight", "head");
    trial.Tensor("gradient/Net_head.weight", Role::kGradient, {gradient, gradient});
  }
  return trial;
}

TEST(NoGradient, PartInFrontOfTheOthers_IsCutOff_OneBehindThemOrThatDidNotRunRests) {
  const auto findings = FindingsOf(Ran({"enc", "head"}), "NoGradient");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "no_gradient");
  EXPECT_EQ(findings[0].tensor, "Net_enc.weight");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 15);
  EXPECT_TRUE(FindingsOf(Ran({"head", "enc"}), "NoGradient").empty());
  EXPECT_TRUE(FindingsOf(Ran({"head"}), "NoGradient").empty());
}

TEST(NoGradient, ASoftmaxOverOneValue_IsToldAfterFiveUpdates) {
  const auto told = [](const std::string& layers, const std::string& later = "") {
    FakeTrial trial;
    trial.SetDocument("model", Model("\"Adam\"", "\"Adam\""));
    for (int step = 0; step < 40; ++step) {
      trial.Step().Event(EventKind::kOptimizerStep, 0);
      if (step == 1) trial.EventJson(R"({"kind": "softmax_of_one", "layers": )" + layers + "}");
      if (step == 2 && !later.empty())
        trial.EventJson(R"({"kind": "softmax_of_one", "layers": )" + later + "}");
    }
    return FindingsOf(trial, "NoGradient");
  };
  const auto findings = told(R"(["Net_enc.weight"])");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "softmax_of_one");
  EXPECT_EQ(findings[0].tensor, "Net_enc.weight");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_TRUE(told(R"(["Net_enc.weight"])", "[]").empty());  // another model, or another length
  EXPECT_TRUE(told(R"(["unknown"])").empty());
  EXPECT_TRUE(told(R"([3, {"a": 1}])").empty());
  EXPECT_TRUE(told("null").empty());
}

TEST(NoGradient, ATermWithoutAGraph_IsToldOnce_WhereNoGradientEverComes) {
  struct Event {
    int step;
    std::string text;
  };
  const auto term = [](const std::string& layers, const std::string& lost = "argument") {
    return R"({"kind": "graphless_term", "loss": "MSELoss", "lost": ")" + lost + R"(", "layers": )" + layers +
           "}";
  };
  const auto told = [](const std::vector<Event>& events, int steps = 70, int gradient_from = 1000,
                       const char* reach = kNoEncoder) {
    FakeTrial trial;
    trial.SetDocument("model", Model("\"Adam\"", "\"Adam\""));
    for (int step = 0; step < steps; ++step) {
      trial.Step().Event(EventKind::kOptimizerStep, 0);
      if ((step & (step - 1)) == 0) trial.EventJson(step < gradient_from ? reach : kAll);
      for (const Event& event : events) {
        if (event.step == step) trial.EventJson(event.text);
      }
      trial.Ran("head").Ran("enc");  // it may rest
      trial.Tensor("Net_enc.weight", Role::kWeight, {1, 2}).Place("Net_enc.weight", "enc");
      trial.Tensor("Net_head.weight", Role::kWeight, {1, 2}).Place("Net_head.weight", "head");
      trial.Tensor("gradient/Net_head.weight", Role::kGradient, {1, 1});
      if (step >= gradient_from) trial.Tensor("gradient/Net_enc.weight", Role::kGradient, {1, 1});
    }
    return FindingsOf(trial, "NoGradient");
  };
  const std::string encoder = R"(["Net_enc.weight"])";
  for (const char* lost : {"argument", "value"}) {
    const auto findings = told({{3, term(encoder, lost)}});
    ASSERT_EQ(findings.size(), 1U) << lost;
    EXPECT_EQ(findings[0].cause, "graphless_term");
    EXPECT_EQ(findings[0].tensor, "Net_enc.weight");
    EXPECT_EQ(findings[0].severity, Severity::kWarn);
    EXPECT_EQ(findings[0].step, 47);
    EXPECT_EQ(findings[0].remedy.find(".item()") != std::string::npos, std::string(lost) == "value");
    EXPECT_FALSE(findings[0].healed);
  }
  EXPECT_TRUE(told({}).empty());                                     // a head that rests
  EXPECT_TRUE(told({{3, term(encoder)}}, 47).empty());               // a planned beginning
  EXPECT_TRUE(told({{3, term(encoder)}}, 70, 20).empty());           // likewise
  EXPECT_TRUE(told({{3, term(encoder)}, {9, term("[]")}}).empty());  // taken back
  EXPECT_TRUE(told({{3, term(R"(["Net_head.weight"])")}}).empty());  // it has gradients
  EXPECT_TRUE(told({{3, term(encoder)}}, 70, 1000, kAll).empty());   // something reaches it
  EXPECT_TRUE(told({{3, term("null")}, {4, R"({"kind": "graphless_term"})"}}).empty());
  EXPECT_TRUE(told({{3, R"({"kind": "graphless_term", "loss": 3, "layers": ["Net_enc.weight"]})"}}).empty());
  const auto later = told({{3, term(encoder)}}, 140, 100);
  ASSERT_EQ(later.size(), 1U);
  EXPECT_TRUE(later[0].healed);
  const auto at_once = told({{3, term(encoder)}}, 101, 100);  // a term that a curriculum switches on
  ASSERT_EQ(at_once.size(), 1U);
  EXPECT_TRUE(at_once[0].healed);
}

TEST(NoGradient, FactorsThatAreAllZero_AreToldAfterFiveUpdates) {
  Story story{Model("\"Adam\"", "\"Adam\""), kAll, true};
  story.encoder_value = 0;
  story.gradient_value = 0;
  const auto findings = FindingsOf(Tell(story), "AdapterNotTraining");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "zero_gradient");
  EXPECT_EQ(findings[0].step, 4);
  story.encoder_value = 1;  // zero gradients alone may be dead units or a resting branch
  EXPECT_TRUE(FindingsOf(Tell(story), "NoGradient").empty());
  story.gradient_value = 1e-30;
  story.encoder_value = 0;
  EXPECT_TRUE(FindingsOf(Tell(story), "NoGradient").empty());
}

TEST(NoGradient, EveryGradientIsZeroFromTheStart_Warns_AFirstRewardLaterIsSilent) {
  const auto story = [](int first_reward, const std::string& event = "") {
    FakeTrial trial;
    trial.SetDocument("model", Model("\"Adam\"", "\"Adam\""));
    for (int step = 0; step < 100; ++step) {
      const double gradient = step < first_reward ? 0 : 1;
      trial.Step().Loss(0).Event(EventKind::kOptimizerStep, 0);
      if ((step & (step - 1)) == 0) trial.EventJson(kAll);
      if (step == 0 && !event.empty()) trial.EventJson(event);
      trial.Tensor("Net_enc.weight", Role::kWeight, {1, 2}).Tensor("Net_head.weight", Role::kWeight, {1, 2});
      trial.Tensor("gradient/Net_enc.weight", Role::kGradient, {0, 0});
      trial.Tensor("gradient/Net_head.weight", Role::kGradient, {gradient, 0});
    }
    return FindingsOf(trial, "NoGradient");
  };
  const auto findings = story(1000);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "all_zero");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 47);
  EXPECT_TRUE(story(30).empty());
  EXPECT_EQ(findings[0].remedy.find("ReLU"), std::string::npos);
  const auto silenced =
      story(1000, R"({"kind": "loss_input", "loss": "MSELoss", "call": 0, "made_by": "relu"})");
  ASSERT_EQ(silenced.size(), 1U);
  EXPECT_NE(silenced[0].remedy.find("ReLU"), std::string::npos);
  const auto beside = FindingsOf(Ran({"head"}, 0), "NoGradient");  // a part that rests has none at all
  ASSERT_EQ(beside.size(), 1U);
  EXPECT_EQ(beside[0].cause, "all_zero");
}

// A recurrent layer; `state` and `back` are gradients of the weights for the state of its two directions.
std::vector<Finding> OfRecurrent(double state, double back, double input = 1) {
  FakeTrial trial;
  const std::vector<std::string> names = {"rnn.weight_ih_l0", "rnn.weight_hh_l0", "rnn.weight_ih_l0_reverse",
                                          "rnn.weight_hh_l0_reverse"};
  std::string parameters;
  for (const std::string& name : names) {
    parameters += std::string(parameters.empty() ? "" : ", ") + R"({"path": ")" + name +
                  R"(", "name": "Net_)" + name +
                  R"(", "shape": [4, 4], "requires_grad": true, "optimizer": "Adam"})";
  }
  trial.SetDocument(
      "model", R"({"models": [{"name": "Net", "type": "Net", "modules": [], "parameters": [)" + parameters +
                   R"(]}], "optimizers": [{"number": 0, "name": "Adam", "type": "Adam", "foreign": 0,
    "groups": [{"parameters": 4}]}]})");
  for (int step = 0; step < 40; ++step) {
    trial.Step().Loss(1).Event(EventKind::kOptimizerStep, 0);
    for (const std::string& name : names) {
      const bool of_state = name.find("_hh") != std::string::npos;
      const double gradient = !of_state ? input : name.ends_with("_reverse") ? back : state;
      trial.Tensor("Net_" + name, Role::kWeight, {1, 2});
      trial.Tensor("gradient/Net_" + name, Role::kGradient, {gradient, 0});
    }
  }
  return FindingsOf(trial, "NoGradient");
}

TEST(NoGradient, AStateThatIsNeverUsed_IsTold_OneThatVanishesOrOfADeadLayerIsNot) {
  const auto back = OfRecurrent(1, 0);
  ASSERT_EQ(back.size(), 1U);
  EXPECT_EQ(back[0].cause, "backward_unused");
  EXPECT_EQ(back[0].tensor, "Net_rnn.weight_hh_l0_reverse");
  EXPECT_EQ(back[0].severity, Severity::kWarn);
  EXPECT_EQ(back[0].step, 15);
  const auto first = OfRecurrent(0, 1);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].cause, "first_step_only");
  EXPECT_EQ(OfRecurrent(0, 0).size(), 2U);
  EXPECT_TRUE(OfRecurrent(1e-30, 1e-30).empty());
  for (const Finding& finding : OfRecurrent(0, 0, 0)) EXPECT_EQ(finding.cause, "all_zero");
}

TEST(NoGradient, AnOptimizerOfAnotherNetwork_Stops_OneOfAPartDoesNot) {
  const auto told = [](int held) {
    FakeTrial trial;
    trial.SetDocument("model", R"({"models": [
      {"name": "Net", "type": "Net", "modules": [], "parameters": [
        {"path": "w.weight", "name": "Net_w.weight", "shape": [4], "requires_grad": true, "optimizer": null}]},
      {"name": "Net_1", "type": "Net", "modules": [], "parameters": [
        {"path": "w.weight", "name": "Net_1_w.weight", "shape": [4], "requires_grad": true, "optimizer": "Adam"}]}],
      "optimizers": [{"number": 0, "name": "Adam", "type": "Adam", "foreign": 0, "groups": [{"parameters": )" +
                                   std::to_string(held) + "}]}]}");
    for (int step = 0; step < 70; ++step) {
      trial.Step().Loss(1).Event(EventKind::kOptimizerStep, 0).Ran("w");
      if ((step & (step - 1)) == 0) {
        trial.EventJson(
            R"({"kind": "reach", "without_gradient": ["Net_1_w.weight"], "without_gradient_count": 1,
          "foreign": [], "reached_count": 1})");
      }
      trial.Tensor("Net_1_w.weight", Role::kWeight, {1, 2});
    }
    return FindingsOf(trial, "NoGradient");
  };
  const auto findings = told(1);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "no_gradient");
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 47);
  EXPECT_NE(findings[0].what.find("Adam"), std::string::npos);
  EXPECT_TRUE(told(2).empty());
}

// Two optimizers; the backward pass reaches the parameter of the first only. `together`: both step in each
// step; else only the second steps where the first's parameter is reached. `from`: the step in which the
// second's is.
std::vector<Finding> OfTwoOptimizers(bool together, int from = 1000, const char* owner = "\"Adam\"") {
  FakeTrial trial;
  trial.SetDocument("model", std::string(R"({"models": [
      {"name": "Net", "type": "Net", "modules": [], "parameters": [
        {"path": "a.weight", "name": "Net_a.weight", "shape": [4], "requires_grad": true, "optimizer": )") +
                                 owner + R"(},
        {"path": "b.weight", "name": "Net_b.weight", "shape": [4], "requires_grad": true, "optimizer": "Adam_2"}]}],
      "optimizers": [{"number": 0, "name": "Adam", "type": "Adam", "foreign": 0, "groups": [{"parameters": 1}]},
        {"number": 1, "name": "Adam_2", "type": "Adam", "foreign": 0, "groups": [{"parameters": 1}]}]})");
  for (int step = 0; step < 140; ++step) {
    trial.Step().Loss(1).Event(EventKind::kOptimizerStep, 1).Ran("a").Ran("b");
    if (together) trial.Event(EventKind::kOptimizerStep, 0);
    if ((step & (step - 1)) == 0) {
      trial.EventJson(step < from ? R"({"kind": "reach", "without_gradient": ["Net_b.weight"],
          "without_gradient_count": 1, "foreign": [], "reached_count": 1})"
                                  : R"({"kind": "reach", "without_gradient": [], "without_gradient_count": 0,
          "foreign": [], "reached_count": 2})");
    }
    trial.Tensor("gradient/Net_a.weight", Role::kGradient, {1, 2});
    if (step >= from) trial.Tensor("gradient/Net_b.weight", Role::kGradient, {1, 2});
  }
  return FindingsOf(trial, "NoGradient");
}

TEST(NoGradient, TwoOptimizersExchanged_Warn_AHeadThatBeginsLateIsSilent) {
  const auto exchanged = OfTwoOptimizers(false);
  ASSERT_EQ(exchanged.size(), 1U);
  EXPECT_NE(exchanged[0].remedy.find("exchanged"), std::string::npos);
  const auto copy = OfTwoOptimizers(false, 1000, "null");  // no optimizer holds what is reached
  ASSERT_EQ(copy.size(), 1U);
  EXPECT_NE(copy[0].what.find("Adam_2"), std::string::npos);
  EXPECT_TRUE(OfTwoOptimizers(true, 100).empty());  // its loss is added after 100 steps
  EXPECT_TRUE(OfTwoOptimizers(true).empty());       // after all of these
  EXPECT_TRUE(OfTwoOptimizers(false, 4).empty());
}

TEST(NoGradient, NothingIsReached_Stops) {
  FakeTrial trial;
  trial.SetDocument("model", Model("\"Adam\"", "\"Adam\""));
  for (int step = 0; step < 10; ++step) {
    trial.Step().Event(EventKind::kOptimizerStep, 0);
    trial.EventJson(R"({"kind": "reach", "without_gradient": ["Net_enc.weight", "Net_head.weight"],
      "without_gradient_count": 2, "foreign": [], "reached_count": 0})");
  }
  const auto findings = FindingsOf(trial, "NoGradient");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 4);
}

TEST(FrozenAtInit, PrefixInTheFile_Stops_ASecondFileAndOtherFrozenPartsAreSilent) {
  const std::string frozen = Model("null", "\"Adam\"", 0, false);
  Story story{frozen, kAll};
  story.load = R"({"kind": "load_state_dict", "model": "Net", "strict": false, "matched": 0,
    "missing": ["enc.weight", "head.weight"], "missing_count": 2,
    "unexpected": ["module.enc.weight", "module.head.weight"], "unexpected_count": 2})";
  const auto findings = FindingsOf(Tell(story), "FrozenAtInit");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].tensor, "Net_enc.weight");
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_LE(findings[0].step, 3);
  FakeTrial second = Tell(story, 1);
  second.EventJson(
      R"({"kind": "load_state_dict", "model": "Net", "matched": 2, "missing": [], "missing_count": 0})");
  for (int step = 0; step < 20; ++step) second.Step().Event(EventKind::kOptimizerStep, 0);
  EXPECT_TRUE(FindingsOf(second, "FrozenAtInit").empty());
  EXPECT_TRUE(FindingsOf(Tell({frozen, kAll}), "FrozenAtInit").empty());
  story.model = Model("\"Adam\"", "\"Adam\"");  // not frozen, so it is trained
  EXPECT_TRUE(FindingsOf(Tell(story), "FrozenAtInit").empty());
}

TEST(FrozenAtInit, AStateThatIsTheModelItself_IsTold_AfterTheFirstUpdate) {
  const auto loads = [](int updates, int own, query::Mode mode = query::Mode::kEval) {
    FakeTrial trial;
    for (int step = 0; step < updates; ++step) trial.Step().Loss(1).Event(EventKind::kOptimizerStep, 0);
    trial.Step(mode).EventJson(R"({"kind": "load_state_dict", "model": "Net", "matched": 4, "own": )" +
                               std::to_string(own) + R"(, "missing": []})");
    return FindingsOf(trial, "FrozenAtInit");
  };
  const auto findings = loads(20, 4);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "loads_itself");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(loads(1, 4, query::Mode::kTrain).size(), 1U);
  EXPECT_TRUE(loads(0, 4, query::Mode::kTrain).empty());  // nothing was kept before the first update
  EXPECT_TRUE(loads(20, 0).empty());                      // a copy, or a file
  EXPECT_TRUE(loads(20, 3).empty());                      // tied weights of two models
}

// Four layers of a body that is frozen, and a head. `weight` makes the values of a layer's weight.
std::vector<Finding> Frozen(const std::function<double(std::mt19937&, int)>& weight, bool loads = false,
                            const std::string& beside = "", int layers = 4) {
  std::string parameters =
      R"({"path": "head.weight", "name": "Net_head.weight", "shape": [4, 32], "optimizer": "Adam"})" + beside;
  for (int layer = 0; layer < layers; ++layer)
    parameters += R"(, {"path": "body.)" + std::to_string(layer) + R"(.weight", "name": "Net_body.)" +
                  std::to_string(layer) + R"(.weight", "shape": [32, 16], "requires_grad": false})";
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [{"name": "Net", "type": "Net", "parameters": [)" + parameters +
                                 R"(]}], "optimizers": [{"number": 0, "name": "Adam"}]})");
  for (int step = 0; step < 24; ++step) {
    trial.Step().Loss(1).Event(EventKind::kOptimizerStep, 0);
    if (loads && step == 0)
      trial.EventJson(R"({"kind": "load_state_dict", "model": "Net", "matched": 4, "missing": []})");
    if (step > 1) continue;
    std::mt19937 random(7);
    for (int layer = 0; layer < layers; ++layer) {
      std::vector<double> values(512);
      for (double& value : values) value = weight(random, layer);
      trial.Tensor("Net_body." + std::to_string(layer) + ".weight", Role::kWeight, values);
    }
  }
  return FindingsOf(trial, "FrozenAtInit");
}

TEST(FrozenAtInit, MostLayersFrozenAsDrawn_WithoutAnyFile_AreNamed) {
  const auto even = [](std::mt19937& random, int) {
    return std::uniform_real_distribution<double>(-0.25, 0.25)(random);
  };
  const auto normal = [](std::mt19937& random, int) {
    return std::normal_distribution<double>(0, 0.25)(random);  // He's: sqrt(2 / 32)
  };
  const auto findings = Frozen(even);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "never_loaded");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].other_tensors.size(), 3U);
  EXPECT_EQ(findings[0].step, 15);
  EXPECT_EQ(Frozen(normal).size(), 1U);
}

TEST(FrozenAtInit, LoadedTrainedAndRandomOnPurpose_AreSilent) {
  const auto even = [](std::mt19937& random, int) {
    return std::uniform_real_distribution<double>(-0.25, 0.25)(random);
  };
  EXPECT_TRUE(Frozen(even, true).empty());
  EXPECT_TRUE(Frozen(even, false, "", 2).empty());                                        // random features
  EXPECT_TRUE(Frozen([&](auto& random, int) { return even(random, 0) * 1.1; }).empty());  // trained since
  EXPECT_TRUE(
      Frozen([](auto& random, int) { return std::normal_distribution<double>(0, 0.2)(random); }).empty());
  EXPECT_TRUE(
      Frozen([&](auto& random, int layer) { return even(random, 0) * (layer == 2 ? 0.5 : 1); }).empty());
  EXPECT_TRUE(Frozen(even, false,
                     R"(, {"path": "online.0.weight", "name": "Net_online.0.weight", "shape": [32, 16]},
                        {"path": "online.1.weight", "name": "Net_online.1.weight", "shape": [32, 16]})")
                  .empty());  // copies of what is trained
  EXPECT_TRUE(
      Frozen(even, false, R"(, {"path": "body.0.mask", "name": "Net_body.0.mask", "shape": [32, 16]})")
          .empty());
  EXPECT_TRUE(
      Frozen(even, false, R"(, {"path": "body.down", "name": "Net_body.down", "shape": [8, 16]})").empty());
}

// `local`: updates that each makes before the other does.
// `shared`: both get the same batches. `asked`: how many of them evaluations ask.
FakeTrial Replicas(double second_start, double drift, int average_every = 0, int local = 0,
                   bool shared = false, int asked = 0, const std::string& set = "") {
  FakeTrial trial;
  const auto model = [](const char* name, const char* optimizer) {
    return std::string(R"({"name": ")") + name +
           R"(", "type": "Net", "modules": [{"path": "", "type": "Net", "number": )" +
           (name == std::string("Net") ? "0" : "1") + R"(}], "parameters": [{"path": "w", "name": ")" + name +
           R"(_w", "shape": [2], "requires_grad": true, "optimizer": ")" + optimizer + R"("}]})";
  };
  trial.SetDocument(
      "model", R"({"models": [)" + model("Net", "SGD") + ", " + model("Net_2", "SGD_2") +
                   R"(], "optimizers": [{"number": 0, "name": "SGD"}, {"number": 1, "name": "SGD_2"}]})");
  double apart = 0;
  for (int step = 0; step < (local > 0 ? 120 : 60); ++step) {
    trial.Step();
    if (local == 0 || step / local % 2 == 0) trial.Event(EventKind::kOptimizerStep, 0);
    if (local == 0 || step / local % 2 == 1) trial.Event(EventKind::kOptimizerStep, 1);
    trial.Event(EventKind::kBatch, 0, static_cast<std::uint64_t>(2 * step + 1));
    trial.Event(EventKind::kBatch, 1, static_cast<std::uint64_t>(2 * step + (shared ? 1 : 2)));
    trial.Tensor("Net_w", Role::kWeight, {1, 2}).Tensor("Net_2_w", Role::kWeight, {second_start + apart, 2});
    trial.Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, 0.1);
    trial.Scalar("optimizer/SGD_2.group0.lr", Role::kOptimizerSetting, 0.1);
    if (step == 3 && !set.empty()) trial.EventJson(set);
    if (step == 10 && asked > 0) {
      trial.Step(query::Mode::kEval);
      for (std::uint32_t number = 0; number < static_cast<std::uint32_t>(asked); ++number)
        trial.Event(EventKind::kBatch, number, 7);
    }
    const bool together = step < 2 * local || (average_every > 0 && step % average_every == 0);
    apart = together ? 0 : apart + drift;
  }
  return trial;
}

TEST(ReplicaDivergence, EqualAtFirstAndThenApart_Stops) {
  const auto findings = FindingsOf(Replicas(1, 0.01), "ReplicaDivergence");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_LE(findings[0].step, 20);
  EXPECT_TRUE(FindingsOf(Replicas(1, 0), "ReplicaDivergence").empty());
  EXPECT_TRUE(FindingsOf(Replicas(1.5, 0.01), "ReplicaDivergence").empty());   // an ensemble
  EXPECT_TRUE(FindingsOf(Replicas(1, 0.01, 8), "ReplicaDivergence").empty());  // averaged now and then
  EXPECT_EQ(FindingsOf(Replicas(1, 0.01, 0, 1), "ReplicaDivergence").size(), 1U);
  EXPECT_TRUE(FindingsOf(Replicas(1, 0.01, 0, 8), "ReplicaDivergence").empty());  // clients of a federation
}

TEST(ReplicaDivergence, ArmsOfAComparison_AreSilent) {
  EXPECT_TRUE(FindingsOf(Replicas(1, 0.01, 0, 0, true), "ReplicaDivergence").empty());  // the same batches
  EXPECT_EQ(FindingsOf(Replicas(1, 0.01, 0, 0, false, 1), "ReplicaDivergence").size(), 1U);
  EXPECT_TRUE(FindingsOf(Replicas(1, 0.01, 0, 0, false, 2), "ReplicaDivergence").empty());
}

TEST(ReplicaDivergence, NeighboursThatAverageTheirWeights_AreSilent) {
  const auto told = [](const std::string& number) {
    return FindingsOf(
        Replicas(1, 0.01, 0, 0, false, 0, R"({"kind": "weights_set", "optimizer": )" + number + "}"),
        "ReplicaDivergence");
  };
  EXPECT_TRUE(told("1").empty());
  EXPECT_EQ(told("7").size(), 1U);
  EXPECT_EQ(told("null").size(), 1U);
}

}  // namespace
}  // namespace luff::rules::model_structure_test

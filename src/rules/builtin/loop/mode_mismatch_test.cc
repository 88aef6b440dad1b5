#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::mode_mismatch_test {
namespace {

using format::EventKind;
using testing::FakeTrial;

constexpr std::uint64_t kTraining = 1U << 8, kSomeTrain = 1U << 9, kSomeEval = 1U << 10,
                        kGradients = 1U << 11, kTold = 1U << 12;

// A student and the teacher that it learns from.
struct Story {
  std::uint64_t teacher = kTold | kTraining | kSomeTrain;  // bits of its calls
  bool moves = false, in_training = false, same_batch = true;
  int from = 0, steps = 80, evaluated_at = -1, times = 1;
  std::string optimizer = "null";
  bool frozen_stem = false;     // the first weight moves in neither
  bool trained_before = false;  // with an optimizer of its own, in the first 20 steps
};

std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [
    {"name": "Net", "type": "Net", "modules": [{"path": "", "type": "Net", "number": 1}],
     "parameters": [{"path": "a.weight", "name": "Net_a.weight", "shape": [4, 2], "optimizer": "Adam"}]},
    {"name": "Teacher", "type": "Net", "modules": [{"path": "", "type": "Net", "number": 2}],
     "parameters": [{"path": "a.stem", "name": "Teacher_a.stem", "shape": [4, 2], "optimizer": null},
      {"path": "a.weight", "name": "Teacher_a.weight", "shape": [4, 2], "optimizer": )" +
                                 story.optimizer + R"(}]}],
    "optimizers": [{"number": 0, "name": "Adam"}, {"number": 1, "name": "SGD"}]})");
  double weight = 1;
  const int before = story.trained_before ? 20 : 0;
  for (int step = 0; step < before; ++step) {
    trial.Step()
        .Loss(1)
        .Event(EventKind::kForward, 2, kTold | kTraining | kSomeTrain | kGradients)
        .Event(EventKind::kBatch, 2, static_cast<std::uint64_t>(step))
        .Event(EventKind::kOptimizerStep, 1);
  }
  for (int step = 0; step < story.steps; ++step) {
    const auto batch = static_cast<std::uint64_t>(step % 10);
    const auto ask = [&](std::uint64_t bits) {
      trial.Event(EventKind::kForward, 2, bits)
          .Event(EventKind::kBatch, 2, story.same_batch ? batch : batch + 100);
    };
    const bool asks = step >= story.from;
    if (asks && !story.in_training) {
      trial.Step(query::Mode::kEval);
      for (int time = 0; time < story.times; ++time) ask(story.teacher);
    }
    trial.Step()
        .Loss(1)
        .Event(EventKind::kForward, 1, kTold | kTraining | kSomeTrain | kGradients)
        .Event(EventKind::kBatch, 1, batch);
    if (asks && story.in_training) ask(story.teacher);
    if (step == story.evaluated_at) ask(kTold | kSomeEval);
    if (story.moves) weight *= 0.999;
    if (story.frozen_stem && step % 4 == 0) trial.Tensor("Teacher_a.stem", format::Role::kWeight, {1, 2});
    if (step % 4 == 0)
      trial.Tensor("Net_a.weight", format::Role::kWeight, {0.1 * step})
          .Tensor("Teacher_a.weight", format::Role::kWeight, {weight, 2});
    trial.Event(EventKind::kOptimizerStep, 0);
  }
  std::vector<Finding> found;
  for (Finding& finding : testing::FindingsOf(trial, "ModeMismatch", ParameterSet::kLuff))
    if (finding.cause == "teacher") found.push_back(std::move(finding));
  return found;
}

TEST(ModeMismatch, ATeacherInTrainingMode_IsTold) {
  const auto findings = Told({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].tensor, "Teacher");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 31);
  EXPECT_EQ(findings[0].since_step, 0);
  EXPECT_NE(findings[0].remedy.find("eval() on it (Teacher)"), std::string::npos);
  EXPECT_EQ(Told({.in_training = true}).size(), 1U);
  EXPECT_EQ(Told({.from = 20}).size(), 1U);
  EXPECT_EQ(Told({.trained_before = true}).size(), 1U);
}

TEST(ModeMismatch, TeachersThatAreMeantAsTheyAre_AreSilent) {
  EXPECT_TRUE(Told({.teacher = kTold | kSomeEval}).empty());  // in evaluation mode
  EXPECT_TRUE(Told({.teacher = kTold | kTraining}).empty());  // without dropout or batch normalisation
  EXPECT_TRUE(Told({.teacher = 0}).empty());                  // not known
  EXPECT_TRUE(Told({.moves = true}).empty());                 // an average of the student
  EXPECT_TRUE(Told({.same_batch = false}).empty());           // makes other samples
  EXPECT_TRUE(Told({.optimizer = "\"SGD\""}).empty());        // is trained in turn
  EXPECT_TRUE(Told({.moves = true, .frozen_stem = true}).empty());
  EXPECT_TRUE(Told({.optimizer = "\"Adam\""}).empty());  // is trained, too
  EXPECT_TRUE(Told({.times = 4}).empty());               // the mean over its masks
  EXPECT_TRUE(Told({.steps = 20}).empty());              // too short to say
  EXPECT_TRUE(Told({.evaluated_at = 10}).empty());       // both modes are used
  EXPECT_TRUE(Told({.teacher = kTold | kTraining | kSomeTrain | kGradients}).empty());  // part of the model
}

// A model without dropout of torch's, that draws masks itself.
struct Masked {
  std::uint32_t number = 1;
  int evaluations = 3, passes = 2, every = 10, rounds = 1;
  bool same_batch = false, asked = true, after_eval = true, trained_batch = false;
};

std::vector<Finding> ToldOfMasks(const Masked& story) {
  FakeTrial trial;
  std::uint64_t batch = 0;
  for (int step = 0; step < 40; ++step) {
    trial.Step()
        .Loss(1)
        .Event(EventKind::kForward, 1, kTold | kTraining | kGradients)
        .Event(EventKind::kBatch, 1, ++batch)
        .Event(EventKind::kOptimizerStep, 0);
    if (step == 12 && story.asked)
      trial.EventJson(R"({"kind":"random_mask","step":10,"number":)" + std::to_string(story.number) +
                      R"(,"p":0.5,"masks":2,"after_eval":)" + (story.after_eval ? "true" : "false") +
                      R"(,"file":"net.py","line":17})");
    if (step % story.every != story.every - 1 || step / story.every >= story.evaluations) continue;
    for (int pass = 0; pass < story.passes * story.rounds; ++pass) {
      const std::uint64_t of_loader = 1000 + pass % story.passes;
      const std::uint64_t next = story.trained_batch ? batch : story.rounds > 1 ? of_loader : ++batch;
      trial.Step(query::Mode::kEval)
          .Event(EventKind::kForward, 1, story.after_eval ? kTold : kTold | kTraining)
          .Event(EventKind::kBatch, 1, story.same_batch ? 7 : next);
    }
  }
  return testing::FindingsOf(trial, "ModeMismatch", ParameterSet::kLuff);
}

TEST(ModeMismatch, MasksThatTheModelDrawsInEvaluations_AreTold) {
  const auto findings = ToldOfMasks({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "dropout");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].what.find("dropout of 0.5 acts in evaluations"), std::string::npos);
  EXPECT_NE(findings[0].what.find("net.py:17"), std::string::npos);
  EXPECT_NE(findings[0].remedy.find("self.training"), std::string::npos);
  const auto switched = ToldOfMasks({.after_eval = false});
  ASSERT_EQ(switched.size(), 1U);
  EXPECT_EQ(switched[0].remedy.find("call model.eval()"), 0U);
}

TEST(ModeMismatch, MasksThatAreMeant_OrOfAModelThatIsNotTrained_AreSilent) {
  EXPECT_TRUE(ToldOfMasks({.asked = false}).empty());
  EXPECT_TRUE(ToldOfMasks({.number = 2}).empty());
  EXPECT_TRUE(ToldOfMasks({.evaluations = 1}).empty());
  EXPECT_TRUE(ToldOfMasks({.passes = 5, .same_batch = true}).empty());  // their mean is wanted
  EXPECT_TRUE(ToldOfMasks({.rounds = 5}).empty());                      // also where all batches come again
  EXPECT_EQ(ToldOfMasks({.rounds = 2}).size(), 1U);
  // Targets that the model makes for itself, before each step or every few steps.
  for (const bool after_eval : {false, true}) {
    EXPECT_TRUE(ToldOfMasks({.evaluations = 40, .passes = 1, .every = 1, .after_eval = after_eval}).empty());
    EXPECT_TRUE(ToldOfMasks({.evaluations = 40, .passes = 1, .every = 4, .after_eval = after_eval}).empty());
  }
  // A look at what was just trained on, in training mode.
  EXPECT_TRUE(ToldOfMasks({.passes = 1, .after_eval = false, .trained_batch = true}).empty());
  EXPECT_EQ(ToldOfMasks({.passes = 1, .trained_batch = true}).size(), 1U);
}

// A loop of Keras that calls its model without `training`, from step 0 on; `other` is told at step 60.
std::vector<Finding> Loop(const std::string& event, const std::string& trained = "net",
                          const std::string& other = "") {
  FakeTrial trial;
  trial.SetDocument("model", R"({"framework": "keras", "models": [
    {"name": "net", "parameters": [{"path": "dense.kernel", "name": "dense/weights/kernel"}]},
    {"name": "teacher", "parameters": [{"path": "dense.kernel", "name": "teacher/dense/weights/kernel"}]}]})");
  for (int step = 0; step < 80; ++step) {
    trial.Step().Loss(1).Event(EventKind::kOptimizerStep, 0);
    trial.Tensor(trained == "net" ? "gradient/dense/weights/kernel" : "gradient/teacher/dense/weights/kernel",
                 format::Role::kGradient, {0.1});
    if (step == 0) trial.EventJson(event);
    if (step == 60 && !other.empty()) trial.EventJson(other);
  }
  return testing::FindingsOf(trial, "ModeMismatch", ParameterSet::kLuff);
}

TEST(ModeMismatch, ALoopOfKerasWithoutTraining_IsNamed) {
  const std::string event = R"({"kind": "mode_not_asked", "model": "net", "dropout": 1, "batch_norm": 2})";
  const auto findings = Loop(event);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "training");
  EXPECT_EQ(findings[0].step, 31);
  EXPECT_NE(findings[0].remedy.find("training=True"), std::string::npos);
  EXPECT_FALSE(findings[0].healed);
  const auto asked =
      Loop(event, "net", R"({"kind": "mode_not_asked", "model": "net", "dropout": 0, "batch_norm": 0})");
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_TRUE(asked[0].healed);
}

TEST(ModeMismatch, AModelOfKerasThatIsNotTrained_OrBrokenEvents_AreSilent) {
  EXPECT_TRUE(Loop(R"({"kind": "mode_not_asked", "model": "net", "dropout": 1, "batch_norm": 0})", "teacher")
                  .empty());
  for (const char* broken :
       {R"({"kind": "mode_not_asked"})", R"({"kind": "mode_not_asked", "model": 3})",
        R"({"kind": "mode_not_asked", "model": "net", "dropout": -1, "batch_norm": "a"})"})
    EXPECT_TRUE(Loop(broken).empty());
}

}  // namespace
}  // namespace luff::rules::mode_mismatch_test

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules::no_better_than_constant_test {
namespace {

using testing::Batch;
using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "NoBetterThanConstant", ParameterSet::kLuff);
}

struct Telling {
  bool fresh = false;  // samples never recur
  double learnt = 0;   // how far scores move towards the right class in training, per pass
  double carried = 0;  // the same in evaluations
  int steps = 240;
  bool evaluate = true;
  const char* beside = nullptr;  // another model that evaluations ask, too, and that answers at random
  double beside_carries = 0;
  int first_phase = 0;     // steps before it in which everything is learnt and carries over, by optimizer 0
  bool next_steps = true;  // the second phase has an optimizer of its own
  bool drawn = false;      // the second phase draws 8 samples for each step, and each fourth is recorded
};

constexpr const char* kModels =
    R"({"models": [{"name": "Net", "parameters": [{"path": "w", "name": "Net.w", "optimizer": "SGD"}]},
        {"name": "Teacher", "parameters": [{"path": "w", "name": "Teacher.w"}]}],
       "optimizers": [{"number": 0, "name": "SGD"}]})";

// 256 samples in batches of 32 (8 steps per pass), and an evaluation of 200 others after every 40 steps.
FakeTrial Story(const Telling& telling) {
  FakeTrial trial;
  trial.SetDocument("model", kModels);
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  const auto scores_of = [&](double id, double strength) {
    std::vector<double> scores(4);
    for (int c = 0; c < 4; ++c)
      scores[static_cast<std::size_t>(c)] = 0.1 * normal(random) + (c == static_cast<int>(id) ? strength : 0);
    return scores;
  };
  std::vector<double> inputs;
  std::vector<double> ids;
  for (int i = 0; i < 256; ++i) {
    inputs.push_back(normal(random));
    ids.push_back(static_cast<double>(random() % 4));
  }
  std::vector<std::size_t> order(256);
  for (std::size_t i = 0; i < 256; ++i) order[i] = i;
  for (int all = 0; all < telling.first_phase + telling.steps; ++all) {
    const bool first = all < telling.first_phase;
    const int step = first ? all : all - telling.first_phase;
    if (step % 8 == 0) std::shuffle(order.begin(), order.end(), random);
    const double passes = step / 8.0;
    const double learnt = first ? 0.2 : telling.learnt;
    const double carried = first ? 0.2 : telling.carried;
    Batch batch;
    const bool draws = telling.drawn && !first;
    for (std::size_t i = 0; i < (draws ? 8 : 32); ++i) {
      const std::size_t at = draws ? random() % 256 : order[static_cast<std::size_t>(step % 8) * 32 + i];
      batch.inputs.push_back(telling.fresh ? normal(random) : inputs[at]);
      batch.ids.push_back(ids[at]);
      const auto scores = scores_of(ids[at], learnt * passes);
      batch.scores.insert(batch.scores.end(), scores.begin(), scores.end());
    }
    if (draws && step % 4 != 0) {
      trial.Step().Loss(1.4);
    } else {
      testing::TellClasses(&trial, batch, 4);
    }
    trial.Event(format::EventKind::kOptimizerStep, first || !telling.next_steps ? 0 : 1);
    if (!telling.evaluate || step % 40 != 39) continue;
    Batch validation;
    for (int i = 0; i < 200; ++i) {
      const double id = static_cast<double>(random() % 4);
      validation.ids.push_back(id);
      const auto scores = scores_of(id, carried * passes);
      validation.scores.insert(validation.scores.end(), scores.begin(), scores.end());
      validation.inputs.push_back(normal(random));
    }
    testing::TellClasses(&trial, validation, 4, query::Mode::kEval);
    if (telling.beside == nullptr) continue;
    Batch others;  // asked without the inputs of the first, whose sample has another name
    others.ids = validation.ids;
    for (const double id : others.ids) {
      const auto scores = scores_of(id, telling.beside_carries);
      for (const double score : scores) others.scores.push_back(20 * score);
    }
    testing::TellClasses(&trial, others, 4, query::Mode::kEval);
    trial.Sample(std::string("sample/") + telling.beside + "_input_0", {200, 1}, validation.inputs);
  }
  return trial;
}

TEST(NoBetterThanConstant, LearntByHeartAndNothingCarriesOver_IsTold) {
  const auto findings = FindingsOf(Story({.learnt = 0.01, .carried = -0.005}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "no_better");
  EXPECT_GE(findings[0].step, 119);
  EXPECT_LE(findings[0].step, 199);
  EXPECT_GT(findings[0].evidence[0].value, 5);  // passes
}

TEST(NoBetterThanConstant, WhatCarriesOver_IsSilent) {
  EXPECT_TRUE(FindingsOf(Story({.learnt = 0.05, .carried = 0.04})).empty());
}

TEST(NoBetterThanConstant, APlateauNeedsManyPasses) {
  EXPECT_TRUE(FindingsOf(Story({.learnt = 0, .carried = -1e-4})).empty());
  EXPECT_EQ(FindingsOf(Story({.learnt = 0, .carried = -1e-4, .steps = 600})).size(), 1U);
}

TEST(NoBetterThanConstant, FreshSamplesAreSilentForEver) {
  EXPECT_TRUE(FindingsOf(Story({.fresh = true, .learnt = 0, .carried = -1e-4, .steps = 2000})).empty());
}

// Random scores are far worse than a constant: pooled with those of the model they would hide what it learns.
TEST(NoBetterThanConstant, AModelAtChanceThatIsAskedBesideIt_IsSilent) {
  EXPECT_TRUE(FindingsOf(Story({.learnt = 0.05, .carried = 0.04, .beside = "Teacher"})).empty());
  EXPECT_TRUE(FindingsOf(Story({.learnt = 0.05, .carried = 0.04, .steps = 600, .beside = "Ema"})).empty());
}

TEST(NoBetterThanConstant, AGoodModelThatIsNotTrained_HidesNothing) {
  const Telling learnt_by_heart = {
      .learnt = 0.01, .carried = -0.005, .beside = "Teacher", .beside_carries = 1};
  EXPECT_EQ(FindingsOf(Story(learnt_by_heart)).size(), 1U);
}

TEST(NoBetterThanConstant, ASecondPhaseIsJudgedByItself) {
  const auto findings =
      FindingsOf(Story({.learnt = 0.01, .carried = -0.005, .steps = 320, .first_phase = 160}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].since_step, 160);
  EXPECT_GE(findings[0].step, 160 + 119);
  EXPECT_TRUE(FindingsOf(Story({.learnt = 0.05, .carried = 0.04, .first_phase = 160})).empty());
  // The same optimizer, as where data change on the way: it was better once.
  EXPECT_TRUE(FindingsOf(Story({.learnt = 0.01, .carried = -0.005, .first_phase = 160, .next_steps = false}))
                  .empty());
}

// Samples are rare by then, and there are no passes over what is drawn at random from a small world.
TEST(NoBetterThanConstant, ASecondPhaseThatDrawsItsSamples_HasNoPasses) {
  EXPECT_TRUE(
      FindingsOf(Story({.learnt = 0, .carried = -1e-4, .steps = 2000, .first_phase = 160, .drawn = true}))
          .empty());
}

TEST(NoBetterThanConstant, WithoutEvaluations_IsSilent) {
  EXPECT_TRUE(FindingsOf(Story({.learnt = 0.01, .carried = 0, .steps = 600, .evaluate = false})).empty());
}

}  // namespace
}  // namespace luff::rules::no_better_than_constant_test

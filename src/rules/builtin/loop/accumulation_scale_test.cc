#include <bit>
#include <cmath>
#include <sstream>

#include <gtest/gtest.h>

#include "base/format.h"
#include "rules/testing/recorder.h"

namespace luff::rules::accumulation_scale_test {
namespace {

using format::EventKind;
using testing::FakeTrial;

struct Story {
  int passes = 4;
  double factor = 1;
  std::string optimizer = "SGD";
  bool added = true, untouched = true, same_batch = false, clipped = false;
  bool sum = false;  // the loss is a sum
  bool cleared = false, multiple = false;
  double norm = 0;  // of the gradients, which are clipped to 2
  int models = 1;
  int windows = 3;
  std::vector<int> targets =
      {};  // names of the passes' targets, in each window; empty: as an older run has it
  std::vector<int> sizes = {};
  bool batches_again = false, more_each_time = false;
  bool moved = false;    // weights, by hand
  bool by_hand = false;  // the first update gets other gradients
  bool unknown = false;  // targets, of a loss that the script writes itself
  int rows = 0;          // of the data, each of which comes again after as many batches; 0: always new ones
  bool reads = false;    // the script speaks of `.grad`
  bool norms = false;    // are asked for before gradients are cleared
};

std::string Listed(const std::vector<int>& numbers) {
  std::string list;
  for (const int number : numbers) list += fmt::format("{}{}", list.empty() ? "" : ", ", number);
  return list;
}

std::string Number(double number) {
  std::ostringstream text;
  text.precision(17);
  text << number;
  return text.str();
}

std::vector<double> Rows(const Story& story, std::uint64_t batch) {
  std::vector<double> rows;
  for (int i = 0; i < 4; ++i) {
    const int row = 4 * static_cast<int>(batch) + i;
    rows.push_back(story.rows > 0 ? row % story.rows : row);
    rows.push_back(0.5);
  }
  return rows;
}

std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  trial.SetDocument("model",
                    fmt::format(R"({{"models": [{{"name": "Net", "type": "Net", "modules": [], "parameters": [
      {{"path": "w", "name": "Net_w", "shape": [4, 4], "requires_grad": true, "optimizer": "O", "group": 0}}]}}],
      "optimizers": [{{"number": 0, "name": "O", "type": "{}", "groups": [{{"parameters": 1}}]}}]}})",
                                story.optimizer));
  std::uint64_t batch = 0;
  for (int window = 0; window < story.windows; ++window) {
    const int passes = story.passes + (story.more_each_time ? window : 0);
    if (story.batches_again) batch = 0;
    for (int pass = 0; pass < passes; ++pass) {
      const std::vector<double> output = {0.5, -1.0, 2.0, 0.25 * pass};
      const std::vector<double> target = {1.0, 0.0, 1.5, -1.0};
      double loss = 0;
      for (std::size_t i = 0; i < 4; ++i) loss += (output[i] - target[i]) * (output[i] - target[i]);
      if (!story.sum) loss /= 4;
      if (!story.same_batch) ++batch;
      trial.Step(query::Mode::kTrain, -1, window)
          .Sample("sample/MSELoss_input_0", {4}, output)
          .Sample("sample/MSELoss_input_1", {4}, target)
          .Sample("sample/Net_input_0", {4, 2}, Rows(story, batch))
          .Loss(loss, "MSELoss_output_0")
          .Event(EventKind::kForward, static_cast<std::uint32_t>(pass % story.models))
          .Event(EventKind::kBatch, 0, story.same_batch ? 7 : batch << 40);
      if (story.norms && pass > 0)
        trial.Event(EventKind::kClipGrad, 0, std::bit_cast<std::uint64_t>(HUGE_VAL));
      if (story.cleared) trial.Event(EventKind::kZeroGrad, 0);
      trial.Event(EventKind::kBackward);
    }
    if (story.clipped) trial.Event(EventKind::kClipGrad);
    if (story.norm > 0) {
      trial.Event(EventKind::kClipGrad)
          .Scalar("clip/norm", format::Role::kOptimizerSetting, story.norm)
          .Scalar("clip/limit", format::Role::kOptimizerSetting, 2);
    }
    trial.Event(EventKind::kOptimizerStep, 0);
    std::string factors;
    std::string unknown;
    for (int pass = 0; pass < passes; ++pass) {
      factors += pass == 0 ? "" : ", ";
      factors += story.unknown ? std::string("null") : Number(story.factor);
      unknown += pass == 0 ? "null" : ", null";
    }
    trial.EventJson(fmt::format(
        R"({{"kind": "accumulation", "optimizer": 0, "passes": {}, "factors": [{}], "added": {}, "untouched": {}, "multiple": {}, "targets": [{}], "sizes": [{}], "moved": {}, "reads": {}}})",
        passes, factors, story.added, story.untouched, story.multiple && !(story.by_hand && window == 0),
        story.unknown ? unknown : Listed(story.targets), story.unknown ? unknown : Listed(story.sizes),
        story.moved, story.reads));
  }
  return testing::FindingsOf(trial, "AccumulationScale", ParameterSet::kLuff);
}

TEST(AccumulationScale, GradientsThatAreAddedUp_AreToldInTheSecondUpdate) {
  const auto findings = Told({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "not_scaled");
  EXPECT_EQ(findings[0].step, 7);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_TRUE(Told({.windows = 1}).empty());
  EXPECT_EQ(Told({.passes = 3}).size(), 1U);
  EXPECT_EQ(Told({.norm = 1.5}).size(), 1U);  // within the limit
  EXPECT_TRUE(Told({.norm = 2.5}).empty());
}

TEST(AccumulationScale, DividedTwice_IsToldToo) {
  const auto findings = Told({.factor = 1.0 / 16});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "scaled_twice");
}

TEST(AccumulationScale, GradientsThatAreClearedBeforeTheyAddUp_AreToldOfAnyOptimizer) {
  const Story story = {.factor = 0.25, .added = false, .cleared = true, .multiple = true};
  const auto findings = Told(story);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "cleared");
  EXPECT_EQ(findings[0].step, 7);
  Story other = story;
  other.optimizer = "Adam";
  other.clipped = true;
  other.untouched = false;
  EXPECT_EQ(Told(other).size(), 1U);
  other = story;
  other.factor = 1;  // attacks on inputs
  EXPECT_TRUE(Told(other).empty());
  other = story;
  other.multiple = false;  // added up by hand, and set before the update
  EXPECT_TRUE(Told(other).empty());
  other = story;
  other.same_batch = true;  // several views of one batch
  EXPECT_TRUE(Told(other).empty());
  other = story;
  other.cleared = false;  // gradients that were zero
  EXPECT_TRUE(Told(other).empty());
}

Story Dropped() {
  return {.optimizer = "Adam",
          .added = false,
          .cleared = true,
          .multiple = true,
          .targets = {1, 2, 3, 4},
          .sizes = {300, 300, 300, 300}};
}

TEST(AccumulationScale, BatchesWhoseGradientsAreCleared_AreToldInTheThirdUpdate_WhateverTheFactor) {
  const auto findings = Told(Dropped());
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "cleared");
  EXPECT_EQ(findings[0].step, 11);
  EXPECT_NE(findings[0].what.find("only the last of every 4 batches counts"), std::string::npos);
  EXPECT_NE(findings[0].remedy.find("loss / 4"), std::string::npos);
  Story other = Dropped();
  other.windows = 2;
  EXPECT_TRUE(Told(other).empty());
  other = Dropped();
  other.factor = 0.5;
  EXPECT_EQ(Told(other).size(), 1U);
  other = Dropped();
  other.sum = true;
  EXPECT_EQ(Told(other).size(), 1U);
  other = Dropped();
  other.targets = {1, 2, 2, 1};  // labels of batches of one
  other.sizes = {1, 1, 1, 1};
  EXPECT_EQ(Told(other).size(), 1U);
}

TEST(AccumulationScale, PassesWhoseGradientsAreOnlyLookedAt_AreSilent) {
  Story other = Dropped();
  other.targets = {1, 1, 1, 1};  // an attack on the inputs of one batch
  EXPECT_TRUE(Told(other).empty());
  other.targets = {1, 1, 1, 2};  // and mixed targets for its last pass
  EXPECT_TRUE(Told(other).empty());
  other = Dropped();
  other.sizes = {1, 1, 1, 3};  // single samples, then the batch
  EXPECT_TRUE(Told(other).empty());
  other = Dropped();
  other.batches_again = true;  // memories of earlier tasks
  EXPECT_TRUE(Told(other).empty());
  other = Dropped();
  other.more_each_time = true;  // updates that are left out
  EXPECT_TRUE(Told(other).empty());
  other = Dropped();
  other.targets = {};  // not known
  other.sizes = {};
  EXPECT_TRUE(Told(other).empty());
  other = Dropped();
  other.multiple = false;  // gradients that are put together by hand
  EXPECT_TRUE(Told(other).empty());
  other = Dropped();
  other.cleared = false;  // nothing clears them
  EXPECT_TRUE(Told(other).empty());
  other = Dropped();
  other.same_batch = true;  // losses of several tasks
  EXPECT_TRUE(Told(other).empty());
  other = Dropped();
  other.models = 4;  // two sides of a game
  EXPECT_TRUE(Told(other).empty());
  other = Dropped();
  other.by_hand = true;  // at times only: memories of earlier tasks that are drawn again
  other.windows = 8;
  EXPECT_TRUE(Told(other).empty());
  other = Dropped();
  other.moved = true;  // inner steps by hand (meta-learning): each batch has moved the weights
  EXPECT_TRUE(Told(other).empty());
}

TEST(AccumulationScale, LossesThatAScriptWrites_AreToldWhenRowsThatWereThrownAwayComeAgain) {
  Story story = {.optimizer = "Adam",
                 .added = false,
                 .cleared = true,
                 .multiple = true,
                 .windows = 16,
                 .unknown = true,
                 .rows = 76};
  const auto findings = Told(story);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "cleared");
  story.rows = 0;  // an attack, which makes new ones
  EXPECT_TRUE(Told(story).empty());
}

TEST(AccumulationScale, GradientsThatAreReadBeforeTheyAreCleared_AreSilent) {
  Story story = Dropped();
  story.reads = true;
  EXPECT_TRUE(Told(story).empty());
  story.reads = false;
  story.norms = true;
  EXPECT_TRUE(Told(story).empty());
}

TEST(AccumulationScale, OtherFactors_AreSilent) {
  EXPECT_TRUE(Told({.factor = 0.25}).empty());
  EXPECT_TRUE(Told({.factor = 0.5}).empty());
  EXPECT_TRUE(Told({.factor = 0.99}).empty());
  EXPECT_TRUE(Told({.factor = 1024}).empty());
}

TEST(AccumulationScale, WhatIsNoAccumulationOfAMean_IsSilent) {
  EXPECT_TRUE(Told({.passes = 2}).empty());          // often just two losses
  EXPECT_TRUE(Told({.optimizer = "Adam"}).empty());  // scale does not matter
  EXPECT_TRUE(Told({.added = false}).empty());       // cleared in between
  EXPECT_TRUE(Told({.untouched = false}).empty());   // divided afterwards
  EXPECT_TRUE(Told({.same_batch = true}).empty());   // several losses of one batch
  EXPECT_TRUE(Told({.clipped = true}).empty());
  EXPECT_TRUE(Told({.sum = true}).empty());
  EXPECT_TRUE(Told({.models = 4}).empty());  // replicas
}

}  // namespace
}  // namespace luff::rules::accumulation_scale_test

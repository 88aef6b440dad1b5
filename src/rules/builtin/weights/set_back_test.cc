#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// The cause "set_back" of FrozenAtInit: weights that each pass over the data begins with anew.
namespace luff::rules::set_back_test {
namespace {

using format::EventKind;
using testing::FakeTrial;

struct Story {
  std::string to = "first";
  int passes = 6, updates = 10;  // set back behind each
  int rounds = 1;                // over the rows before they are set back
  bool other_rows = false;       // each time
  bool augmented = false;        // rows never come again
  int batches = 0;               // that the document names for the loader; 0: there is none
  bool another = false;          // optimizer makes updates, and is never set back
  int longer = -1;               // this pass makes one update more
  int until = 100;               // set back up to this pass
  bool written = false;          // the weights are set to something else in the end
  int loaders = 1;               // that train, each of as many batches
  bool search = false;           // another rate in each pass
  bool scheduled = false;        // by a schedule
};

std::string SetBackOf(const std::string& to, int updates) {
  return R"({"kind": "weights_set_back", "optimizer": 0, "to": ")" + to + R"(", "updates": )" +
         std::to_string(updates) + "}";
}

std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  std::string loaders;
  for (int number = 0; number < story.loaders && story.batches > 0; ++number)
    loaders += std::string(number > 0 ? ", " : "") + R"({"number": )" + std::to_string(number) +
               R"(, "type": "DataLoader", "trains": true, "batch_size": 4, "samples": )" +
               std::to_string(4 * story.batches) + "}";
  if (!loaders.empty()) trial.SetDocument("loaders", R"({"loaders": [)" + loaders + "]}");
  if (story.scheduled)
    trial.SetDocument("model", R"({"schedulers": [{"type": "StepLR", "optimizer": "SGD"}]})");
  double fresh = 1000;
  int before = 0;
  for (int pass = 0; pass < story.passes; ++pass) {
    const int updates = story.updates + (pass == story.longer ? 1 : 0);
    for (int update = 0; update < updates; ++update) {
      std::vector<double> rows;
      const int place = update % (story.updates / story.rounds);
      for (int i = 0; i < 4; ++i) {
        rows.push_back(story.augmented ? ++fresh : 4 * place + i + (story.other_rows ? 100 * pass : 0));
        rows.push_back(0.5);
      }
      trial.Step().Sample("sample/Net_input_0", {4, 2}, rows).Loss(1);
      trial.Scalar("optimizer/SGD.group0.lr", format::Role::kOptimizerSetting,
                   story.search || story.scheduled ? std::pow(0.5, pass) : 1);
      if (update == 0 && pass > 0 && pass < story.until) trial.EventJson(SetBackOf(story.to, before));
      trial.Event(EventKind::kOptimizerStep, 0);
      if (story.another) trial.Event(EventKind::kOptimizerStep, 1);
    }
    before = updates;
  }
  if (story.written) trial.Step().Loss(1).EventJson(SetBackOf("", 3)).Event(EventKind::kOptimizerStep, 0);
  std::vector<Finding> told = testing::FindingsOf(trial, "FrozenAtInit", ParameterSet::kLuff);
  std::erase_if(told, [](const Finding& finding) { return finding.cause != "set_back"; });
  return told;
}

TEST(FrozenAtInit, WeightsThatEachPassSetsBack_AreTold) {
  const auto findings = Told({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 30);
  EXPECT_FALSE(findings[0].healed);
  EXPECT_NE(findings[0].what.find("weights of the start"), std::string::npos) << findings[0].what;
  EXPECT_NE(findings[0].why.find("each 10 updates"), std::string::npos) << findings[0].why;
  EXPECT_NE(findings[0].remedy.find("before the loop over epochs"), std::string::npos);
  const auto drawn = Told({.to = "drawn"});
  ASSERT_EQ(drawn.size(), 1U);
  EXPECT_NE(drawn[0].what.find("drawn anew"), std::string::npos) << drawn[0].what;
  EXPECT_NE(drawn[0].remedy.find("reset_parameters"), std::string::npos);
  EXPECT_EQ(Told({.augmented = true, .batches = 10}).size(), 1U);
  EXPECT_EQ(Told({.scheduled = true}).size(), 1U);
}

TEST(FrozenAtInit, WeightsThatAreSetBackOnPurpose_AreSilent) {
  EXPECT_TRUE(Told({.passes = 3}).empty());         // too few
  EXPECT_TRUE(Told({.rounds = 2}).empty());         // restarts, rewound weights: two passes in each
  EXPECT_TRUE(Told({.rounds = 10}).empty());        // inner steps on one batch
  EXPECT_TRUE(Told({.other_rows = true}).empty());  // tasks, clients
  EXPECT_TRUE(Told({.other_rows = true, .batches = 10, .loaders = 6}).empty());  // each has its own
  EXPECT_TRUE(Told({.search = true}).empty());                                   // for a learning rate
  EXPECT_TRUE(Told({.augmented = true}).empty());  // nothing tells what a pass is
  EXPECT_TRUE(Told({.augmented = true, .batches = 4}).empty());
  EXPECT_TRUE(Told({.another = true}).empty());  // a probe beside what is trained
  EXPECT_TRUE(Told({.longer = 1}).empty());      // as a plateau asks for
  EXPECT_TRUE(Told({.updates = 1}).empty());
}

TEST(FrozenAtInit, WeightsThatAreSetBackNoMore_Heal) {
  EXPECT_TRUE(Told({.written = true}).at(0).healed);
  EXPECT_TRUE(Told({.passes = 10, .until = 5}).at(0).healed);
  EXPECT_FALSE(Told({.passes = 6, .until = 5}).at(0).healed);
}

}  // namespace
}  // namespace luff::rules::set_back_test

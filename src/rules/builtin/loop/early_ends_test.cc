#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// The cause "ends_early" of StepSkipped: each pass ends behind its first batch.
namespace luff::rules::early_ends_test {
namespace {

using format::EventKind;
using testing::FakeTrial;

struct Story {
  int updates = 12;
  int batches = 8;       // of the loader; 0: there is none
  bool by_next = false;  // it is asked by a call
  bool starts = true;    // it is started for each update
  bool same = false;     // rows each time
  bool fresh = false;    // rows that never come again
  int evaluated = 40;    // rows of an evaluation
  int each = 1;          // updates behind which it comes; 0: at the end
  int grown = 1;         // loaders, each of one batch more than the last
  int over = 0;          // updates at which another place was seen
  bool told = true;      // where updates stand
};

FakeTrial Ending(const Story& story) {
  FakeTrial trial;
  std::string loaders;
  for (int number = 0; number < story.grown && story.batches > 0; ++number)
    loaders += std::string(number > 0 ? ", " : "") + R"({"number": )" + std::to_string(number) +
               R"(, "type": "DataLoader", "trains": true, "batch_size": 8, "by_next": )" +
               (story.by_next ? "true" : "false") + R"(, "samples": )" +
               std::to_string(8 * (story.batches + number)) + "}";
  if (!loaders.empty()) trial.SetDocument("loaders", R"({"loaders": [)" + loaders + "]}");
  const auto evaluate = [&] {
    const auto count = static_cast<std::size_t>(story.evaluated);
    if (count > 0)
      trial.Step(query::Mode::kEval)
          .Sample("sample/Net_input_0", {story.evaluated, 1}, std::vector<double>(count, 0.25));
  };
  for (int update = 0; update < story.updates; ++update) {
    std::vector<double> rows;
    for (int i = 0; i < 8; ++i)
      rows.push_back(story.same    ? i
                     : story.fresh ? 8 * update + i
                                   : (update * 5 + i * (1 + update % 7)) % 64);
    trial.Step().Sample("sample/Net_input_0", {8, 1}, rows);
    if (story.starts) trial.Phases({{format::Phase::kDataStart, 1}});
    if (story.told && update > 0 && (update & (update - 1)) == 0 &&
        (story.over == 0 || update <= story.over)) {
      const bool over = update == story.over;
      trial.EventJson(R"({"kind": "early_end", "updates": )" + std::to_string(update) +
                      R"(, "function": "train_epoch", "line": 17, "over": )" + (over ? "true}" : "false}"));
    }
    trial.Event(EventKind::kForward, 0).Event(EventKind::kBackward).Event(EventKind::kOptimizerStep, 0);
    if (story.each > 0 && (update + 1) % story.each == 0) evaluate();
  }
  if (story.each == 0) evaluate();
  return trial;
}

std::vector<Finding> Told(const Story& story) {
  std::vector<Finding> told = testing::FindingsOf(Ending(story), "StepSkipped", ParameterSet::kLuff);
  std::erase_if(told, [](const Finding& finding) { return finding.cause != "ends_early"; });
  return told;
}

TEST(StepSkipped, PassesThatEndBehindTheirFirstBatch_AreTold) {
  const auto findings = Told({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_LT(findings[0].step, 8);  // at once, behind evaluations
  EXPECT_NE(findings[0].what.find("updates in as many passes"), std::string::npos) << findings[0].what;
  EXPECT_NE(findings[0].why.find("line 17 in train_epoch"), std::string::npos) << findings[0].why;
  EXPECT_NE(findings[0].why.find("8 batches"), std::string::npos) << findings[0].why;
  EXPECT_NE(findings[0].remedy.find("break"), std::string::npos);
  EXPECT_EQ(Told({.batches = 0, .starts = false, .fresh = true, .each = 1}).size(), 1U);
  EXPECT_EQ(Told({.batches = 0, .starts = false}).size(), 1U);  // rows come again among new ones
  EXPECT_EQ(Told({.each = 2}).size(), 1U);
  EXPECT_EQ(Told({.same = true}).size(), 1U);  // without shuffling
  EXPECT_EQ(Told({.batches = 0, .starts = false, .same = true}).size(), 1U);
  EXPECT_EQ(Told({.fresh = true}).size(), 1U);
}

TEST(StepSkipped, AHelperThatReturnsAfterOneBatch_AndOneBatchThatIsLearntOnPurpose_AreSilent) {
  EXPECT_TRUE(Told({.each = 0}).empty());  // shuffled anew for each call: a sample
  EXPECT_TRUE(Told({.each = 4}).empty());
  EXPECT_TRUE(Told({.fresh = true, .each = 0}).empty());
  EXPECT_TRUE(Told({.same = true, .each = 0}).empty());
  EXPECT_TRUE(Told({.updates = 60, .same = true, .each = 20}).empty());
}

TEST(StepSkipped, LoopsThatEndOnPurpose_AreSilent) {
  EXPECT_TRUE(Told({.told = false}).empty());
  EXPECT_TRUE(Told({.updates = 3}).empty());
  EXPECT_TRUE(Told({.updates = 600, .each = 0}).empty());  // batches are drawn
  EXPECT_TRUE(Told({.batches = 1}).empty());
  EXPECT_TRUE(Told({.each = 0, .over = 8}).empty());
  EXPECT_TRUE(Told({.grown = 8}).empty());                    // a replay of what was met so far
  EXPECT_TRUE(Told({.same = true, .evaluated = 0}).empty());  // one batch that is learnt on purpose
  EXPECT_TRUE(Told({.same = true, .evaluated = 8}).empty());
  // An iterator that goes on gives all rows in turn.
  EXPECT_TRUE(Told({.starts = false, .fresh = true, .each = 0}).empty());
  EXPECT_TRUE(Told({.batches = 0, .starts = false, .fresh = true, .each = 0}).empty());
}

TEST(StepSkipped, PassesThatEndEarlyNoMore_Heal) {
  EXPECT_TRUE(Told({.updates = 40, .each = 1, .over = 32}).at(0).healed);
  EXPECT_FALSE(Told({.updates = 40, .each = 1}).at(0).healed);
}

}  // namespace
}  // namespace luff::rules::early_ends_test

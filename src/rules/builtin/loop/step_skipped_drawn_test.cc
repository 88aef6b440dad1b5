#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

// The cause "drawn" of StepSkipped: whole passes of a loader for one update.
namespace luff::rules::step_skipped_drawn_test {
namespace {

using format::EventKind;
using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial, const std::string& rule) {
  return testing::FindingsOf(trial, rule, ParameterSet::kLuff);
}

// Before each update a loader gives all of its batches, and so many passes of a model follow.
struct Drawn {
  int batches = 10, forwards = 1, rows = 16, steps = 12, until = 1000;
  int drawn = 10;     // before each update up to `until`, and one after that
  int beside = 0;     // batches of another loader
  bool known = true;  // how many batches the loader has
  int starts = 1, from = 0;
  bool evaluates = false;  // after each update; what is drawn then is told there
};
FakeTrial AllOfAPass(const Drawn& how) {
  FakeTrial trial;
  trial.SetDocument("loaders",
                    R"({"loaders": [{"number": 0, "type": "DataLoader", "batch_size": 16, "samples": )" +
                        (how.known ? std::to_string(16 * how.batches - 3) : std::string("null")) +
                        R"(}, {"number": 1, "type": "DataLoader", "batch_size": 16, "samples": 64}]})");
  for (int step = 0; step < how.steps; ++step) {
    const bool all = step >= how.from && step < how.until;
    std::vector<double> rows(static_cast<std::size_t>(2 * how.rows), 0.5 + step);
    trial.Step().Sample("sample/Net_input_0", {how.rows, 2}, rows);
    // The last sixteen are told apart, of which the last one finds that there is no more.
    const int asked = all ? how.drawn + 1 + how.beside : 1;
    for (int i = 0; i < (all ? how.starts : 0); ++i) trial.Phases({{format::Phase::kDataStart, 1}});
    for (int i = 0; i < asked; ++i) {
      trial.Phases({{format::Phase::kDataWait, 1}});
      if (i < 16) trial.Wait({.loader = i < how.beside ? 1U : 0U}, 0.01);
    }
    for (int i = 0; i < how.forwards; ++i) trial.Event(EventKind::kForward, 0);
    trial.Event(EventKind::kBackward).Event(EventKind::kOptimizerStep, 0);
    if (!how.evaluates) continue;
    trial.Step(query::Mode::kEval).Phases({{format::Phase::kDataStart, 1}});
    for (int i = 0; i < how.drawn + 2; ++i) {
      trial.Phases({{format::Phase::kDataWait, 1}});
      if (i + 16 >= how.drawn + 2) trial.Wait({.loader = i == 0 ? 1U : 0U}, 0.01);  // the newest
    }
  }
  return trial;
}

TEST(StepSkipped, AWholePassIsDrawnForOneUpdate_IsTold) {
  const auto findings = FindingsOf(AllOfAPass({}), "StepSkipped");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "drawn");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 5);
  EXPECT_NE(findings[0].what.find("4 of 40 batches"), std::string::npos);
  EXPECT_NE(findings[0].remedy.find("indent"), std::string::npos);
  EXPECT_FALSE(findings[0].healed);
  EXPECT_EQ(FindingsOf(AllOfAPass({.drawn = 9}), "StepSkipped").size(), 1U);  // drop_last
  EXPECT_EQ(FindingsOf(AllOfAPass({.batches = 40, .drawn = 40}), "StepSkipped").size(), 1U);
  EXPECT_EQ(FindingsOf(AllOfAPass({.rows = 13}), "StepSkipped").size(), 1U);  // the last batch
  EXPECT_EQ(FindingsOf(AllOfAPass({.until = 0, .evaluates = true}), "StepSkipped").size(), 1U);
  EXPECT_EQ(FindingsOf(AllOfAPass({.batches = 40, .until = 0, .drawn = 40, .evaluates = true}), "StepSkipped")
                .size(),
            1U);
  EXPECT_TRUE(FindingsOf(AllOfAPass({.steps = 30, .until = 9}), "StepSkipped").at(0).healed);
}

TEST(StepSkipped, PassesThatAreUsedOrPutTogether_AndLoadersOfOneBatch_AreSilent) {
  for (const Drawn& how : {Drawn{.batches = 3, .drawn = 3}, Drawn{.rows = 157}, Drawn{.rows = 12},
                           Drawn{.forwards = 10}, Drawn{.drawn = 4}, Drawn{.known = false},
                           Drawn{.starts = 4}, Drawn{.beside = 5}, Drawn{.from = 3}, Drawn{.until = 4}})
    EXPECT_TRUE(FindingsOf(AllOfAPass(how), "StepSkipped").empty());
}

}  // namespace
}  // namespace luff::rules::step_skipped_drawn_test

#include "catalog/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "query/testing.h"

namespace luff::catalog {
namespace sweep_test {
namespace {

using query::testing::TempRun;
using query::testing::Writing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The course of a training whose loss is its step plus `offset`, except at `other`.
Fingerprint Printed(int steps, double offset, int other = -1) {
  const TempRun run;
  Writing w(run.path(), 0, 1);
  w.Define(0, "loss", 1, format::Role::kLoss);
  w.Define(1, "fc.weight", 2, format::Role::kWeight);
  for (int i = 0; i < steps; ++i) {
    w.AddScalar(0, i + offset + (i == other ? 1e-9 : 0));
    const float values[] = {static_cast<float>(i + offset), 2};
    w.AddSummary(1, values);
    w.Step();
  }
  w.Close();
  const auto trial = query::Trial::Open(run.path());
  EXPECT_TRUE(trial.ok());
  auto print = FingerprintOf(**trial, 1'000'000);
  EXPECT_TRUE(print.ok());
  return *print;
}

TEST(FisherExact, KnownTables) {
  // Fisher's tea: 3 of 4 right, one-sided 0.243, two-sided 0.486; a perfect one 2 / 70.
  EXPECT_NEAR(FisherExact(3, 4, 1, 4), 0.4857142857, 1e-9);
  EXPECT_NEAR(FisherExact(4, 4, 0, 4), 2.0 / 70, 1e-9);
  EXPECT_NEAR(FisherExact(8, 10, 1, 6), 0.0349650350, 1e-9);  // R: fisher.test(matrix(c(8, 2, 1, 5), 2))
  EXPECT_EQ(FisherExact(0, 0, 2, 5), 1);
}

TEST(Separate, NamesTheBorderOnly_WhenChanceDoesNotExplainIt) {
  std::vector<std::map<std::string, Parameter>> parameters;
  std::vector<Judged> trials;
  for (int i = 0; i < 40; ++i) {
    parameters.push_back({{"lr", 0.01 * (i + 1)},
                          {"seed", static_cast<double>(i * 17 % 40)},
                          {"optimizer", std::string(i % 2 == 0 ? "SGD" : "Adam")},
                          {"same", true}});
  }
  for (int i = 0; i < 40; ++i) trials.push_back({&parameters[static_cast<std::size_t>(i)], i >= 27});
  const auto found = Separate(trials);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(SeparationText(found[0]), "lr >= 0.28");
  EXPECT_EQ(found[0].bad_inside, 13U);
  EXPECT_EQ(found[0].inside, 13U);
  EXPECT_EQ(found[0].bad_outside, 0U);
  // 2 tables of C(40, 13) are as extreme at most; 39 borders, 3 parameters.
  EXPECT_LE(found[0].p, 2 * 39 * 3 / 12'033'222'880.0);

  for (std::size_t i = 0; i < 40; ++i) trials[i].bad = i % 3 == 0;  // nothing to do with any of them
  EXPECT_THAT(Separate(trials), IsEmpty());
  EXPECT_THAT(Separate({}), IsEmpty());
}

TEST(Separate, ATextIsToldFromTheOthers) {
  std::vector<std::map<std::string, Parameter>> parameters;
  for (int i = 0; i < 30; ++i)
    parameters.push_back({{"optimizer", std::string(i % 3 == 0 ? "SGD" : "Adam")}});
  std::vector<Judged> trials;
  for (std::size_t i = 0; i < 30; ++i) trials.push_back({&parameters[i], i % 3 == 0});
  const auto found = Separate(trials);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(SeparationText(found[0]), "optimizer = SGD");
}

TEST(NearestOf, TellsTheStepAtWhichTwoPart) {
  const std::vector<Fingerprint> prints = {Printed(20, 0), Printed(20, 0, 7), Printed(12, 0), Printed(20, 5)};
  const auto nearest = NearestOf(prints);
  EXPECT_EQ(nearest[1].same, 7U);
  EXPECT_EQ(nearest[1].parts_at, 7);
  EXPECT_EQ(nearest[2].other, 0U);  // a shorter one is the same as far as it goes
  EXPECT_EQ(nearest[2].same, 12U);
  EXPECT_EQ(nearest[2].parts_at, -1);
  EXPECT_EQ(nearest[3].same, 0U);
  EXPECT_THAT(SameRuns(prints, 3), ElementsAre(ElementsAre(0, 2)));
  EXPECT_THAT(SameRuns(prints, 13), IsEmpty());
  EXPECT_THAT(SameRuns({Fingerprint(), Fingerprint()}, 0), IsEmpty());
}

TEST(SameText, OfTrialsOfSeveralLengthsItSpeaksOfTheStepsThatTheyShare) {
  Sweep sweep;
  for (const std::uint64_t steps : {40, 40, 80}) {
    sweep.trials.emplace_back();
    sweep.trials.back().name = "t" + std::to_string(sweep.trials.size());
    sweep.trials.back().steps = steps;
  }
  sweep.same = {{{0, 1}, 40, {"gamma"}}, {{0, 1, 2}, 40, {"epochs"}}, {{0, 2}, 40, {}}};
  EXPECT_THAT(SameText(sweep),
              ElementsAre(HasSubstr("differ in gamma: it had no effect on them."),
                          HasSubstr("differ in epochs: it had no effect in these steps; they made "
                                    "40 to 80."),
                          HasSubstr("the same trial, 2 times in these steps; they made 40 to 80.")));
}

SweepTrial Ended(const char* outcome, double took_s, std::uint64_t steps, std::uint64_t workers = 1) {
  SweepTrial trial;
  trial.outcome = outcome;
  trial.took_s = took_s;
  trial.steps = steps;
  trial.workers = workers;
  trial.stopped = trial.outcome == "stopped";
  return trial;
}

TEST(SavedBy, IsTheMiddleOfTheCompletedLessTheStoppedTimesWorkers) {
  std::vector<SweepTrial> trials = {Ended("completed", 3600, 100), Ended("completed", 7200, 200),
                                    Ended("stopped", 1800, 50, 4), Ended("stopped", 9000, 300)};
  EXPECT_FALSE(SavedBy(trials).known);
  EXPECT_THAT(SavedText(SavedBy(trials)), HasSubstr("not known: 2 completed"));
  trials.push_back(Ended("completed", 7200, 200));
  const Saved saved = SavedBy(trials);
  EXPECT_TRUE(saved.known);
  EXPECT_DOUBLE_EQ(saved.hours, (7200 - 1800) * 4 / 3600.0);  // the one that took longer saved nothing
  EXPECT_DOUBLE_EQ(saved.share, 150.0 / (850 + 150));
  trials[0].resumed = true;
  EXPECT_EQ(SavedBy(trials).wrong, 1U);
  EXPECT_THAT(SavedText(SavedBy(trials)), HasSubstr("Wrong stops: 1"));
}

}  // namespace
}  // namespace sweep_test
}  // namespace luff::catalog

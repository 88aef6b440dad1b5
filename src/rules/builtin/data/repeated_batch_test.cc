#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::repeated_batch_test {
namespace {

using format::EventKind;
using format::Role;
using query::Mode;
using testing::FakeTrial;

constexpr const char* kModels = R"({"models": [
  {"name": "A", "modules": [{"path": "", "type": "Net", "name": "A", "number": 0}],
   "parameters": [{"path": "w", "name": "A_w"}]},
  {"name": "B", "modules": [{"path": "", "type": "Net", "name": "B", "number": 7}],
   "parameters": [{"path": "w", "name": "B_w"}]}]})";

using Batch = std::function<std::uint64_t(int)>;

// Two models, with one step each per update.
std::vector<Finding> Two(const Batch& a, const Batch& b, double apart = 0) {
  FakeTrial trial;
  trial.SetDocument("model", kModels);
  for (int n = 0; n < 40; ++n) {
    trial.Step(Mode::kTrain, -1, n)
        .Tensor("A_w", Role::kWeight, {1.0 + n, 2})
        .Event(EventKind::kBatch, 0, a(n));
    trial.Step(Mode::kTrain, -1, n)
        .Tensor("B_w", Role::kWeight, {1.0 + n + apart, 2})
        .Event(EventKind::kBatch, 7, b(n));
  }
  return testing::FindingsOf(trial, "RepeatedBatch", ParameterSet::kLuff);
}

TEST(RepeatedBatch, ReplicasWithTheSameBatches_AreNamedAfterSix) {
  const auto findings = Two([](int n) { return 100 + n; }, [](int n) { return 100 + n; });
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "shared");
  EXPECT_EQ(findings[0].step, 11);
  EXPECT_EQ(findings[0].tensor, "B");
  EXPECT_EQ(findings[0].other_tensors, std::vector<std::string>{"A"});
}

TEST(RepeatedBatch, Shards_Ensembles_AndWholeDataSets_AreSilent) {
  EXPECT_TRUE(Two([](int n) { return 100 + n; }, [](int n) { return 900 + n; }).empty());
  EXPECT_TRUE(
      Two([](int n) { return 100 + n; }, [](int n) { return 100 + n; }, 0.5).empty());  // other weights
  EXPECT_TRUE(Two([](int) { return 5; }, [](int) { return 5; }).empty());  // both get the whole data set
}

TEST(RepeatedBatch, WorkersWithTheSameBatches_AreNamed) {
  FakeTrial trial;
  trial.SetDocument("model", kModels);
  for (int n = 0; n < 20; ++n) {
    trial.Step();
    for (std::uint32_t worker = 0; worker < 2; ++worker) {
      trial.Tensor("A_w", Role::kWeight, {1.0 + n});
      trial.Last().summaries.back().worker = worker;
      trial.Event(EventKind::kBatch, 0, 50 + static_cast<std::uint64_t>(n));
      trial.Last().events.back().worker = worker;
    }
  }
  const auto findings = testing::FindingsOf(trial, "RepeatedBatch", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find("worker 1"), std::string::npos);
}

// The same training twice, one after the other: in worker 0, then as `model` of `worker`.
std::vector<Finding> OneAfterTheOther(const char* model, std::uint64_t number, std::uint32_t worker) {
  FakeTrial trial;
  trial.SetDocument("model", kModels);
  for (int n = 0; n < 40; ++n) {
    const bool again = n >= 20;
    trial.Step().Tensor(again ? model : "A_w", Role::kWeight, {1.0 + n % 20});
    trial.Last().summaries.back().worker = again ? worker : 0;
    trial.Event(EventKind::kBatch, static_cast<std::uint32_t>(again ? number : 0),
                50 + static_cast<std::uint64_t>(n % 20));
    trial.Last().events.back().worker = again ? worker : 0;
  }
  return testing::FindingsOf(trial, "RepeatedBatch", ParameterSet::kLuff);
}

TEST(RepeatedBatch, PartsOfAResumedRun_AndTrainingsInARow_AreNoReplicas) {
  EXPECT_TRUE(OneAfterTheOther("A_w", 0, 1).empty());
  EXPECT_TRUE(OneAfterTheOther("B_w", 7, 0).empty());
}

// One model; an evaluation of 400 rows after step 20, in batches of `rows`, or at once.
std::vector<Finding> One(const Batch& batch, std::int64_t rows, int steps, int passes = 1,
                         const std::string& loader = "", bool at_once = false) {
  FakeTrial trial;
  trial.SetDocument("model", kModels);
  if (!loader.empty()) trial.SetDocument("loaders", loader);
  for (int n = 0; n < steps; ++n) {
    for (int pass = 0; pass < passes; ++pass) {
      trial.Step(Mode::kTrain, -1, n).Event(EventKind::kBatch, 0, batch(n));
      if (n < 4)
        trial.Sample("sample/A_input_0", {rows, 1}, std::vector<double>(static_cast<std::size_t>(rows)));
    }
    for (std::int64_t left = n == 20 ? 400 : 0; left > 0;) {
      const std::int64_t now = at_once ? left : std::min(left, rows);
      trial.Step(Mode::kEval)
          .Sample("sample/A_input_0", {now, 1}, std::vector<double>(static_cast<std::size_t>(now)));
      left -= now;
    }
  }
  return testing::FindingsOf(trial, "RepeatedBatch", ParameterSet::kLuff);
}

TEST(RepeatedBatch, FirstBatchAgainAndAgain_IsNamed_WholeDataSetIsNot) {
  const auto findings = One([](int) { return 3; }, 64, 90);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "same");
  EXPECT_EQ(findings[0].step, 63);
  EXPECT_TRUE(One([](int) { return 3; }, 512, 90).empty());              // more rows than the evaluation
  EXPECT_TRUE(One([](int) { return 3; }, 90, 90).empty());               // not a usual batch size
  EXPECT_TRUE(One([](int) { return 3; }, 64, 90, 1, "", true).empty());  // a finer grid, or all test rows
}

// A document of one loader, with batches of 64 rows.
std::string Loader(int samples, const char* trains, const char* by_next) {
  return R"({"loaders": [{"number": 0, "batch_size": 64, "samples": )" + std::to_string(samples) +
         R"(, "trains": )" + trains + R"(, "by_next": )" + by_next + "}]}";
}

TEST(RepeatedBatch, OneBatchBesideALargerEvaluation_IsSilentWhereALoopTookItOrTheLoaderHasNoMore) {
  const auto with = [](const std::string& loader) { return One([](int) { return 3; }, 64, 90, 1, loader); };
  EXPECT_EQ(with(Loader(1000, "true", "true")).size(), 1U);
  EXPECT_EQ(with(Loader(1000, "false", "false")).size(), 1U);  // evaluates only
  EXPECT_TRUE(with(Loader(1000, "true", "false")).empty());
  EXPECT_TRUE(with(Loader(64, "true", "true")).empty());
}

// 90 updates with one batch, each of which a loader was started for, or only the first.
std::vector<Finding> Started(const std::string& loader, bool each) {
  FakeTrial trial;
  trial.SetDocument("model", kModels);
  trial.SetDocument("loaders", loader);
  for (int n = 0; n < 90; ++n) {
    trial.Step(Mode::kTrain, -1, n).Event(EventKind::kBatch, 0, 3);
    if (each || n == 0) trial.Phases({{format::Phase::kDataStart, 1}, {format::Phase::kForward, 1}});
  }
  return testing::FindingsOf(trial, "RepeatedBatch", ParameterSet::kLuff);
}

TEST(RepeatedBatch, LoaderThatIsStartedForEachUpdate_IsNamed_WholeDataSetLoopsAndATestWithOneBatchAreNot) {
  const std::string many =
      R"({"loaders": [{"number": 0, "samples": 1000, "batch_size": 90, "by_next": true}]})";
  const std::string looped =
      R"({"loaders": [{"number": 0, "samples": 1000, "batch_size": 90, "by_next": false}]})";
  const std::string whole =
      R"({"loaders": [{"number": 0, "samples": 90, "batch_size": 90, "by_next": true}]})";
  const auto findings = Started(many, true);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "same");
  EXPECT_THAT(findings[0].why, ::testing::HasSubstr("its loader has 12 batches, was started 64 times"));
  EXPECT_TRUE(Started(many, false).empty());
  EXPECT_TRUE(Started(looped, true).empty());  // a loop that ends after one batch, or a framework's
  EXPECT_TRUE(Started(whole, true).empty());
  EXPECT_TRUE(Started("", true).empty());
}

TEST(RepeatedBatch, StuckIterator_IsNamed_RepeatsByDesignAreNot) {
  EXPECT_EQ(One([](int n) { return n < 30 ? n : 30; }, 64, 140).size(), 1U);
  EXPECT_TRUE(One([](int n) { return n / 60; }, 64, 800).empty());  // 60 updates per batch
  EXPECT_TRUE(One([](int n) { return n; }, 64, 100, 20).empty());   // closures
}

// A training with batches of 8 rows of 3 numbers, of which `copies` are one row, and an evaluation.
struct Copies {
  int copies = 8;
  bool answered_alike = true;
  bool one_target = true;
  bool same_row = false;  // in all batches
  bool evaluated = true;  // on rows that differ
  int batch_size = 0;     // of the loader; 0: there is none
  int rows = 8;
  bool dropout = false;
};

std::vector<Finding> OfCopies(const Copies& story) {
  FakeTrial trial;
  trial.SetDocument("model",
                    !story.dropout ? kModels : R"({"models": [{"name": "A", "parameters": [], "modules": [
        {"path": "", "type": "Net", "name": "A", "number": 0}, {"path": "d", "type": "Dropout", "name": "A_d"}]}]})");
  if (story.batch_size > 0)
    trial.SetDocument("loaders",
                      R"({"loaders": [{"number": 0, "trains": true, "samples": 999, "batch_size": )" +
                          std::to_string(story.batch_size) + "}]}");
  const auto step = [&](bool train, int n) {
    std::vector<double> x;
    std::vector<double> y;
    std::vector<double> answers;
    for (int row = 0; row < story.rows; ++row) {
      const bool copied = train && row < story.copies;
      const double kind = copied ? (story.same_row ? 0 : n) : 100 * n + row + 1;
      for (int k = 0; k < 3; ++k) x.push_back(0.37 * kind + 0.11 * k + 0.05);
      y.push_back(story.one_target && copied ? 0.5 : 0.1 * row);
      answers.push_back(story.answered_alike && copied ? 0.25 : 0.2 * row);
    }
    double loss = 0;
    for (std::size_t i = 0; i < y.size(); ++i)
      loss += (answers[i] - y[i]) * (answers[i] - y[i]) / static_cast<double>(y.size());
    trial.Step(train ? Mode::kTrain : Mode::kEval, -1, n)
        .Sample("sample/A_input_0", {story.rows, 3}, x)
        .Sample("sample/MSELoss_input_0", {story.rows, 1}, answers)
        .Sample("sample/MSELoss_input_1", {story.rows, 1}, y)
        .Loss(loss, "MSELoss_output_0");
  };
  for (int n = 0; n < 20; ++n) {
    step(true, n);
    if (n % 4 == 3 && story.evaluated) step(false, n);
  }
  return testing::FindingsOf(trial, "RepeatedBatch", ParameterSet::kLuff);
}

TEST(RepeatedBatch, BatchesOfOneRow_AreNamed) {
  const auto findings = OfCopies({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "one_row");
  EXPECT_THAT(findings[0].what, ::testing::HasSubstr("holds one row 8 times"));
}

TEST(RepeatedBatch, OneRowForAllIndices_IsNamed_WhereTheLoaderMadeTheBatches) {
  const auto findings = OfCopies({.same_row = true, .batch_size = 8});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "one_row");
  EXPECT_TRUE(OfCopies({.same_row = true}).empty());  // it is learnt on purpose
}

TEST(RepeatedBatch, CopiesThatAreAnsweredOtherwise_OrThatAreAllThereIs_AreSilent) {
  EXPECT_TRUE(OfCopies({.copies = 0}).empty());
  EXPECT_TRUE(OfCopies({.copies = 7}).empty());
  EXPECT_TRUE(OfCopies({.answered_alike = false}).empty());  // draws of a model for each row
  EXPECT_TRUE(OfCopies({.answered_alike = false, .batch_size = 1}).empty());
  EXPECT_EQ(OfCopies({.answered_alike = false, .batch_size = 8}).size(), 1U);  // a layer draws
  EXPECT_TRUE(OfCopies({.answered_alike = false, .dropout = true}).empty());   // a few draws
  EXPECT_EQ(OfCopies({.copies = 32, .answered_alike = false, .rows = 32, .dropout = true}).size(), 1U);
  EXPECT_TRUE(OfCopies({.copies = 32, .answered_alike = false, .rows = 32}).empty());
  // Draws of an importance-weighted bound for each row that the loader gives.
  EXPECT_TRUE(OfCopies({.copies = 32, .answered_alike = false, .batch_size = 1, .rows = 32, .dropout = true})
                  .empty());
  EXPECT_TRUE(OfCopies({.one_target = false}).empty());
  EXPECT_TRUE(OfCopies({.evaluated = false}).empty());
}

}  // namespace
}  // namespace luff::rules::repeated_batch_test

#include "catalog/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include <nlohmann/json.hpp>

#include "query/testing.h"

namespace luff::catalog {
namespace {

using query::testing::TempRun;
using query::testing::Writing;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What a test run records at a step.
struct Plan {
  int steps = 100;
  std::function<double(int)> loss = [](int i) { return 1.0 / (i + 1); };
  std::function<float(int)> weight = [](int i) { return 1.0F + 0.001F * static_cast<float>(i); };
  std::vector<std::string> more = {};  // further tensors
  bool close = true;
};

void Write(const std::string& path, const Plan& plan) {
  Writing w(path, 0, 1);
  w.Define(0, "loss", 1, format::Role::kLoss);
  w.Define(1, "fc.weight", 2, format::Role::kWeight);
  for (std::size_t i = 0; i < plan.more.size(); ++i)
    w.Define(static_cast<std::uint32_t>(2 + i), plan.more[i], 1, format::Role::kOther);
  for (int i = 0; i < plan.steps; ++i) {
    w.AddScalar(0, plan.loss(i));
    const float values[] = {plan.weight(i), 2};
    w.AddSummary(1, values);
    w.Step();
  }
  if (plan.close) w.Close();
}

struct Pair {
  Pair(const Plan& of_a, const Plan& of_b) {
    Write(a.path(), of_a);
    Write(b.path(), of_b);
    auto opened = OpenCompared({a.path(), b.path()});
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    runs = std::move(*opened);
    auto found = FindDivergence(*runs[0].trial, *runs[1].trial);
    EXPECT_TRUE(found.ok()) << found.status().ToString();
    divergence = std::move(*found);
    sentences = SentencesOf(divergence, runs[0], runs[1], "one", "two");
  }
  TempRun a, b;
  std::vector<Compared> runs;
  Divergence divergence;
  std::vector<std::string> sentences;
};

TEST(JitterOf, IsTheDeviationAroundALine) {
  std::mt19937 random(0);
  std::normal_distribution<double> normal(0, 0.5);
  std::vector<double> values;
  for (int i = 0; i < 4000; ++i) values.push_back(3.0 * i + normal(random));
  EXPECT_NEAR(JitterOf(values), 0.5, 0.03);
  EXPECT_EQ(JitterOf(std::vector<double>{1, 2, 3, 4, 5}), 0);
  EXPECT_TRUE(std::isnan(JitterOf(std::vector<double>{1, 2, 3})));
}

TEST(FirstBeyondNoise, NeedsADifferenceThatLastsAndIsLargerThanJitter) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(0, 0.1);
  std::vector<double> a, b;
  for (int i = 0; i < 400; ++i) {
    a.push_back(5 + normal(random));
    b.push_back(5 + normal(random) + (i >= 300 ? 2.0 : 0.0));
  }
  b[100] += 5;  // for one step only
  const auto found = FirstBeyondNoise(a, b, 0);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->place, 300U);
  EXPECT_NEAR(found->noise, 0.14, 0.05);
  EXPECT_FALSE(FirstBeyondNoise(std::span(a).first(300), std::span(b).first(300), 0));
  a[50] = std::nan("");
  EXPECT_EQ(FirstBeyondNoise(a, b, 0)->place, 50U);
}

TEST(FindDivergence, SaysThatRunsAreBitIdentical) {
  const Pair pair(Plan{}, Plan{});
  EXPECT_FALSE(pair.divergence.any);
  EXPECT_TRUE(pair.divergence.beyond.empty());
  EXPECT_EQ(pair.divergence.pairs, 200U);
  EXPECT_THAT(pair.sentences, ElementsAre(HasSubstr("Bit-identical: all 200 numbers")));
}

TEST(FindDivergence, FindsTheFirstBitAndTheFirstBeyondNoise) {
  Plan other;
  other.weight = [](int i) {
    return 1.0F + 0.001F * static_cast<float>(i) + (i >= 40 ? 1e-6F : 0) + (i >= 60 ? 0.5F : 0);
  };
  other.loss = [](int i) { return 1.0 / (i + 1) + (i >= 70 ? 0.3 : 0); };
  const Pair pair(Plan{}, other);
  ASSERT_TRUE(pair.divergence.any);
  EXPECT_EQ(pair.divergence.any->step, 40);
  EXPECT_EQ(pair.divergence.any->tensor, "fc.weight");
  ASSERT_EQ(pair.divergence.beyond.size(), 2U);
  EXPECT_EQ(pair.divergence.beyond[0].kind, "weights");
  EXPECT_EQ(pair.divergence.beyond[0].step, 60);
  EXPECT_EQ(pair.divergence.beyond[1].tensor, "loss");
  EXPECT_EQ(pair.divergence.beyond[1].step, 70);
  EXPECT_THAT(pair.sentences, Contains(HasSubstr("Bit-identical before TRAIN step 40")));
  EXPECT_THAT(pair.sentences,
              Contains(HasSubstr("fc.weight is the first to differ beyond noise: TRAIN step 60")));
}

TEST(FindDivergence, IsTheSameInWindowsOfAnySize) {
  // So many steps that they do not fit into one window; the difference lies across the border of two.
  Plan one, other;
  one.steps = other.steps = 4200;
  one.loss = [](int) { return 1.0; };
  other.loss = [](int i) { return i >= 4094 ? 1.5 : 1.0; };
  const Pair pair(one, other);
  ASSERT_EQ(pair.divergence.beyond.size(), 1U);
  EXPECT_EQ(pair.divergence.beyond[0].step, 4094);
}

TEST(FindDivergence, HasASentenceForEachKindOfDifference) {
  Plan longer, live;
  longer.steps = 120;
  longer.more = {"extra"};
  live.close = false;
  const Pair lengths(Plan{}, longer);
  EXPECT_THAT(lengths.sentences,
              Contains(HasSubstr("one has 100 TRAIN steps, two has 120; the 100 in both")));
  EXPECT_THAT(lengths.sentences, Contains(HasSubstr("2 tensors are in both; only two has extra.")));
  const Pair running(Plan{}, live);
  EXPECT_THAT(running.sentences, Contains(HasSubstr("two still runs")));
  TempRun other;
  {
    Writing w(other.path(), 0, 1);
    w.Define(0, "elsewhere", 1);
    w.AddScalar(0, 1);
    w.Step();
    w.Close();
  }
  const auto strangers = OpenCompared({lengths.a.path(), other.path()});
  ASSERT_TRUE(strangers.ok());
  const auto nothing = FindDivergence(*(*strangers)[0].trial, *(*strangers)[1].trial);
  ASSERT_TRUE(nothing.ok());
  EXPECT_THAT(SentencesOf(*nothing, (*strangers)[0], (*strangers)[1], "a", "b"),
              Contains(HasSubstr("no tensor in common")));
  EXPECT_TRUE(CompareNorms(*(*strangers)[0].trial, *(*strangers)[1].trial, 0, 10, 8)->cells.empty());
}

TEST(FindDivergence, OfALargePairLooksAtTheFirstStepsAndSaysSo) {
  const Pair pair(Plan{}, Plan{});
  Plan large;
  large.steps = 1000;
  TempRun a, b;
  Write(a.path(), large);
  Write(b.path(), large);
  const auto runs = OpenCompared({a.path(), b.path()});
  const auto part = FindDivergence(*(*runs)[0].trial, *(*runs)[1].trial, 400);
  ASSERT_TRUE(part.ok());
  EXPECT_FALSE(part->whole);
  EXPECT_EQ(part->steps, 200U);
  EXPECT_THAT(SentencesOf(*part, (*runs)[0], (*runs)[1], "a", "b"),
              Contains(HasSubstr("up to TRAIN step 199")));
}

TEST(CompareNorms, IsTheLogOfTheRatioByBucket) {
  Plan tenfold;
  tenfold.weight = [](int i) { return i < 50 ? 0.0F : 1000.0F; };
  Plan one;
  one.weight = [](int) { return 1.0F; };
  const Pair pair(one, tenfold);
  const auto map = CompareNorms(*pair.runs[0].trial, *pair.runs[1].trial, 0, 99, 10);
  ASSERT_TRUE(map.ok());
  ASSERT_EQ(map->a.size(), 1U);  // scalars have no norm
  EXPECT_EQ(pair.runs[0].trial->tensor(map->a[0]).name, "fc.weight");
  ASSERT_EQ(map->cells.size(), 10U);
  const double down = std::log10(2 / std::sqrt(5.0)), up = std::log10(1000 / std::sqrt(5.0));
  EXPECT_EQ(map->cells[0], std::lround(126 - 126 * std::sqrt(-down / 4)));
  EXPECT_EQ(map->cells[9], std::lround(126 + 126 * std::sqrt(up / 4)));
  EXPECT_EQ(map->first[9], 90);
  EXPECT_EQ(map->last[9], 99);
  EXPECT_EQ(CompareNorms(*pair.runs[0].trial, *pair.runs[1].trial, 20, 22, 10)->first.size(), 3U);
}

TEST(CompareRuns, IsOneDocument) {
  const Pair pair(Plan{}, Plan{});
  const auto json = CompareRuns(pair.runs);
  ASSERT_TRUE(json.ok());
  EXPECT_EQ((*json)["runs"].size(), 2U);
  EXPECT_EQ((*json)["divergence"][0]["b"], 1);
  EXPECT_TRUE((*json)["divergence"][0]["any"].is_null());
  EXPECT_EQ(OpenCompared({pair.a.path()}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenCompared({pair.a.path(), pair.a.path() + "/."}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenCompared({pair.a.path(), pair.a.path() + "-none"}).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace luff::catalog

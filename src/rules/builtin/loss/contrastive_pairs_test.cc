#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules::contrastive_pairs_test {
namespace {

using testing::Batch;
using testing::FakeTrial;
using Rows = std::vector<std::vector<double>>;

// Unit vectors; `noise` is added to those of `base`, if there are any.
Rows Vectors(std::mt19937* random, std::size_t rows, double noise, const Rows& base = {}) {
  std::normal_distribution<double> normal(0, 1);
  Rows all;
  for (std::size_t i = 0; i < rows; ++i) {
    std::vector<double> one(6);
    double squares = 0;
    for (std::size_t k = 0; k < 6; ++k) {
      one[k] = (base.empty() ? 0 : base[i][k]) + noise * normal(*random);
      squares += one[k] * one[k];
    }
    for (double& value : one) value /= std::sqrt(squares);
    all.push_back(one);
  }
  return all;
}

double Product(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
  return sum;
}

// SimCLR: two views of 8 samples, likenesses over 0.3. `noise`: how unlike views are; `mask`: of the
// diagonal.
std::vector<Finding> SimClr(double noise, double mask = -1e9, int steps = 12) {
  FakeTrial trial;
  std::mt19937 random(1);
  for (int step = 0; step < steps; ++step) {
    Rows views = Vectors(&random, 8, 1);
    const Rows second = Vectors(&random, 8, noise, views);
    views.insert(views.end(), second.begin(), second.end());
    Batch batch;
    for (std::size_t i = 0; i < 16; ++i) {
      batch.ids.push_back(static_cast<double>((i + 8) % 16));
      for (std::size_t j = 0; j < 16; ++j)
        batch.scores.push_back(i == j && mask != 0 ? mask : Product(views[i], views[j]) / 0.3);
    }
    testing::TellClasses(&trial, batch, 16);
  }
  return testing::FindingsOf(trial, "ContrastivePairs", ParameterSet::kLuff);
}

TEST(ContrastivePairs, OneViewUsedTwice_IsTold) {
  const auto findings = SimClr(0);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "same_view");
  EXPECT_EQ(findings[0].since_step, 0);
  EXPECT_NE(findings[0].remedy.find("augment each sample twice"), std::string::npos);
  EXPECT_TRUE(SimClr(0, -1e9, 7).empty());
}

TEST(ContrastivePairs, ADiagonalThatIsNotMasked_IsTold) {
  const auto findings = SimClr(0.5, 0);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "itself");
}

TEST(ContrastivePairs, ViewsThatDifferALittle_AreSilent) {
  EXPECT_TRUE(SimClr(0.5).empty());
  EXPECT_TRUE(SimClr(0.03).empty());  // what a trained model gives
  EXPECT_TRUE(SimClr(0.5, -INFINITY).empty());
}

// Image and text: the partner of row i is column i, which no mask hides.
TEST(ContrastivePairs, PairsOnTheDiagonal_AreSilent) {
  FakeTrial trial;
  std::mt19937 random(2);
  for (int step = 0; step < 12; ++step) {
    const Rows a = Vectors(&random, 12, 1);
    const Rows b = Vectors(&random, 12, 0.2, a);
    Batch batch;
    for (std::size_t i = 0; i < 12; ++i) {
      batch.ids.push_back(static_cast<double>(i));
      for (std::size_t j = 0; j < 12; ++j) batch.scores.push_back(Product(a[i], b[j]) / 0.1);
    }
    testing::TellClasses(&trial, batch, 12);
  }
  EXPECT_TRUE(testing::FindingsOf(trial, "ContrastivePairs", ParameterSet::kLuff).empty());
}

// Embeddings that have collapsed to a point are another trouble, as are classes as many as rows.
TEST(ContrastivePairs, CollapseAndManyClasses_AreSilent) {
  FakeTrial trial;
  for (int step = 0; step < 12; ++step) {
    Batch collapsed;
    Batch classes;
    for (int i = 0; i < 10; ++i) {
      collapsed.ids.push_back(i);
      classes.ids.push_back(i % 5);
      for (int j = 0; j < 10; ++j) {
        collapsed.scores.push_back(3.0);
        classes.scores.push_back(j == i % 5 ? 4.0 : 0.1 * j);
      }
    }
    testing::TellClasses(&trial, step % 2 == 0 ? collapsed : classes, 10);
  }
  EXPECT_TRUE(testing::FindingsOf(trial, "ContrastivePairs", ParameterSet::kLuff).empty());
}

// Triplets: the first two arguments are anchor and positive.
std::vector<Finding> Triplets(double noise) {
  FakeTrial trial;
  std::mt19937 random(3);
  for (int step = 0; step < 12; ++step) {
    const Rows anchors = Vectors(&random, 10, 1);
    const Rows positives = noise > 0 ? Vectors(&random, 10, noise, anchors) : anchors;
    std::vector<double> a;
    std::vector<double> p;
    for (std::size_t i = 0; i < 10; ++i) {
      a.insert(a.end(), anchors[i].begin(), anchors[i].end());
      p.insert(p.end(), positives[i].begin(), positives[i].end());
    }
    trial.Step()
        .Loss(0.2, "TripletMarginLoss_output_0")
        .Sample("sample/TripletMarginLoss_input_0", {10, 6}, a)
        .Sample("sample/TripletMarginLoss_input_1", {10, 6}, p);
  }
  return testing::FindingsOf(trial, "ContrastivePairs", ParameterSet::kLuff);
}

TEST(ContrastivePairs, ThePositiveThatIsTheAnchor_IsTold) {
  const auto findings = Triplets(0);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "same_view");
  EXPECT_TRUE(Triplets(0.1).empty());
}

TEST(ContrastivePairs, ResultsThatALossCompares_AreToldOnceAndTakenBack) {
  const auto told = [](const std::vector<std::string>& events) {
    FakeTrial trial;
    for (std::size_t step = 0; step < 12; ++step) {
      trial.Step().Loss(2);
      if (step < events.size()) trial.EventJson(events[step]);
    }
    return testing::FindingsOf(trial, "ContrastivePairs", ParameterSet::kLuff);
  };
  const std::string same = R"({"kind": "same_view", "compared": "Sub"})";
  const std::string over = R"({"kind": "same_view", "compared": ""})";
  auto findings = told({over, same, same});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "same_view");
  EXPECT_EQ(findings[0].step, 1);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_FALSE(findings[0].healed);
  findings = told({same, over});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
  EXPECT_TRUE(told({R"({"kind": "same_view"})", R"({"kind": "same_view", "compared": 1})"}).empty());
}

}  // namespace
}  // namespace luff::rules::contrastive_pairs_test

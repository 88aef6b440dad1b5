#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "server/boosting_scores.h"

namespace luff::server::boosting_scores_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(BoostingScores, ConfusionCountsRowsAndLeavesStrangersOut) {
  const std::vector<double> truth = {0, 0, 1, 2, 2, 7, -1, kNan};
  const std::vector<double> guess = {0, 1, 1, 2, 0, 0, 0, 0};
  EXPECT_EQ(Confusion(truth, guess, 3), (ConfusionMatrix{{1, 1, 0}, {0, 1, 0}, {1, 0, 1}}));
}

TEST(BoostingScores, AveragesAsUsuallyDefined) {
  // Class 0: 3 of 4 rows right; class 1: 1 of 2 right; one row of class 0 was predicted as class 1.
  const Scores scores = ScoresOf({{3, 1}, {1, 1}});
  EXPECT_DOUBLE_EQ(scores.classes[0].precision, 0.75);
  EXPECT_DOUBLE_EQ(scores.classes[0].recall, 0.75);
  EXPECT_DOUBLE_EQ(scores.classes[1].f1, 0.5);
  EXPECT_EQ(scores.classes[1].support, 2U);
  EXPECT_DOUBLE_EQ(scores.accuracy, 4.0 / 6);
  EXPECT_DOUBLE_EQ(scores.micro.f1, 4.0 / 6);
  EXPECT_DOUBLE_EQ(scores.macro.recall, 0.625);
  EXPECT_DOUBLE_EQ(scores.weighted.recall, (4 * 0.75 + 2 * 0.5) / 6);
}

TEST(BoostingScores, AClassThatIsNeverGuessedCountsAsZero) {
  const Scores scores = ScoresOf({{2, 0}, {2, 0}});
  EXPECT_EQ(scores.classes[1].precision, 0);
  EXPECT_EQ(scores.classes[1].f1, 0);
  EXPECT_TRUE(ScoresOf({}).classes.empty());
}

TEST(BoostingScores, RocWithTies) {
  const Roc perfect = RocOf(std::vector<double>{0, 0, 1, 1}, std::vector<double>{0.1, 0.2, 0.8, 0.9});
  EXPECT_DOUBLE_EQ(perfect.area, 1);
  const Roc blind = RocOf(std::vector<double>{0, 1, 0, 1}, std::vector<double>{0.5, 0.5, 0.5, 0.5});
  EXPECT_DOUBLE_EQ(blind.area, 0.5);
  EXPECT_EQ(blind.points.size(), 2U);
  // 3 of 4 pairs (positive, negative) are in order.
  const Roc some = RocOf(std::vector<double>{0, 1, 0, 1}, std::vector<double>{0.1, 0.2, 0.3, 0.4});
  EXPECT_DOUBLE_EQ(some.area, 0.75);
  EXPECT_TRUE(RocOf(std::vector<double>{1, 1}, std::vector<double>{0.1, 0.2}).points.empty());
}

TEST(BoostingScores, BinsAndErrorByBin) {
  const EqualBins bins = CountInBins(std::vector<double>{0, 1, 2, 3, 4, kNan}, 2);
  EXPECT_EQ(bins.counts, (std::vector<double>{2, 3}));
  EXPECT_EQ(bins.high, 4);
  EXPECT_EQ(CountInBins(std::vector<double>{5, 5}, 8).counts, std::vector<double>{2});
  EXPECT_TRUE(CountInBins(std::vector<double>{kNan}, 8).counts.empty());
  const auto errors = ErrorByBin(std::vector<double>{0, 1, 9}, std::vector<double>{1, 1, 7}, 0, 10, 3);
  EXPECT_DOUBLE_EQ(errors[0], 0.5);
  EXPECT_TRUE(std::isnan(errors[1]));
  EXPECT_DOUBLE_EQ(errors[2], 2);
}

}  // namespace
}  // namespace luff::server::boosting_scores_test

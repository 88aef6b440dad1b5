#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "cli/boosting_scores.h"
#include "cli/charts.h"

namespace luff::cli::boosting_test {
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

TEST(BoostingScores, HistogramAndErrorByBin) {
  const Histogram histogram = HistogramOf(std::vector<double>{0, 1, 2, 3, 4, kNan}, 2);
  EXPECT_EQ(histogram.counts, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(HistogramOf(std::vector<double>{5, 5}, 8).counts, std::vector<std::uint64_t>{2});
  EXPECT_TRUE(HistogramOf(std::vector<double>{kNan}, 8).counts.empty());
  const auto errors = ErrorByBin(std::vector<double>{0, 1, 9}, std::vector<double>{1, 1, 7}, 0, 10, 3);
  EXPECT_DOUBLE_EQ(errors[0], 0.5);
  EXPECT_TRUE(std::isnan(errors[1]));
  EXPECT_DOUBLE_EQ(errors[2], 2);
}

TEST(Charts, NamesOfRunsAreHarmless) {
  const std::string bars = BarsSvg("<t>", {{"<script>alert(1)</script>", 0.5}, {"b", kNan}});
  EXPECT_EQ(bars.find("<script"), std::string::npos);
  EXPECT_EQ(bars.find("nan\""), std::string::npos);
  const std::string curves = CurvesSvg(
      {.title = "t", .x_name = "round", .curves = {{"\"><img src=x>", {{0, 1}, {1, kNan}, {2, 3}}}}});
  EXPECT_EQ(curves.find("<img"), std::string::npos);
  EXPECT_NE(curves.find("<path"), std::string::npos);
}

TEST(Charts, NothingToDraw) {
  EXPECT_EQ(BarsSvg("t", {}), "");
  EXPECT_EQ(ColumnsSvg({}), "");
  EXPECT_EQ(CurvesSvg({.title = "t", .x_name = "x", .curves = {{"a", {{0, 1}}}}}), "");
}

TEST(Charts, MarksWhereTheTroubleBeganAndWhatIsNotFinite) {
  CurveChart chart{.title = "t", .curves = {{"", {{0, 1}, {1, 2}, {2, kNan}, {4, kNan}}}}, .mark = 2};
  const std::string svg = CurvesSvg(chart);
  EXPECT_NE(svg.find("<line class=\"mark\" x1=\"478.0\""), std::string::npos);
  EXPECT_NE(svg.find("<circle class=\"bad\" cx=\"892.0\""),
            std::string::npos);                     // the axis ends with the points
  EXPECT_EQ(svg.find("<rect"), std::string::npos);  // no names, no legend
  chart.mark = 5;
  EXPECT_EQ(CurvesSvg(chart).find("mark"), std::string::npos);
}

TEST(Charts, LongCurvesAreThinnedAndEndWhereTheyEnd) {
  Curve curve{"a", {}};
  for (int i = 0; i < 100000; ++i) curve.points.emplace_back(i, i % 7);
  const std::string svg = CurvesSvg({.title = "t", .x_name = "x", .curves = {curve}});
  EXPECT_LT(svg.size(), 20000U);
  EXPECT_NE(svg.find("L892.0"), std::string::npos);  // the last point lies at the right edge
}

}  // namespace
}  // namespace luff::cli::boosting_test

#include "rules/facts/line_fit.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/facts/simple_answers.h"

namespace luff::rules::line_fit_test {
namespace {

struct Data {
  std::vector<double> columns, targets;
  std::vector<std::size_t> halves;
};

// Targets 3 + 2 a - 5 b of columns a around 1,000 and b of deviation 0.01, a third column that is a again.
Data Lines(std::size_t rows, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Data data;
  for (std::size_t i = 0; i < rows; ++i) {
    const double a = 1000 + normal(random);
    const double b = 0.01 * normal(random);
    data.columns.insert(data.columns.end(), {a, b, a});
    data.targets.push_back(3 + 2 * a - 500 * b);
    data.halves.push_back(i % 2);
  }
  return data;
}

TEST(LineFit, AnswersRowsOfEitherHalfByTheOther) {
  LineFit fit;
  for (unsigned batch = 0; batch < 8; ++batch) {
    const Data data = Lines(64, batch);
    fit.Add(data.columns, data.targets, data.halves, false);
  }
  EXPECT_EQ(fit.rows(), 512);
  const Data others = Lines(64, 99);
  std::vector<double> answer;
  for (const std::size_t half : {0U, 1U, 2U}) {
    const LineFit::Line line = fit.Solve(half);
    double left = 0;
    double all = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      fit.Answer(line, &others.columns[3 * i], &answer);
      const double target = fit.Standardised(0, others.targets[i]);
      left += std::pow(answer[0] - target, 2);
      all += std::pow(line.mean[0] - target, 2);
    }
    EXPECT_LT(left, 0.01 * all);
  }
}

TEST(LineFit, WithoutRowsItAnswersNothing_AndOtherWidthsAreIgnored) {
  LineFit fit;
  const Data data = Lines(8, 1);
  fit.Add(data.columns, data.targets, {0, 0, 0, 0, 0, 0, 0, 0}, false);
  const LineFit::Line none = fit.Solve(1);
  std::vector<double> answer;
  fit.Answer(none, data.columns.data(), &answer);
  EXPECT_EQ(answer, std::vector<double>{0});
  fit.Add({1, 2}, {1}, {1}, false);  // two columns
  EXPECT_EQ(fit.rows(), 8);
}

TEST(LineFit, ColumnsThatDoNotVary_AreNothing) {
  LineFit fit;
  fit.Add({5, 5, 5, 5}, {1, 2, 3, 4}, {0, 1, 0, 1}, false);
  std::vector<double> answer;
  const double row = 5;
  fit.Answer(fit.Solve(2), &row, &answer);
  EXPECT_NEAR(answer[0], 0, 1e-12);
}

TEST(LineFit, SumsOfOtherWidths_AreNoState) {
  LineFit fit;
  const Data data = Lines(8, 1);
  fit.Add(data.columns, data.targets, data.halves, false);
  std::string state = Fields::Save([&](Fields& io) { fit.VisitFields(io); });
  LineFit other;
  EXPECT_TRUE(Fields::LoadUntrusted(state, [&](Fields& io) { other.VisitFields(io); }).ok());
  EXPECT_EQ(other.rows(), 8);
  const std::string wide = "\"target_shift\":[";
  state.replace(state.find(wide), wide.size(), wide + "1,");
  LineFit hostile;
  EXPECT_FALSE(Fields::LoadUntrusted(state, [&](Fields& io) { hostile.VisitFields(io); }).ok());
}

TEST(HashCount, CountsDifferentHashesOnce) {
  std::mt19937_64 random(3);
  std::vector<std::uint64_t> hashes(500);
  for (std::uint64_t& hash : hashes) hash = random() >> 12U;
  HashCount rows;
  for (int pass = 0; pass < 4; ++pass)
    for (const std::uint64_t hash : hashes) rows.Add(hash);
  EXPECT_NEAR(rows.count(), 500, 40);
  EXPECT_EQ(HashCount().count(), 0);
}

TEST(PairedLosses, RowsThatComeAgainAreNoFurtherEvidence) {
  PairedLosses losses;
  for (int i = 0; i < 1000; ++i) losses.Add(i % 2, i % 10 == 0 ? 1 : 0, 1);
  EXPECT_NEAR(losses.model_explains(), 0.5, 1e-9);
  EXPECT_NEAR(losses.simple_explains(), 0.9, 1e-9);
  EXPECT_GT(losses.behind(1000), 15);
  EXPECT_LT(losses.behind(30), 4);
}

}  // namespace
}  // namespace luff::rules::line_fit_test

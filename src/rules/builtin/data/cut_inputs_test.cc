#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

/// InputScale: inputs that are cut to integers, scaled along the wrong axis, or hold codes in training and
/// evaluations alike.
namespace luff::rules::cut_inputs_test {
namespace {

using testing::FakeTrial;
using Row = std::vector<double>;
using Make = std::function<Row(std::mt19937&)>;

constexpr int kRows = 80;

double Normal(std::mt19937& random) { return std::normal_distribution<double>()(random); }
double Uniform(std::mt19937& random) { return std::uniform_real_distribution<double>()(random); }

// Sixteen steps of rows, with a regression's target of `shape` if `target` is given; a linear layer reads
// them.
std::string CauseOf(const Make& make, std::vector<std::int64_t> shape = {},
                    const std::function<Row(const Row&)>& target = nullptr,
                    std::vector<std::int64_t> of_target = {}) {
  FakeTrial trial;
  std::mt19937 random(5);
  trial.Define("0_input_0", format::Role::kInput, "Linear");
  for (int step = 0; step < 16; ++step) {
    Row values;
    Row targets;
    for (int row = 0; row < kRows; ++row) {
      Row one = make(random);
      if (target != nullptr) {
        const Row y = target(one);
        targets.insert(targets.end(), y.begin(), y.end());
        if (!shape.empty() || y.size() == one.size())
          for (double& value : one) value = std::trunc(value);
      }
      values.insert(values.end(), one.begin(), one.end());
    }
    std::vector<std::int64_t> whole = shape;
    if (whole.empty()) whole = {static_cast<std::int64_t>(values.size()) / kRows};
    whole.insert(whole.begin(), kRows);
    trial.Step();
    if (target != nullptr) {
      std::vector<std::int64_t> all = of_target;
      all.insert(all.begin(), kRows);
      const Row outputs(targets.size(), 0.1);
      trial.Loss(testing::SquaredError(outputs, targets), "MSELoss_output_0")
          .Sample("sample/MSELoss_input_0", all, outputs)
          .Sample("sample/MSELoss_input_1", all, targets);
    }
    trial.Sample("sample/Net_input_0", whole, values);
    if (step < 4) trial.Tensor("0_input_0", format::Role::kInput, values);
  }
  const auto findings = testing::FindingsOf(trial, "InputScale", ParameterSet::kLuff);
  return findings.empty() ? "" : findings[0].cause;
}

Row Of(std::size_t count, const std::function<double(std::size_t)>& value) {
  Row row(count);
  for (std::size_t i = 0; i < count; ++i) row[i] = value(i);
  return row;
}

TEST(CutInputs, StandardisedColumnsThatAreCut_AreNamed) {
  EXPECT_EQ(CauseOf([](auto& random) { return Of(6, [&](auto) { return std::trunc(Normal(random)); }); }),
            "cut_to_integers");
  // Beside columns of other kinds, and flags.
  EXPECT_EQ(CauseOf([](auto& random) {
              const double angle = 6.28 * Uniform(random);
              return Row{std::trunc(Normal(random)), std::trunc(1.4 * std::sin(angle)),
                         std::trunc(Normal(random)), Uniform(random) < 0.2 ? 1.0 : 0.0};
            }),
            "cut_to_integers");
}

TEST(CutInputs, WholeNumbersOfOtherKinds_AreSilent) {
  const auto silent = [](const Make& make) { EXPECT_EQ(CauseOf(make), ""); };
  // Numbers in full, or rounded.
  silent([](auto& random) { return Of(6, [&](auto) { return Normal(random); }); });
  silent([](auto& random) { return Of(6, [&](auto) { return std::round(Normal(random)); }); });
  // Answers from -2 to 2, signals to buy or sell, fields of a board, votes, genotypes, counts, spins.
  silent([](auto& random) { return Of(6, [&](auto) { return std::floor(5 * Uniform(random)) - 2; }); });
  silent([](auto& random) {
    return Of(6, [&](auto) {
      const double u = Uniform(random);
      return u < 0.15 ? -1.0 : u < 0.3 ? 1.0 : 0.0;
    });
  });
  silent([](auto& random) { return Of(42, [&](auto) { return std::floor(3 * Uniform(random)) - 1; }); });
  silent([](auto& random) { return Of(6, [&](auto) { return std::floor(3 * Uniform(random)); }); });
  silent([](auto& random) {
    return Of(6, [&](auto) { return std::poisson_distribution<int>(0.4)(random) * 1.0; });
  });
  silent([](auto& random) { return Of(6, [&](auto) { return Uniform(random) < 0.5 ? -1.0 : 1.0; }); });
  // Differences of counts of unlike rates.
  silent([](auto& random) {
    return Of(6, [&](std::size_t f) {
      std::poisson_distribution<int> goals(0.3 + 0.4 * static_cast<double>(f));
      return static_cast<double>(goals(random) - goals(random));
    });
  });
}

TEST(CutInputs, WhatTheTargetHasInFull_IsNamed) {
  // A series whose next value is the target.
  const auto series = [](auto& random) {
    const double phase = 6.28 * Uniform(random);
    return Of(12, [&](std::size_t t) {
      return 1.4 * std::sin(phase + 0.25 * static_cast<double>(t)) + 0.2 * Normal(random);
    });
  };
  const auto next = [](const Row& row) { return Row{0.97 * row.back() + 0.02}; };
  EXPECT_EQ(CauseOf(series, {12, 1}, next, {1}), "cut_to_integers");
  // An input that is to be given back.
  const auto numbers = [](auto& random) { return Of(8, [&](auto) { return 1.5 * Normal(random); }); };
  EXPECT_EQ(CauseOf(numbers, {8}, [](const Row& row) { return row; }, {8}), "cut_to_integers");
  // A toy: what is added lies between 0 and 1.
  const auto toy = [](auto& random) {
    return Of(8, [&](auto) { return std::floor(6 * Uniform(random)) + 0.5; });
  };
  EXPECT_EQ(CauseOf(toy, {8}, [](const Row& row) { return row; }, {8}), "");
  // A target that has nothing to do with the steps of the series.
  EXPECT_EQ(CauseOf(series, {12, 1},
                    [](const Row& row) { return Row{row.front() * 7 - std::floor(row.front() * 7)}; }, {1}),
            "");
}

Row ByRow(Row row) {
  double mean = 0;
  double variance = 0;
  const auto n = static_cast<double>(row.size());
  for (const double value : row) mean += value / n;
  for (const double value : row) variance += (value - mean) * (value - mean) / n;
  for (double& value : row) value = (value - mean) / std::sqrt(variance);
  return row;
}

TEST(CutInputs, RowsOfANarrowTableThatAreStandardised_AreNamed) {
  const auto table = [](std::size_t columns) {
    return [columns](auto& random) { return ByRow(Of(columns, [&](auto) { return Normal(random); })); };
  };
  EXPECT_EQ(CauseOf(table(4)), "by_row");
  EXPECT_EQ(CauseOf(table(6)), "by_row");
  EXPECT_EQ(CauseOf(table(20)), "");  // spectra, embeddings
  // Windows of a series that are scaled one by one, and columns that are not.
  EXPECT_EQ(CauseOf([](auto& random) {
              double level = 0;
              return ByRow(Of(6, [&](auto) { return level += Normal(random); }));
            }),
            "");
  EXPECT_EQ(CauseOf([](auto& random) { return Of(4, [&](auto) { return Normal(random); }); }), "");
}

TEST(CutInputs, CodesOfNinesThatALayerReads_AreNamed) {
  const auto with = [](double code, double spread) {
    return [code, spread](auto& random) {
      Row row = Of(5, [&](auto) { return spread * Uniform(random); });
      if (Uniform(random) < 0.1) row[0] = code;
      return row;
    };
  };
  EXPECT_EQ(CauseOf(with(-999, 3)), "missing_code");
  EXPECT_EQ(CauseOf(with(-99, 3)), "missing_code");
  EXPECT_EQ(CauseOf(with(-9999, 40)), "missing_code");
  EXPECT_NE(CauseOf(with(-1, 3)), "missing_code");
  EXPECT_NE(CauseOf(with(-99, 8)), "missing_code");  // may be one of them
  EXPECT_NE(CauseOf(with(-1000, 3)), "missing_code");
  EXPECT_NE(CauseOf(with(1000, 3)), "missing_code");
}

}  // namespace
}  // namespace luff::rules::cut_inputs_test

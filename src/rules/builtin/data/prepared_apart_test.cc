#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

/// TrainValSkew: what training or evaluations do to their rows and the others do not.
namespace luff::rules::prepared_apart_test {
namespace {

using query::Mode;
using testing::FakeTrial;
using Row = std::vector<double>;
using Make = std::function<Row(std::mt19937&)>;

constexpr int kRows = 32;

// Three epochs with evaluations behind them.
std::vector<Finding> FindingsOf(const Make& training, const Make& evaluation,
                                std::vector<std::int64_t> shape = {}) {
  FakeTrial trial;
  std::mt19937 random(5);
  for (int step = 0; step < 60; ++step) {
    const bool train = step % 20 < 16;
    std::vector<double> values;
    for (int row = 0; row < kRows; ++row) {
      const Row one = (train ? training : evaluation)(random);
      values.insert(values.end(), one.begin(), one.end());
    }
    std::vector<std::int64_t> whole = shape;
    if (whole.empty()) whole = {static_cast<std::int64_t>(values.size()) / kRows};
    whole.insert(whole.begin(), kRows);
    trial.Step(train ? Mode::kTrain : Mode::kEval).Sample("sample/Net_input_0", whole, values);
  }
  return testing::FindingsOf(trial, "TrainValSkew", ParameterSet::kLuff);
}

std::string CauseOf(const Make& training, const Make& evaluation, std::vector<std::int64_t> shape = {}) {
  const auto findings = FindingsOf(training, evaluation, std::move(shape));
  return findings.empty() ? "" : findings[0].cause;
}

Row Of(std::size_t count, const std::function<double(std::size_t)>& value) {
  Row row(count);
  for (std::size_t i = 0; i < count; ++i) row[i] = value(i);
  return row;
}

double Normal(std::mt19937& random) { return std::normal_distribution<double>()(random); }
double Uniform(std::mt19937& random) { return std::uniform_real_distribution<double>()(random); }

Row Numbers(std::mt19937& random) {
  return Of(6, [&](std::size_t) { return Normal(random); });
}
// 4 x 4 grey values, a third of them 0 and a tenth 1.
Row Image(std::mt19937& random) {
  return Of(16, [&](std::size_t) {
    const double u = Uniform(random);
    return u < 0.33 ? 0 : u > 0.9 ? 1 : Uniform(random);
  });
}
Row Cut(Row row) {
  for (double& value : row) value = std::trunc(value);
  return row;
}
Make CutOf(const Make& make) {
  return [make](std::mt19937& random) { return Cut(make(random)); };
}

TEST(PreparedApart, ValuesThatACastToIntegersCutsInOneModeOnly_AreNamed) {
  EXPECT_EQ(CauseOf(Numbers, CutOf(Numbers)), "cut");
  EXPECT_EQ(CauseOf(CutOf(Numbers), Numbers), "cut");
  EXPECT_EQ(CauseOf(Image, CutOf(Image), {1, 4, 4}), "cut");
  EXPECT_EQ(CauseOf(CutOf(Image), Image, {1, 4, 4}), "cut");
  EXPECT_EQ(CauseOf(Numbers, CutOf(Numbers), {3, 2}), "cut");  // series
  EXPECT_EQ(CauseOf(Numbers, Numbers), "");
  EXPECT_EQ(CauseOf(CutOf(Numbers), CutOf(Numbers)), "");
  const auto findings = FindingsOf(Numbers, CutOf(Numbers));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].tensor, "sample/Net_input_0");
  EXPECT_NE(findings[0].what.find("cut to integers in evaluations"), std::string::npos) << findings[0].what;
}

// Whole numbers to which the training adds something.
TEST(PreparedApart, WholeNumbersThatTheTrainingChanges_AreSilent) {
  const auto bits = [](std::mt19937& random) {
    return Of(16, [&](std::size_t) { return Uniform(random) < 0.3 ? 1 : 0; });
  };
  const auto signs = [](std::mt19937& random) {
    return Of(16, [&](std::size_t) { return Uniform(random) < 0.5 ? 1 : -1; });
  };
  const auto counts = [](std::mt19937& random) {
    return Of(16, [&](std::size_t) { return std::poisson_distribution<int>(0.7)(random); });
  };
  const auto board = [](std::mt19937& random) {
    return Of(16, [&](std::size_t) { return std::floor(3 * Uniform(random)) - 1; });
  };
  for (const Make& make : std::vector<Make>{bits, signs, counts, board}) {
    const auto noise = [&make](std::mt19937& random) {  // noise
      Row row = make(random);
      for (double& value : row) value += 0.2 * Normal(random);
      return row;
    };
    const auto mixed = [&make](std::mt19937& random) {  // mix-up
      Row row = make(random);
      const Row other = make(random);
      const double share = Uniform(random);
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = share * row[i] + (1 - share) * other[i];
      return row;
    };
    const auto dropped = [&make](std::mt19937& random) {  // dropout of inputs
      Row row = make(random);
      for (double& value : row) value = Uniform(random) < 0.2 ? 0 : value / 0.8;
      return row;
    };
    const auto filled = [&make](std::mt19937& random) {  // a density of whole numbers
      Row row = make(random);
      for (double& value : row) value += Uniform(random);
      return row;
    };
    const auto positive = [&make](std::mt19937& random) {
      Row row = make(random);
      for (double& value : row) value += 0.4 * Uniform(random);
      return row;
    };
    for (const Make& training : std::vector<Make>{noise, mixed, dropped, filled, positive}) {
      EXPECT_NE(CauseOf(training, make), "cut");
      EXPECT_NE(CauseOf(make, training), "cut");
    }
  }
  // Shares in training, the one that is chosen in evaluations.
  const auto soft = [](std::mt19937& random) {
    Row row = Of(8, [&](std::size_t) { return std::exp(2 * Normal(random)); });
    double sum = 0;
    for (const double value : row) sum += value;
    for (double& value : row) value /= sum;
    return row;
  };
  const auto hard = [&soft](std::mt19937& random) {
    Row row = soft(random);
    const double most = *std::max_element(row.begin(), row.end());
    for (double& value : row) value = value == most ? 1 : 0;
    return row;
  };
  EXPECT_EQ(CauseOf(soft, hard), "");
  // Nothing but zeros, as for a baseline.
  EXPECT_NE(CauseOf(Numbers, [](std::mt19937&) { return Row(6, 0.0); }), "cut");
  // Pixels of a threshold at one half.
  const auto black = [](std::mt19937& random) {
    Row row = Image(random);
    for (double& value : row) value = value > 0.5 ? 1 : 0;
    return row;
  };
  EXPECT_EQ(CauseOf(Image, black, {1, 4, 4}), "");
}

Row ByRow(Row row, bool one_less = false) {
  double mean = 0;
  double variance = 0;
  const auto n = static_cast<double>(row.size());
  for (const double value : row) mean += value / n;
  for (const double value : row) variance += (value - mean) * (value - mean) / (one_less ? n - 1 : n);
  for (double& value : row) value = (value - mean) / (std::sqrt(variance) + 1e-6);
  return row;
}

// Correlated columns, as those of a table; images that are brighter or darker as a whole.
Row Table(std::mt19937& random) {
  return Of(5, [&](std::size_t) { return Normal(random); });
}
Row Bright(std::mt19937& random) {
  const double level = Normal(random);
  return Of(27, [&](std::size_t) { return level + Normal(random); });
}

TEST(PreparedApart, RowsThatAreScaledOneByOneInOneModeOnly_AreNamed) {
  const auto by_row = [](const Make& make, bool one_less) {
    return [make, one_less](std::mt19937& random) { return ByRow(make(random), one_less); };
  };
  const auto by_length = [](std::mt19937& random) {
    Row row = Table(random);
    double sum = 0;
    for (const double value : row) sum += value * value;
    for (double& value : row) value /= std::sqrt(sum);
    return row;
  };
  EXPECT_EQ(CauseOf(Table, by_row(Table, false)), "by_row");
  EXPECT_EQ(CauseOf(Table, by_row(Table, true)), "by_row");
  EXPECT_EQ(CauseOf(by_row(Table, true), Table), "by_row");
  EXPECT_EQ(CauseOf(Table, by_length), "by_row");
  EXPECT_EQ(CauseOf(Bright, by_row(Bright, false), {3, 3, 3}), "by_row");
  EXPECT_EQ(CauseOf(Bright, by_row(Bright, false), {9, 3}), "by_row");
  EXPECT_EQ(CauseOf(Table, Table), "");
  EXPECT_EQ(CauseOf(by_row(Table, true), by_row(Table, true)), "");
}

// Denoising: rows of length 1, which get noise in training.
TEST(PreparedApart, RowsOfLengthOneWithNoise_AreSilent) {
  const auto unit = [](std::mt19937& random) {
    Row row = Of(64, [&](std::size_t) { return Normal(random); });
    double sum = 0;
    for (const double value : row) sum += value * value;
    for (double& value : row) value /= std::sqrt(sum);
    return row;
  };
  const auto noise = [&](std::mt19937& random) {
    Row row = unit(random);
    for (double& value : row) value += 0.2 * Normal(random);
    return row;
  };
  EXPECT_EQ(CauseOf(noise, unit), "");
}

// Rows that are standardised one by one on both sides, and changed in training behind that.
TEST(PreparedApart, RowsThatTheTrainingChangesBehindTheirScaling_AreSilent) {
  const auto scaled = [](std::mt19937& random) { return ByRow(Bright(random)); };
  const auto noise = [&](std::mt19937& random) {
    Row row = scaled(random);
    for (double& value : row) value += 0.3 * Normal(random);
    return row;
  };
  const auto mixed = [&](std::mt19937& random) {
    Row row = scaled(random);
    const Row other = scaled(random);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = 0.7 * row[i] + 0.3 * other[i];
    return row;
  };
  const auto erased = [&](std::mt19937& random) {  // a ninth
    Row row = scaled(random);
    const std::size_t from = 3 * (random() % 9);
    for (std::size_t i = 0; i < 3; ++i) row[from + i] = 0;
    return row;
  };
  const auto brighter = [&](std::mt19937& random) {
    Row row = scaled(random);
    const double by = 0.4 * (Uniform(random) - 0.5);
    for (double& value : row) value += by;
    return row;
  };
  for (const Make& training : std::vector<Make>{noise, mixed, erased, brighter})
    EXPECT_EQ(CauseOf(training, scaled, {3, 3, 3}), "");
  const auto table = [](std::mt19937& random) { return ByRow(Table(random)); };
  const auto of_table = [&](std::mt19937& random) {
    Row row = table(random);
    for (double& value : row) value += 0.3 * Normal(random);
    return row;
  };
  EXPECT_EQ(CauseOf(of_table, table), "");
  // One of five, chosen softly in training: whole numbers on the other side.
  const auto chosen = [](std::mt19937& random) {
    Row row(5, 0.0);
    row[random() % 5] = 1;
    return row;
  };
  const auto spread = [](std::mt19937& random) {
    return Of(5, [&](std::size_t) { return 0.4 * Uniform(random); });
  };
  EXPECT_NE(CauseOf(spread, chosen), "by_row");
}

TEST(PreparedApart, ACodeForWhatIsMissingOnOneSideOnly_IsNamed) {
  const auto with = [](double code, double share = 0.1) {
    return [code, share](std::mt19937& random) {
      Row row = Numbers(random);
      if (Uniform(random) < share) row[2] = code;
      return row;
    };
  };
  EXPECT_EQ(CauseOf(Numbers, with(-999)), "code");
  EXPECT_EQ(CauseOf(with(-999), Numbers), "code");
  EXPECT_NE(CauseOf(with(-999), with(-999)), "code");
  EXPECT_NE(CauseOf(Numbers, with(-30)), "code");
  EXPECT_NE(CauseOf(with(-999, 0.005), with(-999)), "code");  // rare there, by chance
  EXPECT_NE(CauseOf(Numbers, with(0)), "code");
}

TEST(PreparedApart, ColumnsInReverseOrderOrTurned_AreNamed_WithoutAnyTarget) {
  const auto wide = [](std::mt19937& random) {
    return Of(12, [&](std::size_t f) {
      return static_cast<double>(f) * 0.3 + (0.5 + 0.2 * static_cast<double>(f)) * Normal(random);
    });
  };
  const auto reversed = [&](std::mt19937& random) {
    Row row = wide(random);
    std::reverse(row.begin(), row.end());
    return row;
  };
  const auto turned = [&](std::mt19937& random) {
    Row row = wide(random);
    std::rotate(row.begin(), row.begin() + 1, row.end());
    return row;
  };
  auto findings = FindingsOf(wide, reversed);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].cause, "moved");
  findings = FindingsOf(wide, turned);
  ASSERT_FALSE(findings.empty());
  EXPECT_NE(findings[0].what.find("its first 1 columns behind the others"), std::string::npos)
      << findings[0].what;
  EXPECT_EQ(CauseOf(wide, wide), "");
  // Windows that rose and now fall: means in reverse order, deviations as before.
  const auto window = [](double slope) {
    return [slope](std::mt19937& random) {
      return ByRow(
          Of(12, [&](std::size_t f) { return slope * static_cast<double>(f) + 3 * Normal(random); }));
    };
  };
  EXPECT_EQ(CauseOf(window(0.3), window(-0.3)), "");
  // Another season: other levels and other deviations.
  const auto season = [](std::mt19937& random) {
    return Of(12, [&](std::size_t f) {
      return 0.6 + static_cast<double>(f) * 0.2 + (0.7 + 0.15 * static_cast<double>(f)) * Normal(random);
    });
  };
  EXPECT_EQ(CauseOf(wide, season), "");
}

// A regression whose targets are `training` and `evaluation` of normal numbers.
std::string TargetsOf(const std::function<double(double)>& training,
                      const std::function<double(double)>& evaluation) {
  FakeTrial trial;
  std::mt19937 random(5);
  for (int step = 0; step < 60; ++step) {
    const bool train = step % 20 < 16;
    std::vector<double> outputs;
    std::vector<double> targets;
    for (int row = 0; row < kRows; ++row) {
      const double x = Normal(random);
      outputs.push_back(0.8 * x);
      targets.push_back((train ? training : evaluation)(x));
    }
    testing::TellPairs(&trial, "MSELoss", testing::SquaredError(outputs, targets), outputs, targets,
                       DType::kFloat32, train ? Mode::kTrain : Mode::kEval);
  }
  const auto findings = testing::FindingsOf(trial, "TrainValSkew", ParameterSet::kLuff);
  return findings.empty() ? "" : findings[0].cause;
}

TEST(PreparedApart, TargetsThatAreCutInOneModeOnly_AreNamed) {
  const auto as_it_is = [](double y) { return y; };
  const auto cut = [](double y) { return std::trunc(y); };
  EXPECT_EQ(TargetsOf(cut, as_it_is), "targets_cut");
  EXPECT_EQ(TargetsOf(as_it_is, cut), "targets_cut");
  EXPECT_EQ(TargetsOf(cut, cut), "");
  EXPECT_EQ(TargetsOf(as_it_is, as_it_is), "");
  // Marks of one person in training, their means in evaluations; labels that are smoothed in training.
  EXPECT_EQ(TargetsOf([](double y) { return std::round(y); }, as_it_is), "");
  EXPECT_EQ(TargetsOf([](double y) { return y > 0 ? 0.9 : 0.1; }, [](double y) { return y > 0 ? 1 : 0; }),
            "");
}

TEST(ErasedValues, ZerosInEvaluationsAlone_AreNamed) {
  const auto erased = [](double share, std::size_t count) -> Make {
    return [=](std::mt19937& random) {
      return Of(count, [&](std::size_t) {
        const double value = Normal(random);
        return Uniform(random) < share ? 0 : value;
      });
    };
  };
  EXPECT_EQ(CauseOf(erased(0, 6), erased(0.5, 6)), "erased");
  EXPECT_EQ(CauseOf(erased(0, 64), erased(0.2, 64), {1, 8, 8}), "erased");
  EXPECT_EQ(CauseOf(erased(0.5, 6), erased(0, 6)), "");  // an augmentation
  EXPECT_EQ(CauseOf(erased(0.3, 6), erased(0.5, 6)), "");
  EXPECT_EQ(CauseOf(erased(0, 6), erased(0.05, 6)), "");
  // How much a model bears is measured: a pass over the rows as they are, and one with half of the values.
  int row = 0;
  const Make tested = [&](std::mt19937& random) { return erased(row++ / kRows % 2 * 0.5, 6)(random); };
  EXPECT_EQ(CauseOf(erased(0, 6), tested), "");
  const Make rows = [](std::mt19937& random) {  // padding of the batch
    const bool none = Uniform(random) < 0.5;
    return Of(6, [&](std::size_t) { return none ? 0 : Normal(random); });
  };
  EXPECT_EQ(CauseOf(erased(0, 6), rows), "");
  const Make last = [](std::mt19937& random) {  // shorter sequences
    const double length = 2 + 4 * Uniform(random);
    return Of(6, [&](std::size_t i) { return static_cast<double>(i) > length ? 0 : Normal(random); });
  };
  EXPECT_EQ(CauseOf(erased(0, 6), last), "");
  const Make one = [](std::mt19937& random) {  // a column that is left out, to see what it is worth
    return Of(6, [&](std::size_t i) { return i == 2 ? 0 : Normal(random); });
  };
  EXPECT_EQ(CauseOf(erased(0, 6), one), "");
}

}  // namespace
}  // namespace luff::rules::prepared_apart_test

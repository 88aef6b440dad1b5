#include "rules/facts/dependence.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "luff/tensor/hash.h"
#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr std::size_t kPermutations = 24;
constexpr std::size_t kMostValues = 256;  // of a row; every n-th of longer ones
constexpr std::size_t kLags = 16;
constexpr std::size_t kQuantiles = 16;
constexpr std::size_t kMostTargets = 64;  // values of a row's target
constexpr double kLargestValue = 1e60;
constexpr double kFar = 3;  // deviations; farther targets count as so far

// Rows of numbers, all of one width.
struct Table {
  std::size_t rows = 0, width = 0;
  std::vector<double> values;
  [[nodiscard]] const double* row(std::size_t i) const { return &values[i * width]; }
  [[nodiscard]] double* row(std::size_t i) { return &values[i * width]; }
};

// The first rows of a sample, of long rows every n-th value. Nothing if a value is not finite.
std::optional<Table> TableOf(const SampleValues& sample, std::size_t rows, std::size_t most) {
  const std::size_t count = sample.values.size() / static_cast<std::size_t>(sample.shape[0]);
  const std::size_t every = (count + most - 1) / std::max<std::size_t>(most, 1);
  Table table;
  table.rows = rows;
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < count; j += every) {
      const double value = sample.values[i * count + j];
      if (!(std::abs(value) < kLargestValue)) return std::nullopt;
      table.values.push_back(value);
    }
  table.width = table.values.size() / rows;
  return table;
}

// Centres columns and divides them by their deviations. Columns that do not vary become 0. Returns how many
// vary.
std::size_t Standardise(Table* table, double far = HUGE_VAL) {
  std::size_t varying = 0;
  const auto rows = static_cast<double>(table->rows);
  for (std::size_t j = 0; j < table->width; ++j) {
    double sum = 0;
    double squares = 0;
    for (std::size_t i = 0; i < table->rows; ++i) sum += table->row(i)[j];
    const double mean = sum / rows;
    for (std::size_t i = 0; i < table->rows; ++i) squares += std::pow(table->row(i)[j] - mean, 2);
    const double deviation = std::sqrt(squares / rows);
    const bool varies = deviation > 1e-9 * std::abs(mean) && deviation > 1e-300;
    if (varies) ++varying;
    for (std::size_t i = 0; i < table->rows; ++i) {
      double& value = table->row(i)[j];
      value = varies ? std::clamp((value - mean) / deviation, -far, far) : 0;
    }
  }
  return varying;
}

// Autocovariances along the last axis, summed over the others: they stay the same where a pattern is shifted.
Table Shifted(const SampleValues& input, std::size_t rows) {
  const std::size_t count = input.values.size() / static_cast<std::size_t>(input.shape[0]);
  const auto length = static_cast<std::size_t>(input.shape.back());
  Table table{rows, std::min(kLags, length), {}};
  for (std::size_t i = 0; i < rows; ++i) {
    const double* row = &input.values[i * count];
    const double mean = std::accumulate(row, row + count, 0.0) / static_cast<double>(count);
    for (std::size_t lag = 0; lag < table.width; ++lag) {
      double sum = 0;
      for (std::size_t begin = 0; begin < count; begin += length)
        for (std::size_t at = begin; at + lag < begin + length; ++at)
          sum += (row[at] - mean) * (row[at + lag] - mean);
      table.values.push_back(sum);
    }
  }
  return table;
}

Table Sorted(const SampleValues& input, std::size_t rows) {
  const std::size_t count = input.values.size() / static_cast<std::size_t>(input.shape[0]);
  Table table{rows, kQuantiles, {}};
  for (std::size_t i = 0; i < rows; ++i) {
    std::vector<double> row(&input.values[i * count], &input.values[i * count] + count);
    std::sort(row.begin(), row.end());
    for (std::size_t q = 0; q < kQuantiles; ++q)
      table.values.push_back(row[q * (count - 1) / (kQuantiles - 1)]);
  }
  return table;
}

// Of a row of vectors (N, T, F), a number for each vector, equal for equal ones: a set of patterns, a
// sequence of zeros and ones. Nothing for other shapes.
std::optional<Table> Parts(const SampleValues& input, std::size_t rows) {
  constexpr std::uint64_t kFitsDouble = (1ULL << 52) - 1;  // a double holds them
  if (input.shape.size() != 3 || input.shape[1] < 2 || input.shape[2] < 2) return std::nullopt;
  const auto count = static_cast<std::size_t>(input.shape[1]);
  const auto width = static_cast<std::size_t>(input.shape[2]);
  if (count > kMostValues) return std::nullopt;
  Table table{rows, count, {}};
  for (std::size_t at = 0; at < rows * count; ++at)
    table.values.push_back(
        static_cast<double>(HashBytes(&input.values[at * width], width * sizeof(double)) & kFitsDouble));
  return table;
}

// The rows of a target, `width` values each; nothing if it does not have so many rows.
std::optional<SampleValues> Divided(const SampleValues& target, std::int64_t whole_rows, std::int64_t rows) {
  if (target.shape.empty() || target.values.empty()) return std::nullopt;
  SampleValues divided = target;
  if (target.whole_shape[0] != whole_rows) {
    if (target.shape.size() != 1 || !target.whole() || whole_rows <= 0 ||
        target.whole_shape[0] % whole_rows != 0)
      return std::nullopt;
    divided.shape = divided.whole_shape = {whole_rows, target.shape[0] / whole_rows};
  }
  if (divided.shape[0] < rows) return std::nullopt;
  return divided;
}

}  // namespace

// Pairs of rows with weights.
struct Dependence::Links {
  struct Link {
    std::size_t a = 0, b = 0;
    double weight = 1;
  };
  std::vector<Link> all;

  // Each row with its nearest one.
  static Links Nearest(Table table) {
    Links links;
    if (Standardise(&table) == 0) return links;
    for (std::size_t i = 0; i < table.rows; ++i) {
      double least = HUGE_VAL;
      std::size_t nearest = i;
      for (std::size_t j = 0; j < table.rows; ++j) {
        if (j == i) continue;
        double distance = 0;
        for (std::size_t k = 0; k < table.width && distance < least; ++k)
          distance += std::pow(table.row(i)[k] - table.row(j)[k], 2);
        if (distance < least) {
          least = distance;
          nearest = j;
        }
      }
      if (nearest != i) links.all.push_back({i, nearest});
    }
    return links;
  }

  // Rows that have ids in common: at the same place, or anywhere.
  static Links Common(const Table& table, bool anywhere) {
    Links links;
    std::vector<std::set<double>> sets;
    for (std::size_t i = 0; anywhere && i < table.rows; ++i)
      sets.emplace_back(table.row(i), table.row(i) + table.width);
    for (std::size_t i = 0; i < table.rows; ++i)
      for (std::size_t j = i + 1; j < table.rows; ++j) {
        double common = 0;
        if (anywhere) {
          for (const double id : sets[i]) common += sets[j].contains(id) ? 1 : 0;
        } else {
          for (std::size_t k = 0; k < table.width; ++k) common += table.row(i)[k] == table.row(j)[k] ? 1 : 0;
        }
        if (common > 0) links.all.push_back({i, j, common * common});
      }
    return links;
  }
};

// How alike the targets of two rows are.
struct Dependence::Likeness {
  bool ids = false;
  Table table;

  static std::optional<Likeness> Of(const SampleValues& target, std::size_t rows) {
    std::optional<Table> table = TableOf(target, rows, kMostTargets);
    if (!table) return std::nullopt;
    Likeness likeness{IsIds(target.dtype), std::move(*table)};
    Table standard = likeness.table;
    if (Standardise(&standard, kFar) == 0) return std::nullopt;
    if (!likeness.ids) likeness.table = std::move(standard);
    return likeness;
  }
  [[nodiscard]] double operator()(std::size_t a, std::size_t b) const {
    double sum = 0;
    const double* x = table.row(a);
    const double* y = table.row(b);
    for (std::size_t k = 0; k < table.width; ++k) sum += ids ? (x[k] == y[k] ? 1 : 0) : x[k] * y[k];
    return sum;
  }
};

void Dependence::Test(WayId way, const Links& links, const Likeness& likeness, std::uint64_t seed) {
  if (links.all.empty()) return;
  std::vector<std::size_t> order(likeness.table.rows);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto sum = [&] {
    double total = 0;
    for (const Links::Link& link : links.all) total += link.weight * likeness(order[link.a], order[link.b]);
    return total;
  };
  const double observed = sum();
  std::mt19937_64 random(seed);
  double mean = 0;
  double squares = 0;
  for (std::size_t p = 0; p < kPermutations; ++p) {
    for (std::size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
    const double by_chance = sum();
    mean += by_chance / kPermutations;
    squares += by_chance * by_chance / kPermutations;
  }
  const double variance = (squares - mean * mean) * kPermutations / (kPermutations - 1);
  if (!(variance > 1e-9 * squares) || !std::isfinite(observed)) return;
  ways_[way].excess += observed - mean;
  ways_[way].variance += variance;
}

void Dependence::Correlate(const SampleValues& input, const SampleValues& target, std::size_t rows) {
  std::optional<Table> x = TableOf(input, rows, kColumns);
  std::optional<Table> y = TableOf(target, rows, kTargets);
  if (!x || !y) return;
  if (IsIds(target.dtype) && y->width == 1) {
    Table classes{rows, kTargets, std::vector<double>(rows * kTargets)};
    for (std::size_t i = 0; i < rows; ++i)
      classes.row(i)[static_cast<std::size_t>(std::abs(std::fmod(y->row(i)[0], kTargets)))] = 1;
    y = std::move(classes);
  }
  if (Standardise(&*x, kFar) == 0 || Standardise(&*y, kFar) == 0) return;
  const std::size_t pairs = x->width * y->width;
  if (products_.size() != pairs) {
    products_.assign(pairs, 0);
    correlated_ = 0;
  }
  correlated_ += static_cast<double>(rows);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < x->width; ++j)
      for (std::size_t k = 0; k < y->width; ++k) products_[j * y->width + k] += x->row(i)[j] * y->row(i)[k];
}

void Dependence::Add(const SampleValues& input, const SampleValues& target, bool fresh, std::uint64_t seed) {
  const Rows rows = RowsOf(input);
  if (rows.count < kLeastRows || rows.width == 0 || input.whole_shape.empty()) return;
  const std::size_t count = std::min(rows.count, kMostRows);
  const auto divided = Divided(target, input.whole_shape[0], static_cast<std::int64_t>(count));
  if (!divided) return;
  const std::optional<Likeness> likeness = Likeness::Of(*divided, count);
  const std::optional<Table> values = TableOf(input, count, kMostValues);
  if (!likeness || !values) return;
  rows_ += static_cast<double>(count);
  if (!IsFloating(input.dtype)) {
    Test(kSameId, Links::Common(*values, false), *likeness, seed);
    if (values->width > 1) Test(kSharedId, Links::Common(*values, true), *likeness, seed);
    return;
  }
  if (fresh) Correlate(input, *divided, count);
  Test(kValues, Links::Nearest(*values), *likeness, seed);
  if (const auto parts = Parts(input, count)) Test(kSharedPart, Links::Common(*parts, true), *likeness, seed);
  if (rows.width < 2 * kLags || input.shape.size() < 2) return;
  Test(kShifted, Links::Nearest(Shifted(input, count)), *likeness, seed);
  Test(kSorted, Links::Nearest(Sorted(input, count)), *likeness, seed);
}

void Dependence::AddAnswers(const SampleValues& answer, const SampleValues& target, std::uint64_t seed) {
  const Rows rows = RowsOf(answer);
  if (rows.count < kLeastRows || rows.width == 0 || answer.whole_shape.empty()) return;
  const std::size_t count = std::min(rows.count, kMostRows);
  const auto divided = Divided(target, answer.whole_shape[0], static_cast<std::int64_t>(count));
  if (!divided) return;
  const std::optional<Likeness> likeness = Likeness::Of(*divided, count);
  const std::optional<Table> values = TableOf(answer, count, kMostValues);
  if (likeness && values) Test(kAnswers, Links::Nearest(*values), *likeness, seed);
}

double Dependence::z() const noexcept {
  double largest = 0;
  for (const Way& way : ways_) {
    if (way.variance > 0) largest = std::max(largest, way.excess / std::sqrt(way.variance));
  }
  double product = 0;
  for (const double sum : products_) product = std::max(product, std::abs(sum));
  if (correlated_ > 0) {
    // The largest of n standard normal values is hardly above sqrt(2 ln n).
    const double by_chance = std::sqrt(2 * std::log(static_cast<double>(products_.size()) + 1));
    largest = std::max(largest, product / std::sqrt(correlated_) - by_chance);
  }
  return largest;
}

void Dependence::VisitFields(Fields& io) {
  constexpr std::array<const char*, kWays> kNames = {"values",    "shifted", "sorted",     "same_id",
                                                     "shared_id", "answers", "shared_part"};
  io("rows", rows_);
  io("products", products_, kColumns * kTargets);
  io("correlated", correlated_);
  for (std::size_t way = 0; way < kWays; ++way) io(kNames[way], ways_[way]);
}

bool CannotRepeat(const double* row, std::size_t width) {
  constexpr std::size_t kLevels = 8;
  std::set<double> levels;
  for (std::size_t i = 0; i < width && levels.size() < kLevels; ++i) levels.insert(row[i]);
  return levels.size() >= kLevels;
}

std::optional<std::pair<SampleValues, SampleValues>> TellingRows(const SampleValues& sample,
                                                                 const SampleValues& target, double ignored) {
  const Rows shape = RowsOf(sample);
  const std::size_t count = shape.count;
  if (count < 2 || target.shape.empty() || static_cast<std::size_t>(target.shape[0]) != count)
    return std::nullopt;
  const std::vector<std::uint64_t> hashes = RowHashes(sample);
  const bool ids = !target.is_float() && target.values.size() == count;
  std::set<std::uint64_t> met;
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < count; ++i) {
    const bool fresh = met.insert(hashes[i]).second;
    const bool labelled = !ids || target.values[i] != ignored;
    if (labelled && (fresh || !CannotRepeat(&sample.values[i * shape.width], shape.width))) kept.push_back(i);
  }
  if (kept.size() == count) return std::nullopt;
  const auto take = [&](const SampleValues& from) {
    SampleValues to;
    to.tensor = from.tensor;
    to.dtype = from.dtype;
    to.shape = from.shape;
    to.shape[0] = static_cast<std::int64_t>(kept.size());
    to.whole_shape = to.shape;
    const std::size_t each = from.values.size() / count;
    for (const std::size_t row : kept) {
      const auto at = from.values.begin() + static_cast<std::ptrdiff_t>(row * each);
      to.values.insert(to.values.end(), at, at + static_cast<std::ptrdiff_t>(each));
    }
    return to;
  };
  return std::pair{take(sample), take(target)};
}

}  // namespace luff::rules

#include "rules/facts/correlations.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "luff/rules/rule.h"
#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr double kLargest = 1e60;
constexpr std::size_t kMaxPairs = Correlations::kMaxColumns * (Correlations::kMaxColumns - 1) / 2;

/// The number of columns of a kind; 0 if there are none.
std::size_t ColumnsOf(const std::string& kind) {
  if (kind.empty()) return 0;
  if (!kind.starts_with("2,")) return 1;
  const Result<std::int64_t> width = ParseInt(kind.substr(kind.rfind(',') + 1));
  return width.ok() && *width >= 3 ? std::min(static_cast<std::size_t>(*width), Correlations::kMaxColumns)
                                   : 0;
}

std::size_t PairsOf(std::size_t columns) { return columns < 2 ? columns : columns * (columns - 1) / 2; }

}  // namespace

void Correlations::Clear() {
  kind_.clear();
  rows_ = 0;
  for (auto* sums : {&reference_, &n_, &x_, &y_, &xx_, &yy_, &xy_}) sums->clear();
}

void Correlations::Add(const SampleValues& sample) {
  const Rows rows = RowsOf(sample);
  const std::size_t axes = sample.shape.size();
  if (axes < 2 || rows.count == 0 || rows.width < (axes == 2 ? 3 : 2)) return;
  // Neighbours are `stride` values apart, along an axis of `length` places.
  const bool second = axes == 3 && sample.shape[1] >= sample.shape[2];
  const auto stride = second ? static_cast<std::size_t>(sample.shape[2]) : 1;
  const auto length = static_cast<std::size_t>(second ? sample.shape[1] : sample.shape.back());
  const std::string kind = fmt::format("{},{},{}", axes, second ? 1 : axes - 1, axes == 2 ? rows.width : 1);
  const std::size_t columns = ColumnsOf(kind);
  if (kind != kind_) {
    Clear();
    kind_ = kind;
    reference_.assign(columns, 0);
    for (auto* sums : {&n_, &x_, &y_, &xx_, &yy_, &xy_}) sums->assign(PairsOf(columns), 0);
  }
  for (std::size_t row = 0; row < rows.count; ++row) {
    const double* values = sample.values.data() + row * rows.width;
    const std::size_t used = axes == 2 ? columns : rows.width;
    if (!std::all_of(values, values + used, [](double value) { return std::abs(value) < kLargest; }))
      continue;
    if (rows_++ == 0) std::copy_n(values, columns, reference_.begin());
    std::size_t pair = 0;
    if (axes == 2) {
      for (std::size_t i = 0; i < columns; ++i)
        for (std::size_t j = i + 1; j < columns; ++j)
          AddPair(pair++, values[i] - reference_[i], values[j] - reference_[j]);
      continue;
    }
    for (std::size_t begin = 0; begin < rows.width; begin += length * stride)
      for (std::size_t i = begin; i + stride < begin + length * stride; ++i)
        AddPair(0, values[i] - reference_[0], values[i + stride] - reference_[0]);
  }
}

double Correlations::independent() const noexcept {
  const auto rows = static_cast<double>(rows_);
  return pairs() == 1 ? std::max(rows, n_[0] / 16) : rows;
}

void Correlations::AddPair(std::size_t pair, double x, double y) noexcept {
  n_[pair] += 1;
  x_[pair] += x;
  y_[pair] += y;
  xx_[pair] += x * x;
  yy_[pair] += y * y;
  xy_[pair] += x * y;
}

std::pair<std::size_t, std::size_t> Correlations::ColumnsAt(std::size_t pair) const noexcept {
  const std::size_t columns = reference_.size();
  if (columns == 1) return {0, 0};
  std::size_t i = 0;
  for (; pair >= columns - 1 - i; ++i) pair -= columns - 1 - i;
  return {i, i + 1 + pair};
}

Correlations::Pair Correlations::at(std::size_t pair) const noexcept {
  Pair found;
  const double n = n_[pair];
  if (n <= 0) return found;
  const double x = x_[pair] / n;
  const double y = y_[pair] / n;
  found.variance_x = std::max(xx_[pair] / n - x * x, 0.0);
  found.variance_y = std::max(yy_[pair] / n - y * y, 0.0);
  const double scale = std::sqrt(found.variance_x) * std::sqrt(found.variance_y);
  if (scale > 1e-12 * (x * x + y * y) && scale > 1e-300)
    found.r = std::clamp((xy_[pair] / n - x * y) / scale, -1.0, 1.0);
  const auto [i, j] = ColumnsAt(pair);
  found.mean_x = reference_[i] + x;
  found.mean_y = reference_[j] + y;
  return found;
}

void Correlations::VisitFields(Fields& io) {
  io("kind", kind_);
  io("rows", rows_);
  io("reference", reference_, kMaxColumns);
  io("n", n_, kMaxPairs);
  io("x", x_, kMaxPairs);
  io("y", y_, kMaxPairs);
  io("xx", xx_, kMaxPairs);
  io("yy", yy_, kMaxPairs);
  io("xy", xy_, kMaxPairs);
  if (!io.loading()) return;
  const std::size_t columns = ColumnsOf(kind_);
  io.Check(reference_.size() == columns, "its columns");
  for (const auto* sums : {&reference_, &n_, &x_, &y_, &xx_, &yy_, &xy_}) {
    const bool finite =
        std::all_of(sums->begin(), sums->end(), [](double value) { return std::isfinite(value); });
    io.Check(finite && (sums == &reference_ || sums->size() == PairsOf(columns)), "sums of its pairs");
  }
}

}  // namespace luff::rules

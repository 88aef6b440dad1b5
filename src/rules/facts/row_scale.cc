#include "rules/facts/row_scale.h"

#include <algorithm>
#include <cmath>

#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr double kLargestScaled = 1e60;
constexpr std::size_t kFewestValues = 3;
constexpr double kExactScale = 5e-3;  // of a row's deviation: what half precision leaves
constexpr double kFewestScaled = 32;
// Means of rows that were scaled one by one and then changed stay near 0: a mixture of such rows has mean 0,
// noise of a third of their size moves the mean of a row of F values by a third of 1 / sqrt(F), and a crop,
// or an erased part, moves that of an image by less than 0.3.
constexpr double kOfColumns = 0.5, kOfPlaces = 0.3;
constexpr double kLonger = 1.5, kUnlikeLengths = 3;

}  // namespace

void RowScale::Add(const SampleValues& sample) {
  const Rows rows = RowsOf(sample);
  if (rows.width < kFewestValues) return;
  const auto axes = static_cast<std::int64_t>(sample.shape.size());
  if (width_ != static_cast<std::int64_t>(rows.width) || axes_ != axes) {
    Clear();
    width_ = static_cast<std::int64_t>(rows.width);
    axes_ = axes;
  }
  const auto n = static_cast<double>(rows.width);
  for (std::size_t i = 0; i < rows.count; ++i) {
    const double* row = &sample.values[i * rows.width];
    if (!std::all_of(row, row + rows.width, [](double x) { return std::abs(x) < kLargestScaled; })) continue;
    double mean = 0;
    for (std::size_t k = 0; k < rows.width; ++k) {
      mean += row[k] / n;
      whole_ = whole_ && row[k] == std::trunc(row[k]);
    }
    double variance = 0;
    for (std::size_t k = 0; k < rows.width; ++k) variance += (row[k] - mean) * (row[k] - mean) / n;
    const double deviation = std::sqrt(variance);
    const double length = std::sqrt(n * (variance + mean * mean));
    if (!(deviation > 1e-9 * length)) continue;
    const bool first = rows_ == 0;
    rows_ += 1;
    largest_mean_ = std::max(largest_mean_, std::abs(mean) / deviation);
    least_deviation_ = first ? deviation : std::min(least_deviation_, deviation);
    largest_deviation_ = std::max(largest_deviation_, deviation);
    least_length_ = first ? length : std::min(least_length_, length);
    largest_length_ = std::max(largest_length_, length);
    mean_ += mean;
    mean2_ += mean * mean;
    variance_ += variance;
    for (std::size_t k = 1; k < rows.width; ++k)
      steps_ += (row[k] - row[k - 1]) * (row[k] - row[k - 1]) / (n - 1);
    length_ += length;
  }
}

RowScale::By RowScale::by() const noexcept {
  if (rows_ < kFewestScaled || whole_) return By::kNothing;
  // The deviation of a row of n values is 1, or sqrt((n - 1) / n) if the one that is divided by has n - 1.
  const auto n = static_cast<double>(width_);
  const auto near = [](double value, double to) { return std::abs(value - to) <= kExactScale * to; };
  const auto all_near = [&](double to) { return near(least_deviation_, to) && near(largest_deviation_, to); };
  if (largest_mean_ <= kExactScale && (all_near(1) || all_near(std::sqrt((n - 1) / n))))
    return By::kDeviation;
  if (near(least_length_, 1) && near(largest_length_, 1)) return By::kLength;
  return By::kNothing;
}

double RowScale::means_spread() const noexcept {
  if (rows_ < 2 || !(variance_ > 0)) return 0;
  const double mean = mean_ / rows_;
  return std::sqrt(std::max(mean2_ / rows_ - mean * mean, 0.0) / (variance_ / rows_));
}

double RowScale::neighbours() const noexcept {
  const auto n = static_cast<double>(width_);
  return variance_ > 0 ? steps_ / (variance_ * 2 * n / (n - 1)) : 0;
}

RowScale::By RowScale::Compare(const RowScale& one, const RowScale& other) {
  const By by = one.by();
  if (by == By::kNothing || one.width_ != other.width_ || one.axes_ != other.axes_ ||
      other.rows_ < kFewestScaled || other.whole_ || other.by() != By::kNothing)
    return By::kNothing;
  if (by == By::kLength) {
    const double ratio = other.mean_length();
    // Noise makes all rows longer, by about as much.
    const bool longer = ratio >= kLonger && other.largest_length_ >= kUnlikeLengths * other.least_length_;
    return longer || ratio * kLonger <= 1 ? by : By::kNothing;
  }
  const double places = std::sqrt(static_cast<double>(one.width_));
  const double least = one.axes_ == 2 ? kOfColumns / places : kOfPlaces;
  return other.means_spread() >= least ? by : By::kNothing;
}

void RowScale::VisitFields(Fields& io) {
  io("rows", rows_);
  io("width", width_);
  io("axes", axes_);
  io("whole", whole_);
  io("largest_mean", largest_mean_);
  io("least_deviation", least_deviation_);
  io("largest_deviation", largest_deviation_);
  io("least_length", least_length_);
  io("largest_length", largest_length_);
  io("mean", mean_);
  io("mean2", mean2_);
  io("variance", variance_);
  io("length", length_);
  io("steps", steps_);
  io.Check(width_ >= 0 && axes_ >= 0, "sizes of 0 or more");
}

}  // namespace luff::rules

#include "rules/facts/noise_level.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

struct Slope {
  std::size_t row;
  double value, error;  // squared
};

// The slopes of all rows that have one.
std::vector<Slope> SlopesOf(const SampleValues& input, const SampleValues& target, const Rows& shape) {
  std::vector<Slope> slopes;
  const double count = static_cast<double>(shape.width);
  for (std::size_t row = 0; row < shape.count; ++row) {
    const double* x = &input.values[row * shape.width];
    const double* t = &target.values[row * shape.width];
    double sx = 0;
    double st = 0;
    double sxx = 0;
    double stt = 0;
    double sxt = 0;
    for (std::size_t i = 0; i < shape.width; ++i) {
      sx += x[i];
      st += t[i];
      sxx += x[i] * x[i];
      stt += t[i] * t[i];
      sxt += x[i] * t[i];
    }
    const double of_t = stt - st * st / count;
    if (!(of_t > 0) || !std::isfinite(sxx) || !std::isfinite(sxt)) continue;
    const double both = sxt - sx * st / count;
    const double slope = both / of_t;
    const double left = std::max(sxx - sx * sx / count - slope * both, 0.0);
    slopes.push_back({row, slope, left / (count - 2) / of_t});
  }
  return slopes;
}

}  // namespace

void NoiseLevel::Add(const SampleValues& input, const SampleValues& target,
                     const std::vector<const SampleValues*>& others) {
  const Rows shape = RowsOf(target);
  if (unfit_ || shape.width < kNumbersOfARow || input.values.size() != target.values.size()) return;
  std::size_t columns = 0;
  for (const SampleValues* other : others) columns += RowsOf(*other).width;
  if (rows_ == 0) columns_.resize(std::min(columns, kMaxColumns));
  // The level may stand in any column: if one is left out, nothing can be said.
  unfit_ = columns > kMaxColumns || columns_.size() != columns ||
           std::any_of(others.begin(), others.end(),
                       [&](const SampleValues* other) { return RowsOf(*other).count < shape.count; });
  if (unfit_) return;
  const std::vector<Slope> slopes = SlopesOf(input, target, shape);
  if (slopes.size() < kLeastOfABatch) return;
  const double count = static_cast<double>(slopes.size());
  double mean = 0;
  for (const Slope& slope : slopes) mean += slope.value / count;
  const double correction = count / (count - 1);
  for (const Slope& slope : slopes) {
    const double square = (slope.value - mean) * (slope.value - mean) * correction;
    levels_ += slope.value;
    squares_ += square;
    beyond_ += square - slope.error;
    fourths_ += (square - slope.error) * (square - slope.error);
  }
  rows_ += count;
  std::size_t column = 0;
  for (const SampleValues* other : others) {
    const std::size_t width = RowsOf(*other).width;
    for (std::size_t i = 0; i < width && column < columns_.size(); ++i, ++column) {
      double middle = 0;
      for (const Slope& slope : slopes) middle += other->values[slope.row * width + i] / count;
      double distance = 0;
      double square = 0;
      for (const Slope& slope : slopes) {
        const double value = other->values[slope.row * width + i] - middle;
        distance += std::abs(value) / count;
        square += value * value / count;
      }
      for (const Slope& slope : slopes) {
        const double whole = other->values[slope.row * width + i];
        const double value = whole - middle;
        const double level = slope.value - mean;
        columns_[column].all += whole * whole;
        columns_[column].plain.Add(value, level);
        columns_[column].distance.Add(std::abs(value) - distance, level);
        columns_[column].square.Add(value * value - square, level);
      }
    }
  }
}

double NoiseLevel::mean() const { return rows_ > 0 ? levels_ / rows_ : 0; }

double NoiseLevel::spread() const { return rows_ > 0 ? std::sqrt(std::max(beyond_ / rows_, 0.0)) : 0; }

double NoiseLevel::correlation() const {
  double most = 0;
  for (const Column& column : columns_) {
    if (!(column.plain.xx > 1e-9 * column.all) || !(squares_ > 0)) continue;  // one number for all rows
    for (const Pair* pair : {&column.plain, &column.distance, &column.square})
      if (pair->xx > 0) most = std::max(most, std::abs(pair->xy) / std::sqrt(pair->xx * squares_));
  }
  return most;
}

bool NoiseLevel::Hidden() const {
  if (unfit_ || columns_.empty() || rows_ < kLeastRows || !std::isfinite(squares_)) return false;
  const double beyond = beyond_ / rows_;
  const double doubt = std::sqrt(std::max(fourths_ / rows_ - beyond * beyond, 0.0) / rows_);
  const double least = kVaries * mean();
  return mean() > 0 && beyond - 4 * doubt > least * least && correlation() <= 4 / std::sqrt(rows_);
}

void NoiseLevel::Tell(const std::string& loss, Finding* finding) const {
  finding->what = "the denoiser is not told how much noise its inputs hold: the time that it gets is another";
  finding->why = fmt::format(
      "the targets of {} are independent draws from N(0, 1), and the input holds them {:.2g} times, give "
      "or "
      "take {:.2g}: in {:.0f} rows no other argument of the model goes together with that (correlation "
      "{:.2g})",
      loss, mean(), spread(), rows(), correlation());
  finding->remedy =
      "pass the same t to the model that the noise was mixed with: x = sqrt(abar[t]) * x0 + sqrt(1 - "
      "abar[t]) "
      "* noise; model(x, t)";
  finding->causes = {"the time is not passed on, or is always the same",
                     "a time that is drawn a second time for the model"};
  finding->evidence = {
      {"rows", rows()}, {"level", mean()}, {"spread", spread()}, {"correlation", correlation()}};
  finding->threshold = fmt::format(
      "levels spread over {:g} of their mean, a correlation within four standard errors of 0, {:g} rows "
      "(Luff)",
      kVaries, kLeastRows);
}

void NoiseLevel::VisitFields(Fields& io) {
  io("rows", rows_);
  io("levels", levels_);
  io("squares", squares_);
  io("beyond", beyond_);
  io("fourths", fourths_);
  io("columns", columns_, kMaxColumns);
  io("unfit", unfit_);
}

}  // namespace luff::rules

#include "rules/facts/line_fit.h"

#include <algorithm>
#include <cmath>

namespace luff::rules {
namespace {

constexpr double kPenalty = 1.0 / 32;  // rows of the penalty for each row
constexpr double kFarColumn = 10;      // deviations; farther values count as so far

std::size_t Triangle(std::size_t width) { return width * (width + 1) / 2; }

// Mean and deviation of each column; those that do not vary get 1.
void Measure(const std::vector<double>& values, std::size_t rows, std::vector<double>* shift,
             std::vector<double>* scale) {
  const std::size_t width = shift->size();
  for (std::size_t j = 0; j < width; ++j) {
    double sum = 0;
    double squares = 0;
    for (std::size_t i = 0; i < rows; ++i) sum += values[i * width + j];
    const double mean = sum / static_cast<double>(rows);
    for (std::size_t i = 0; i < rows; ++i) squares += std::pow(values[i * width + j] - mean, 2);
    const double deviation = std::sqrt(squares / static_cast<double>(rows));
    (*shift)[j] = mean;
    (*scale)[j] = deviation > 1e-9 * std::abs(mean) && deviation > 1e-150 ? deviation : 1;
  }
}

// Solves (matrix + penalty I) x = right for `count` right sides (width x count), in place; the matrix is a
// lower triangle by rows, positive semidefinite.
void SolveRidge(std::vector<double> matrix, double penalty, std::size_t width, std::size_t count,
                std::vector<double>* right) {
  std::vector<double>& x = *right;
  const auto at = [&](std::size_t i, std::size_t j) -> double& { return matrix[Triangle(i) + j]; };
  for (std::size_t j = 0; j < width; ++j) {
    for (std::size_t i = j; i < width; ++i) {
      double sum = at(i, j) + (i == j ? penalty : 0);
      for (std::size_t k = 0; k < j; ++k) sum -= at(i, k) * at(j, k);
      at(i, j) = i == j ? std::sqrt(std::max(sum, 0.5 * penalty)) : sum / at(j, j);
    }
  }
  for (std::size_t i = 0; i < width; ++i)
    for (std::size_t c = 0; c < count; ++c) {
      double sum = x[i * count + c];
      for (std::size_t k = 0; k < i; ++k) sum -= at(i, k) * x[k * count + c];
      x[i * count + c] = sum / at(i, i);
    }
  for (std::size_t i = width; i-- > 0;)
    for (std::size_t c = 0; c < count; ++c) {
      double sum = x[i * count + c];
      for (std::size_t k = i + 1; k < width; ++k) sum -= at(k, i) * x[k * count + c];
      x[i * count + c] = sum / at(i, i);
    }
}

}  // namespace

double LineFit::Column(std::size_t j, double value) const {
  return std::clamp((value - shift_[j]) / scale_[j], -kFarColumn, kFarColumn);
}

void LineFit::Begin(const std::vector<double>& columns, const std::vector<double>& targets, std::size_t rows,
                    bool as_they_are) {
  const std::size_t width = columns.size() / rows;
  const std::size_t count = targets.size() / rows;
  if (width == 0 || count == 0 || width > kMostWidth || count > kMostTargets) return;
  shift_.assign(width, 0);
  scale_.assign(width, 1);
  Measure(columns, rows, &shift_, &scale_);
  target_shift_.assign(count, 0);
  target_scale_.assign(count, 1);
  if (!as_they_are) Measure(targets, rows, &target_shift_, &target_scale_);
  for (Half& half : halves_) {
    half.columns.assign(width, 0);
    half.targets.assign(count, 0);
    half.squares.assign(Triangle(width), 0);
    half.products.assign(width * count, 0);
  }
}

void LineFit::Add(const std::vector<double>& columns, const std::vector<double>& targets,
                  const std::vector<std::size_t>& halves, bool as_they_are) {
  const std::size_t rows = halves.size();
  if (rows == 0) return;
  if (width() == 0) Begin(columns, targets, rows, as_they_are);
  if (width() == 0 || columns.size() != rows * width() || targets.size() != rows * this->targets()) return;
  std::vector<double> x(width());
  std::vector<double> y(this->targets());
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) x[j] = Column(j, columns[i * x.size() + j]);
    for (std::size_t c = 0; c < y.size(); ++c) y[c] = Standardised(c, targets[i * y.size() + c]);
    Half& half = halves_[halves[i] & 1];
    half.rows += 1;
    for (std::size_t c = 0; c < y.size(); ++c) half.targets[c] += y[c];
    for (std::size_t j = 0; j < x.size(); ++j) {
      half.columns[j] += x[j];
      for (std::size_t k = 0; k <= j; ++k) half.squares[Triangle(j) + k] += x[j] * x[k];
      for (std::size_t c = 0; c < y.size(); ++c) half.products[j * y.size() + c] += x[j] * y[c];
    }
  }
}

LineFit::Line LineFit::Solve(std::size_t half) const {
  Half sums = halves_[half & 1];
  if (half > 1) {
    const Half& other = halves_[1];
    const auto add = [](std::vector<double>* to, const std::vector<double>& from) {
      for (std::size_t i = 0; i < to->size(); ++i) (*to)[i] += from[i];
    };
    sums = halves_[0];
    sums.rows += other.rows;
    add(&sums.columns, other.columns);
    add(&sums.targets, other.targets);
    add(&sums.squares, other.squares);
    add(&sums.products, other.products);
  }
  const std::size_t width = this->width();
  const std::size_t count = targets();
  Line line;
  line.centre.assign(width, 0);
  line.mean.assign(count, 0);
  line.slopes.assign(width * count, 0);
  if (sums.rows < 2) return line;
  for (std::size_t j = 0; j < width; ++j) line.centre[j] = sums.columns[j] / sums.rows;
  for (std::size_t c = 0; c < count; ++c) line.mean[c] = sums.targets[c] / sums.rows;
  for (std::size_t j = 0; j < width; ++j) {
    for (std::size_t k = 0; k <= j; ++k)
      sums.squares[Triangle(j) + k] -= sums.rows * line.centre[j] * line.centre[k];
    for (std::size_t c = 0; c < count; ++c)
      line.slopes[j * count + c] = sums.products[j * count + c] - sums.rows * line.centre[j] * line.mean[c];
  }
  SolveRidge(std::move(sums.squares), kPenalty * sums.rows, width, count, &line.slopes);
  return line;
}

void LineFit::Answer(const Line& line, const double* row, std::vector<double>* answer) const {
  const std::size_t count = targets();
  *answer = line.mean;
  for (std::size_t j = 0; j < width(); ++j) {
    const double x = Column(j, row[j]) - line.centre[j];
    for (std::size_t c = 0; c < count; ++c) (*answer)[c] += x * line.slopes[j * count + c];
  }
}

void LineFit::Half::VisitFields(Fields& io) {
  io("rows", rows);
  io("columns", columns, kMostWidth);
  io("targets", targets, kMostTargets);
  io("squares", squares, kMostWidth * (kMostWidth + 1) / 2);
  io("products", products, kMostWidth * kMostTargets);
}

void LineFit::VisitFields(Fields& io) {
  io("shift", shift_, kMostWidth);
  io("scale", scale_, kMostWidth);
  io("target_shift", target_shift_, kMostTargets);
  io("target_scale", target_scale_, kMostTargets);
  io("halves", halves_);
  const std::size_t width = shift_.size();
  const std::size_t count = target_shift_.size();
  bool fits = scale_.size() == width && target_scale_.size() == count && (width == 0) == (count == 0);
  for (const Half& half : halves_)
    fits = fits && half.columns.size() == width && half.targets.size() == count &&
           half.squares.size() == (width * (width + 1)) / 2 && half.products.size() == width * count;
  const auto positive = [](double value) { return value > 0; };
  fits = fits && std::all_of(scale_.begin(), scale_.end(), positive) &&
         std::all_of(target_scale_.begin(), target_scale_.end(), positive);
  io.Check(fits, "sums of one width");
}

}  // namespace luff::rules

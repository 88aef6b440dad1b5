#include "rules/facts/input_places.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <set>

#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr double kLargestPlace = 1e30;
constexpr double kPlacesRows = 64;
constexpr std::size_t kFewestPlaces = 4;
constexpr double kUnlike = 10, kLike = 3;  // mean squared differences, in squared standard errors
constexpr std::size_t kMostColumns = 128;
constexpr double kMovedErrors = 6,
                 kSameErrors = 3.5;  // standard errors: of places that moved, and of those that are alike
// What a moved column must differ by: the logarithm of the ratio of deviations, or a transformed correlation.
constexpr double kSpread = 0.4, kMovedTogether = 0.25;
constexpr double kSpreadError = 1.2;  // of the logarithm of a deviation, times the root of rows: kurtosis 6

// Squares of `block` x `block` pixels; 0: the input has no places.
struct Grid {
  std::vector<std::int64_t> shape;
  std::size_t block = 0;
};

Grid GridOf(const std::vector<std::int64_t>& whole) {
  Grid grid;
  if (whole.size() < 2 || whole.size() > 4) return grid;
  std::vector<std::int64_t> shape;
  std::int64_t places = 1;
  for (std::size_t axis = 1; axis < whole.size(); ++axis) {
    const std::int64_t size = whole[axis];
    if (size <= 0 || size > 8192) return grid;
    shape.push_back(size);
    places *= size;
  }
  const auto most = static_cast<std::int64_t>(InputPlaces::kMaxPlaces);
  std::int64_t block = 1;
  if (shape.size() == 3) {
    while (places > most * block * block && block < shape[1]) ++block;
    while (block < shape[1] && (shape[1] % block != 0 || shape[2] % block != 0)) ++block;
    if (shape[1] % block != 0 || shape[2] % block != 0) return grid;
    shape[1] /= block;
    shape[2] /= block;
    places /= block * block;
  }
  if (places > most || places < 2) return grid;
  grid.shape = shape;
  grid.block = static_cast<std::size_t>(block);
  return grid;
}

// The values of a row's places.
std::vector<double> PlacesOf(const double* row, const Grid& grid) {
  std::size_t places = 1;
  for (const std::int64_t size : grid.shape) places *= static_cast<std::size_t>(size);
  std::vector<double> values(places);
  if (grid.block == 1) {
    std::copy_n(row, places, values.begin());
    return values;
  }
  const auto height = static_cast<std::size_t>(grid.shape[1]);
  const auto width = static_cast<std::size_t>(grid.shape[2]);
  const std::size_t line = width * grid.block;
  const double area = static_cast<double>(grid.block * grid.block);
  for (std::size_t c = 0; c < static_cast<std::size_t>(grid.shape[0]); ++c)
    for (std::size_t y = 0; y < height * grid.block; ++y)
      for (std::size_t x = 0; x < line; ++x)
        values[(c * height + y / grid.block) * width + x / grid.block] +=
            row[(c * height * grid.block + y) * line + x] / area;
  return values;
}

// Targets of each row, kMaxTargets at most; none if they have not a row each.
std::vector<std::vector<double>> TargetsOf(const SampleValues& target, std::size_t rows) {
  std::vector<std::vector<double>> all;
  if (target.shape.empty() || static_cast<std::size_t>(std::max<std::int64_t>(target.shape[0], 0)) != rows ||
      rows == 0 || target.values.empty() || target.values.size() % rows != 0)
    return all;
  const std::size_t width = target.values.size() / rows;
  for (std::size_t i = 0; i < rows; ++i) {
    std::vector<double> one(InputPlaces::kMaxTargets);
    const double* values = &target.values[i * width];
    if (IsIds(target.dtype)) {
      if (width != 1) return {};
      for (std::size_t c = 0; c < one.size(); ++c) one[c] = values[0] == static_cast<double>(c) ? 1 : 0;
    } else {
      std::copy_n(values, std::min(width, one.size()), one.begin());
    }
    for (const double value : one)
      if (!(std::abs(value) < kLargestPlace)) return {};
    all.push_back(std::move(one));
  }
  return all;
}

using Move = std::function<std::size_t(std::size_t)>;  // place of an evaluation -> that of the training

// The mean squared difference of places in squared standard errors, over those that vary; `places`: their
// number.
double UnlikeByValues(const InputPlaces& t, const InputPlaces& e, const Move& move, std::size_t* places) {
  double sum = 0;
  *places = 0;
  for (std::size_t i = 0; i < e.places(); ++i) {
    const std::size_t j = move(i);
    const double error = e.variance(i) / e.rows() + t.variance(j) / t.rows();
    if (!(error > 1e-24 * std::pow(std::abs(e.mean(i)) + std::abs(t.mean(j)), 2)) || !(error > 1e-300))
      continue;
    ++*places;
    sum += std::pow(e.mean(i) - t.mean(j), 2) / error;
  }
  return *places > 0 ? sum / static_cast<double>(*places) : 0;
}

// The same if the evaluation's means were turned over: about the mean of their channel, or of their line
// along one of its axes. Slopes of the other sign, which are no other places.
double UnlikeIfTurnedOver(const InputPlaces& t, const InputPlaces& e) {
  const auto h = static_cast<std::size_t>(e.shape()[1]);
  const auto w = static_cast<std::size_t>(e.shape()[2]);
  const std::array<Move, 3> lines = {
      [h, w](std::size_t i) { return i / (h * w); },              // channel
      [h, w](std::size_t i) { return i / (h * w) * w + i % w; },  // columns of it
      [w](std::size_t i) { return i / w; }};                      // rows of it
  double least = HUGE_VAL;
  for (const Move& line : lines) {
    std::vector<double> sums(e.places());
    std::vector<double> counts(e.places());
    for (std::size_t i = 0; i < e.places(); ++i) sums[line(i)] += e.mean(i), counts[line(i)] += 1;
    double sum = 0;
    double places = 0;
    for (std::size_t i = 0; i < e.places(); ++i) {
      const double error = e.variance(i) / e.rows() + t.variance(i) / t.rows();
      if (!(error > 1e-24 * std::pow(std::abs(e.mean(i)) + std::abs(t.mean(i)), 2)) || !(error > 1e-300))
        continue;
      sum += std::pow(2 * sums[line(i)] / counts[line(i)] - e.mean(i) - t.mean(i), 2) / error;
      places += 1;
    }
    if (places > 0) least = std::min(least, sum / places);
  }
  return least;
}

double UnlikeByTargets(const InputPlaces& t, const InputPlaces& e, const Move& move, double sign = 1) {
  const double error = 1 / (e.answered() - 3) + 1 / (t.answered() - 3);
  double sum = 0;
  double count = 0;
  for (std::size_t i = 0; i < e.places(); ++i) {
    for (std::size_t k = 0; k < InputPlaces::kMaxTargets; ++k) {
      const double a = e.z(i, k);
      const double b = sign * t.z(move(i), k);
      if (a == 0 && b == 0) continue;
      sum += (a - b) * (a - b) / error;
      ++count;
    }
  }
  return count > 0 ? sum / count : 0;
}

struct NamedMove {
  std::string how;
  Move move;
};

std::vector<NamedMove> MovesOf(const std::vector<std::int64_t>& shape) {
  std::vector<NamedMove> moves;
  const auto size = [&](std::size_t axis) { return static_cast<std::size_t>(shape[axis]); };
  if (shape.size() == 1) {
    const std::size_t n = size(0);
    moves.push_back({"in reverse order", [n](std::size_t i) { return n - 1 - i; }});
  } else if (shape.size() == 2) {
    const std::size_t n = size(0);
    const std::size_t w = size(1);
    moves.push_back(
        {"in reverse order of time", [n, w](std::size_t i) { return (n - 1 - i / w) * w + i % w; }});
    if (w > 1)
      moves.push_back({"with time and channels reversed", [n, w](std::size_t i) { return n * w - 1 - i; }});
    if (w > 1)
      moves.push_back({"in reverse order along the last axis",
                       [w](std::size_t i) { return i / w * w + (w - 1 - i % w); }});
  } else {
    const std::size_t c = size(0);
    const std::size_t h = size(1);
    const std::size_t w = size(2);
    const auto at = [&moves, c, h, w](const char* how, bool channels, bool rows, bool columns,
                                      bool transposed) {
      if (transposed && h != w) return;
      moves.push_back({how, [=](std::size_t i) {
                         std::size_t k = i / (h * w);
                         std::size_t y = i / w % h;
                         std::size_t x = i % w;
                         if (transposed) std::swap(y, x);
                         if (channels) k = c - 1 - k;
                         if (rows) y = h - 1 - y;
                         if (columns) x = w - 1 - x;
                         return (k * h + y) * w + x;
                       }});
    };
    if (c > 1) at("with the channels in reverse order", true, false, false, false);
    at("mirrored left to right", false, false, true, false);
    at("turned upside down", false, true, false, false);
    at("turned by 180 degrees", false, true, true, false);
    at("transposed", false, false, false, true);
    at("turned by 90 degrees", false, true, false, true);
    at("turned by 270 degrees", false, false, true, true);
    at("transposed and turned by 180 degrees", false, true, true, true);
  }
  return moves;
}

// Differences of place i of the evaluation from place j of the training, in standard errors: the largest, and
// whether one of them is as large as something that was moved.
struct Apart {
  double errors = 0;
  bool clearly = false;
};

Apart ApartOf(const InputPlaces& t, const InputPlaces& e, std::size_t i, std::size_t j) {
  Apart apart;
  const double error = std::sqrt(1 / e.rows() + 1 / t.rows());
  const auto take = [&](double difference, double its_error, double least) {
    apart.errors = std::max(apart.errors, std::abs(difference) / its_error);
    apart.clearly =
        apart.clearly || (std::abs(difference) >= least && std::abs(difference) >= kMovedErrors * its_error);
  };
  const double a = e.variance(i);
  const double b = t.variance(j);
  if (!(a > 0) || !(b > 0)) return {a == b && e.mean(i) == t.mean(j) ? 0 : HUGE_VAL, false};
  // Means alone do not tell: shares that add up to 1 drift to each other's values.
  apart.errors = std::abs(e.mean(i) - t.mean(j)) / std::sqrt(0.5 * (a + b)) / error;
  take(0.5 * std::log(a / b), kSpreadError * error, kSpread);
  if (e.answered() < kPlacesRows || t.answered() < kPlacesRows) return apart;
  const double of_z = std::sqrt(1 / (e.answered() - 3) + 1 / (t.answered() - 3));
  for (std::size_t k = 0; k < InputPlaces::kMaxTargets; ++k)
    take(e.z(i, k) - t.z(j, k), of_z, kMovedTogether);
  return apart;
}

// Whether a column is one of zeros and ones. Two of them that exclude each other look exchanged if what was
// frequent is rare.
bool IsFlag(const InputPlaces& sums, std::size_t i) {
  const double m = sums.mean(i);
  return std::abs(sums.variance(i) - m * (1 - m)) < 1e-9;
}

// Whether the place goes together with the targets as before, but with the opposite sign: targets changed.
bool IsInverted(const InputPlaces& t, const InputPlaces& e, std::size_t i) {
  const double a = e.variance(i);
  const double b = t.variance(i);
  if (e.answered() < kPlacesRows || t.answered() < kPlacesRows || !(a > 0) || !(b > 0)) return false;
  const double of_values = std::sqrt(1 / e.rows() + 1 / t.rows());
  if (std::abs(e.mean(i) - t.mean(i)) / std::sqrt(0.5 * (a + b)) > kSameErrors * of_values ||
      std::abs(0.5 * std::log(a / b)) > kSameErrors * kSpreadError * of_values)
    return false;
  const double error = std::sqrt(1 / (e.answered() - 3) + 1 / (t.answered() - 3));
  for (std::size_t k = 0; k < InputPlaces::kMaxTargets; ++k)
    if (std::abs(e.z(i, k) + t.z(i, k)) > kSameErrors * error) return false;
  return true;
}

// Columns of a table each of which holds what another one of them held.
std::optional<MovedPlaces> ExchangedColumns(const InputPlaces& t, const InputPlaces& e) {
  if (e.shape().size() != 1 || e.places() > kMostColumns) return std::nullopt;
  std::vector<std::size_t> far;
  for (std::size_t i = 0; i < e.places(); ++i)
    if (!(IsFlag(t, i) && IsFlag(e, i)) && ApartOf(t, e, i, i).clearly) far.push_back(i);
  const bool inverted =
      std::all_of(far.begin(), far.end(), [&](std::size_t i) { return IsInverted(t, e, i); });
  if (far.size() < 2 || inverted) return std::nullopt;
  MovedPlaces moved;
  std::set<std::size_t> taken;
  double before = 0;
  double after = 0;
  for (const std::size_t i : far) {
    std::size_t best = i;
    double least = kSameErrors;
    for (const std::size_t j : far) {
      const double errors = ApartOf(t, e, i, j).errors;
      if (j != i && errors < least && !taken.contains(j)) {
        best = j;
        least = errors;
      }
    }
    if (best == i) return std::nullopt;
    taken.insert(best);
    moved.columns.emplace_back(best, i);
    before += std::pow(std::min(ApartOf(t, e, i, i).errors, 1e6), 2);
    after += least * least;
  }
  moved.as_it_is = before / static_cast<double>(far.size());
  moved.moved = after / static_cast<double>(far.size());
  return moved;
}

}  // namespace

void InputPlaces::Clear() {
  shape_.clear();
  rows_ = answered_ = 0;
  for (auto* sums : {&reference_, &x_, &xx_, &y_, &yy_, &ax_, &axx_, &axy_}) sums->clear();
}

void InputPlaces::Add(const SampleValues& input, const SampleValues* target) {
  const Rows rows = RowsOf(input);
  if (rows.count == 0) return;
  const Grid grid = GridOf(input.shape);
  if (grid.block == 0) return;
  std::size_t places = 1;
  for (const std::int64_t size : grid.shape) places *= static_cast<std::size_t>(size);
  if (rows.width != places * grid.block * grid.block) return;
  if (grid.shape != shape_) {
    Clear();
    shape_ = grid.shape;
    for (auto* sums : {&reference_, &x_, &xx_, &ax_, &axx_}) sums->assign(places, 0);
    axy_.assign(places * kMaxTargets, 0);
    for (auto* sums : {&y_, &yy_}) sums->assign(kMaxTargets, 0);
  }
  const std::vector<std::vector<double>> targets =
      target != nullptr ? TargetsOf(*target, rows.count) : std::vector<std::vector<double>>();
  for (std::size_t row = 0; row < rows.count; ++row) {
    const std::vector<double> values = PlacesOf(&input.values[row * rows.width], grid);
    if (!std::all_of(values.begin(), values.end(), [](double x) { return std::abs(x) < kLargestPlace; }))
      continue;
    if (rows_++ == 0) reference_ = values;
    if (!targets.empty()) {
      answered_ += 1;
      for (std::size_t k = 0; k < kMaxTargets; ++k) {
        y_[k] += targets[row][k];
        yy_[k] += targets[row][k] * targets[row][k];
      }
    }
    for (std::size_t i = 0; i < places; ++i) {
      const double x = values[i] - reference_[i];
      x_[i] += x;
      xx_[i] += x * x;
      if (targets.empty()) continue;
      ax_[i] += x;
      axx_[i] += x * x;
      for (std::size_t k = 0; k < kMaxTargets; ++k) axy_[i * kMaxTargets + k] += x * targets[row][k];
    }
  }
}

double InputPlaces::mean(std::size_t place) const noexcept {
  return rows_ > 0 ? reference_[place] + x_[place] / rows_ : 0;
}

double InputPlaces::variance(std::size_t place) const noexcept {
  if (rows_ <= 0) return 0;
  const double mean = x_[place] / rows_;
  return std::max(xx_[place] / rows_ - mean * mean, 0.0);
}

double InputPlaces::z(std::size_t place, std::size_t target) const noexcept {
  if (answered_ < 8) return 0;
  const double xx = axx_[place] - ax_[place] * ax_[place] / answered_;
  const double yy = yy_[target] - y_[target] * y_[target] / answered_;
  const double xy = axy_[place * kMaxTargets + target] - ax_[place] * y_[target] / answered_;
  if (!(xx > 1e-12 * axx_[place]) || !(yy > 1e-12 * yy_[target])) return 0;
  return std::atanh(std::clamp(xy / std::sqrt(xx) / std::sqrt(yy), -0.999, 0.999));
}

void InputPlaces::VisitFields(Fields& io) {
  io("shape", shape_, 3);
  io("rows", rows_);
  io("answered", answered_);
  io("reference", reference_, kMaxPlaces);
  io("x", x_, kMaxPlaces);
  io("xx", xx_, kMaxPlaces);
  io("y", y_, kMaxTargets);
  io("yy", yy_, kMaxTargets);
  io("ax", ax_, kMaxPlaces);
  io("axx", axx_, kMaxPlaces);
  io("axy", axy_, kMaxPlaces * kMaxTargets);
  if (!io.loading()) return;
  std::size_t places = shape_.empty() ? 0 : 1;
  for (const std::int64_t size : shape_) {
    io.Check(size > 0 && size <= 8192, "sizes above 0");
    places *= size > 0 && size <= 8192 ? static_cast<std::size_t>(size) : 0;
  }
  bool fits = places <= kMaxPlaces && axy_.size() == places * kMaxTargets;
  for (const auto* sums : {&reference_, &x_, &xx_, &ax_, &axx_}) fits = fits && sums->size() == places;
  for (const auto* sums : {&y_, &yy_}) fits = fits && sums->size() == (places > 0 ? kMaxTargets : 0);
  io.Check(fits, "sums of each place");
}

std::optional<MovedPlaces> FindMoved(const InputPlaces& training, const InputPlaces& evaluation) {
  if (training.shape() != evaluation.shape() || training.places() < 2 || training.rows() < kPlacesRows ||
      evaluation.rows() < kPlacesRows)
    return std::nullopt;
  const Move stays = [](std::size_t i) { return i; };
  const bool answered = training.answered() >= kPlacesRows && evaluation.answered() >= kPlacesRows;
  std::size_t places = 0;
  const double values = UnlikeByValues(training, evaluation, stays, &places);
  const double targets = answered ? UnlikeByTargets(training, evaluation, stays) : 0;
  // Targets of the opposite sign may explain as much.
  const bool inverted = answered && UnlikeByTargets(training, evaluation, stays, -1) <= kLike;
  const bool turned_over =
      training.shape().size() == 3 && UnlikeIfTurnedOver(training, evaluation) <= 2 * kLike;
  std::optional<MovedPlaces> best;
  if (training.places() >= kFewestPlaces && (values >= kUnlike || targets >= kUnlike)) {
    for (const NamedMove& one : MovesOf(training.shape())) {
      const double moved = UnlikeByValues(training, evaluation, one.move, &places);
      const double by_targets = answered ? UnlikeByTargets(training, evaluation, one.move) : 0;
      // Both must be alike then.
      if (moved > kLike || by_targets > kLike) continue;
      // Windows that are normalised one by one hold slopes: a slope of the other sign is a window in reverse
      // order.
      const bool seen = training.shape().size() == 3 && !turned_over && places >= kFewestPlaces &&
                        values >= kUnlike * std::max(moved, 1.0);
      const bool seen_by_targets = targets >= kUnlike * std::max(by_targets, 1.0);
      if ((!seen && !seen_by_targets) || (inverted && !seen) ||
          (best && best->moved <= std::max(moved, by_targets)))
        continue;
      best = MovedPlaces{one.how, {}, !seen, seen ? values : targets, std::max(moved, by_targets)};
    }
  }
  return best ? best : ExchangedColumns(training, evaluation);
}

}  // namespace luff::rules

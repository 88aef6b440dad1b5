#include "rules/facts/cut_columns.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr double kLargestWhole = 16;
constexpr double kFewestRows = 400;  // shares are then known to 0.025
constexpr std::size_t kFewestNormal = 2;
constexpr double kAlike = 0.06;  // distance of a column's distribution from the normal one that is cut
constexpr double kBothSides = 0.05, kLeastFar = 0.015, kMostFar = 0.09, kMostFarther = 0.015;
constexpr double kFewestTargets = 128, kReal = 0.8, kAsTarget = 0.06, kNotRounded = 0.15, kAgree = 0.5;
constexpr double kFewestNonzero = 32, kFewestNegative = 8;
constexpr std::size_t kFewestSame = 4;  // columns of an input that has the target's shape

std::size_t BinOf(double whole) { return static_cast<std::size_t>(std::clamp(whole, -4.0, 4.0) + 4); }

// Shares of 0, 1, 2, 3 and beyond of a normal number of deviation 1 that is cut off, on one side of 0.
constexpr std::array<double, 5> kNormal = {0.6827, 0.1359, 0.0214, 0.0013, 0.0001};

}  // namespace

void CutColumns::Add(const SampleValues& sample, const SampleValues* target) {
  const Rows rows = RowsOf(sample);
  const std::size_t axes = sample.shape.size();
  if (unfit_ || rows.count == 0 || rows.width == 0 || (axes != 2 && axes != 3)) return;
  const auto features = static_cast<std::size_t>(sample.shape.back());
  if (features_ == 0) {
    unfit_ = features > kMaxColumns;
    if (unfit_) return;
    features_ = features;
    columns_.assign(features * kBins, 0);
  }
  unfit_ = unfit_ || features != features_ ||
           !std::all_of(sample.values.begin(), sample.values.end(), [](double value) {
             return std::abs(value) <= kLargestWhole && value == std::trunc(value);
           });
  if (unfit_) return;
  rows_ += static_cast<double>(rows.count);
  for (std::size_t i = 0; i < sample.values.size(); ++i)
    columns_[i % features * kBins + BinOf(sample.values[i])] += 1;
  if (target != nullptr) AddTarget(sample, *target);
}

void CutColumns::AddTarget(const SampleValues& sample, const SampleValues& target) {
  const Rows rows = RowsOf(sample);
  const Rows of_target = RowsOf(target);
  if (!target.is_float() || of_target.count != rows.count || of_target.width == 0) return;
  same_shape_ = target.shape == sample.shape;
  if (!same_shape_ && sample.shape.size() != 3) return;
  if (target_.empty()) {
    target_.assign(kBins, 0);
    target_rounded_.assign(kBins, 0);
    met_.assign(features_, 0);
    last_.assign(features_ * kBins, 0);
  }
  const auto take = [this](double value) {
    compared_ += 1;
    real_ += value == std::trunc(value) ? 0 : 1;
    negative_ += value <= -1 ? 1 : 0;
    above_one_ += value > 1 ? 1 : 0;
    target_[BinOf(std::trunc(value))] += 1;
    target_rounded_[BinOf(std::round(value))] += 1;
  };
  for (std::size_t row = 0; row < rows.count; ++row) {
    if (same_shape_) {
      for (std::size_t k = 0; k < rows.width; ++k) {
        const double x = sample.values[row * rows.width + k];
        const double y = target.values[row * rows.width + k];
        take(y);
        agreed_ += std::trunc(y) == x ? 1 : 0;
        nonzero_ += x != 0 ? 1 : 0;
      }
      continue;
    }
    const double y = target.values[row * of_target.width];
    take(y);
    for (std::size_t f = 0; f < features_; ++f) {
      const double x = sample.values[(row + 1) * rows.width - features_ + f];
      last_[f * kBins + BinOf(x)] += 1;
      met_[f] += std::trunc(y) == x ? 1 : 0;
    }
  }
}

std::optional<CutColumns::Found> CutColumns::Find() const {
  if (unfit_ || features_ == 0) return std::nullopt;
  const auto found = FindNormal();
  return found ? found : FindByTarget();
}

std::optional<CutColumns::Found> CutColumns::FindNormal() const {
  if (rows_ < kFewestRows) return std::nullopt;
  Found found;
  constexpr std::size_t kZero = kBins / 2;
  for (std::size_t f = 0; f < features_; ++f) {
    const double* bins = &columns_[f * kBins];
    const double count = std::accumulate(bins, bins + kBins, 0.0);
    const auto values = std::count_if(bins, bins + kBins, [](double one) { return one > 0; });
    if (values <= 2) continue;  // a flag, or nothing
    const double below = std::accumulate(bins, bins + kZero, 0.0) / count;
    const double above = std::accumulate(bins + kZero + 1, bins + kBins, 0.0) / count;
    // What is standardised has values on both sides of 0, and most of them near it.
    if (below < kBothSides || above < kBothSides || bins[kZero] < *std::max_element(bins, bins + kBins))
      return std::nullopt;
    ++found.columns;
    double apart = 0;
    double far = 0;
    double farther = 0;
    for (std::size_t i = 0; i < kBins; ++i) {
      const auto size = static_cast<std::size_t>(std::abs(static_cast<int>(i) - static_cast<int>(kZero)));
      apart += 0.5 * std::abs(bins[i] / count - kNormal[size]);
      far += size >= 2 ? bins[i] / count : 0;
      farther += size >= 3 ? bins[i] / count : 0;
    }
    if (apart > kAlike || far < kLeastFar || far > kMostFar || farther > kMostFarther) continue;
    ++found.normal;
    found.zeros += bins[kZero] / count;
  }
  if (found.normal < kFewestNormal || 2 * found.normal < found.columns) return std::nullopt;
  found.zeros /= static_cast<double>(found.normal);
  return found;
}

std::optional<CutColumns::Found> CutColumns::FindByTarget() const {
  if (compared_ < kFewestTargets || real_ < kReal * compared_) return std::nullopt;
  Found found;
  found.by_target = true;
  if (same_shape_) {
    // A target that is the input and a number of 0 to 1 agrees, too, if there is nothing below 0.
    const bool added = above_one_ > 0 && negative_ < kFewestNegative;
    if (agreed_ < compared_ || nonzero_ < kFewestNonzero || features_ < kFewestSame || added)
      return std::nullopt;
    found.agreement = 1;
    found.zeros = 1 - nonzero_ / compared_;
    return found;
  }
  // Targets below and above 0: what comes next of the series itself.
  if (target_[kBins / 2 - 1] < kBothSides * compared_ || target_[kBins / 2 + 1] < kBothSides * compared_)
    return std::nullopt;
  for (std::size_t f = 0; f < features_; ++f) {
    double as_cut = 0;
    double as_rounded = 0;
    double chance = 0;
    for (std::size_t i = 0; i < kBins; ++i) {
      const double share = last_[f * kBins + i] / compared_;
      as_cut += 0.5 * std::abs(share - target_[i] / compared_);
      as_rounded += 0.5 * std::abs(share - target_rounded_[i] / compared_);
      chance += share * target_[i] / compared_;
    }
    found.agreement = met_[f] / compared_;
    found.zeros = last_[f * kBins + kBins / 2] / compared_;
    if (as_cut <= kAsTarget && as_rounded >= kNotRounded && found.agreement - chance >= kAgree * (1 - chance))
      return found;
  }
  return std::nullopt;
}

void CutColumns::VisitFields(Fields& io) {
  io("unfit", unfit_);
  io("rows", rows_);
  io("features", features_);
  io("columns", columns_, kMaxColumns * kBins);
  io("same_shape", same_shape_);
  io("compared", compared_);
  io("agreed", agreed_);
  io("real", real_);
  io("nonzero", nonzero_);
  io("negative", negative_);
  io("above_one", above_one_);
  io("target", target_, kBins);
  io("target_rounded", target_rounded_, kBins);
  io("met", met_, kMaxColumns);
  io("last", last_, kMaxColumns * kBins);
  if (!io.loading()) return;
  const bool targets = !target_.empty();
  io.Check(features_ <= kMaxColumns && columns_.size() == features_ * kBins &&
               target_.size() == (targets ? kBins : 0) && target_rounded_.size() == target_.size() &&
               met_.size() == (targets ? features_ : 0) && last_.size() == (targets ? features_ * kBins : 0),
           "counts of each column");
}

}  // namespace luff::rules

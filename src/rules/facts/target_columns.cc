#include "rules/facts/target_columns.h"

#include <algorithm>
#include <cmath>

#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr std::size_t kLeastRows = 8;
constexpr double kRounding = 1e-4;  // of the target's range: float32 after a scaler has done its work

struct Bounds {
  double low = HUGE_VAL, high = -HUGE_VAL;
  std::size_t at_low = 0, at_high = 0;
};

Bounds BoundsOf(const std::vector<double>& values) {
  Bounds bounds;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < bounds.low) bounds.low = values[bounds.at_low = i];
    if (values[i] > bounds.high) bounds.high = values[bounds.at_high = i];
  }
  return bounds;
}

}  // namespace

void TargetColumns::Add(const SampleValues& input, const SampleValues& target) {
  const Rows rows = RowsOf(input);
  const Rows targets = RowsOf(target);
  if (input.shape.size() != 2 || !input.is_float() || !input.whole() || !target.whole()) return;
  if (rows.count < kLeastRows || targets.count != rows.count || targets.width != 1) return;
  if (rows.width < kLeastColumns || rows.width > kMaxColumns) return;
  if (columns_ != 0 && columns_ != rows.width) return;
  const std::vector<double>& y = target.values;
  const Bounds bounds = BoundsOf(y);
  if (!(bounds.high > bounds.low) || !std::isfinite(bounds.high - bounds.low)) return;
  const auto value = [&](std::size_t row, std::size_t column) {
    return input.values[row * rows.width + column];
  };
  if (columns_ == 0) {
    columns_ = rows.width;
    for (std::size_t j = 0; j < rows.width; ++j) {
      const double apart = value(bounds.at_high, j) - value(bounds.at_low, j);
      const double slope = (bounds.high - bounds.low) / apart;
      if (!std::isfinite(slope) || slope == 0) continue;
      left_.push_back({static_cast<std::int64_t>(j), slope, bounds.low - slope * value(bounds.at_low, j)});
    }
  }
  rows_ += static_cast<std::int64_t>(rows.count);
  ++batches_;
  const double allowed = kRounding * (bounds.high - bounds.low);
  std::erase_if(left_, [&](const Column& column) {
    for (std::size_t i = 0; i < rows.count; ++i) {
      const double told = column.slope * value(i, static_cast<std::size_t>(column.index)) + column.intercept;
      if (!(std::abs(told - y[i]) <= allowed)) return true;
    }
    return false;
  });
}

std::vector<std::size_t> TargetColumns::Found() const {
  std::vector<std::size_t> found;
  for (const Column& column : left_) found.push_back(static_cast<std::size_t>(column.index));
  return found;
}

void TargetColumns::VisitFields(Fields& io) {
  io("left", left_, kMaxColumns);
  io("columns", columns_);
  io("rows", rows_);
  io("batches", batches_);
}

}  // namespace luff::rules

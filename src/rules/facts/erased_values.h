#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

#include "rules/facts/sample.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Which of a row's values are exactly 0. Compares a side whose values are zero here
/// and there with one whose values never are: a part of them is erased, as an augmentation does, or was
/// missing. Constant memory.
class ErasedValues {
 public:
  struct Found {
    double columns = 0;  // that are compared
    double share = 0;    // of their values that are 0
  };

  void Add(const SampleValues& sample) {
    const Rows rows = RowsOf(sample);
    if (rows.count == 0 || rows.width < kLeastColumns) return;
    const std::size_t step = (rows.width + kColumns - 1) / kColumns;
    if (width_ == 0) width_ = rows.width;
    if (width_ != rows.width) return;
    columns_.resize((rows.width + step - 1) / step);
    std::size_t whole = 0;  // rows without a zero
    for (std::size_t row = 0; row < rows.count; ++row) {
      const double* values = &sample.values[row * rows.width];
      if (std::all_of(values, values + rows.width, [](double value) { return value == 0; }))
        continue;  // padding
      rows_ += 1;
      bool zero = false;
      for (std::size_t i = 0; i < columns_.size(); ++i) {
        const double value = values[i * step];
        zero = zero || value == 0;
        if (!std::isfinite(value)) continue;
        columns_[i].zeros += value == 0 ? 1 : 0;
        columns_[i].sum += value;
        columns_[i].squares += value * value;
      }
      whole += zero ? 0 : 1;
    }
    clean_ = clean_ || (rows.count >= kCleanRows && whole == rows.count);
  }

  /// What is erased of `there` and not of `here`. Nothing if `there` has whole batches as they are: it is
  /// measured on purpose how much a model bears.
  [[nodiscard]] static std::optional<Found> Compare(const ErasedValues& there, const ErasedValues& here) {
    if (there.width_ != here.width_ || there.clean_ || there.rows_ < kRows || here.rows_ < 4 * kRows)
      return std::nullopt;
    Found found;
    double spread = 0;  // columns that are zero here and there
    double alike = 0;   // whose other values are as they are here
    for (std::size_t i = 0; i < here.columns_.size(); ++i) {
      const Column& one = here.columns_[i];
      const Column& other = there.columns_[i];
      const double deviation = one.Deviation(here.rows_);
      if (one.zeros > kNever * here.rows_ || !(deviation > 0)) continue;
      const double share = other.zeros / there.rows_;
      found.columns += 1;
      found.share += share;
      spread += share >= kSeldom && share <= 1 - kSeldom ? 1 : 0;
      alike += std::abs(other.sum / std::max(there.rows_ - other.zeros, 1.0) - one.sum / here.rows_) <=
                       kAlike * deviation
                   ? 1
                   : 0;
    }
    if (found.columns < kLeastColumns || 2 * found.columns < static_cast<double>(here.columns_.size()))
      return std::nullopt;
    found.share /= found.columns;
    if (found.share < kShare || spread < kMost * found.columns || alike < kMost * found.columns)
      return std::nullopt;
    return found;
  }

  void Clear() { *this = {}; }

  void VisitFields(Fields& io) {
    io("width", width_);
    io("rows", rows_);
    io("clean", clean_);
    io("columns", columns_, kColumns);
  }

 private:
  static constexpr std::size_t kColumns = 512;
  static constexpr std::size_t kLeastColumns = 4;
  static constexpr std::size_t kCleanRows = 8;
  static constexpr double kRows = 32;
  static constexpr double kNever = 0.01;  // share of zeros in a column that has none
  static constexpr double kSeldom =
      0.03;  // a column in which this share is 0, or is not, is not erased at random
  static constexpr double kShare = 0.1;
  static constexpr double kMost = 0.9;    // of the columns
  static constexpr double kAlike = 0.75;  // deviations between the means of what is not 0

  struct Column {
    double zeros = 0, sum = 0, squares = 0;
    [[nodiscard]] double Deviation(double rows) const {
      return std::sqrt(std::max(0.0, squares / rows - (sum / rows) * (sum / rows)));
    }
    void VisitFields(Fields& io) {
      io("zeros", zeros);
      io("sum", sum);
      io("squares", squares);
    }
  };

  std::size_t width_ = 0;
  double rows_ = 0;
  bool clean_ = false;
  std::vector<Column> columns_;
};

}  // namespace luff::rules

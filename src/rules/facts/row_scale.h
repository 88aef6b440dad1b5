#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Mean, deviation and length of each row of an input: whether rows were scaled one by
/// one, each by its own numbers. Constant memory.
class RowScale {
 public:
  enum class By : std::uint8_t { kNothing, kDeviation, kLength };  // mean 0 and deviation 1; length 1

  /// Rows of three values or more that are not all alike; others are ignored.
  void Add(const SampleValues& sample);
  void Clear() { *this = {}; }
  [[nodiscard]] double rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t axes() const noexcept { return axes_; }
  [[nodiscard]] std::int64_t width() const noexcept { return width_; }
  /// What all rows have in common.
  [[nodiscard]] By by() const noexcept;
  /// Deviation of the rows' means, in deviations within rows.
  [[nodiscard]] double means_spread() const noexcept;
  /// Mean squared difference of neighbouring columns, beside that of any two: below 1 in windows of a series.
  [[nodiscard]] double neighbours() const noexcept;
  [[nodiscard]] double mean_length() const noexcept { return rows_ > 0 ? length_ / rows_ : 0; }
  void VisitFields(Fields& io);

  /// What `one` was scaled by, row by row, and `other` was not: not even before something was added to it, or
  /// rows were mixed, cropped or masked. kNothing if that is not certain.
  [[nodiscard]] static By Compare(const RowScale& one, const RowScale& other);

 private:
  double rows_ = 0;
  std::int64_t width_ = 0, axes_ = 0;
  bool whole_ = true;        // no value but whole numbers
  double largest_mean_ = 0;  // in deviations of its row
  double least_deviation_ = 0, largest_deviation_ = 0, least_length_ = 0, largest_length_ = 0;
  double mean_ = 0, mean2_ = 0, variance_ = 0, length_ = 0, steps_ = 0;  // sums over rows
};

}  // namespace luff::rules

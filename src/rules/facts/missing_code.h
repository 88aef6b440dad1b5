#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/facts/sample.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Columns of a table of which one value, the lowest or the largest, comes again and
/// again and lies far from all others: a code for what is missing (-99999), beside which the
/// numbers are hardly to be told apart. Constant memory.
class MissingCodes {
 public:
  static constexpr std::size_t kMaxColumns = 256;
  static constexpr double kFar = 500;  // ranges of the other values
  /// The same of -999, -9999 and so on, and of -99, which are hardly anything else than codes. Of columns
  /// that a layer reads as they are.
  static constexpr double kFarOfNines = 10, kFarOfTwoNines = 20;
  /// The same of a number that is not well known. What is off, or on at one level, looks the same once it is
  /// standardised (speeds of 0 or 1500), but is hardly held to a five-thousandth. Beyond the second, the
  /// others may differ by their rounding to single precision alone.
  static constexpr double kFarOfOthers = 5000, kRounding = 2e5;
  struct Code {
    std::size_t column = 0;
    double value = 0, share = 0;    // share of the rows that have it
    double low = 0, high = 0;       // of the others
    double ratio = 0, columns = 0;  // distance in ranges of the others; columns with such a code
    bool well_known = false;  // -1, nines (-999, 99999), powers of ten from 1,000 on, and least integers
  };

  /// Adds a batch of (N, F); others are ignored.
  void Add(const SampleValues& sample) {
    const Rows rows = RowsOf(sample);
    if (sample.shape.size() != 2 || rows.width == 0 || rows.width > kMaxColumns) return;
    if (columns_.empty()) columns_.resize(rows.width);
    if (columns_.size() != rows.width) return;
    for (std::size_t i = 0; i < sample.values.size(); ++i) columns_[i % rows.width].Add(sample.values[i]);
  }
  /// `read_as_it_is`: a layer with weights gets these numbers.
  /// The first column with a code, among 64 rows or more: three of them, and one in a hundred, have it, and
  /// 32 others have eight different values.
  [[nodiscard]] std::optional<Code> Find(bool read_as_it_is = false) const {
    std::optional<Code> found;
    double rising = 0;  // columns side by side of which each has the code as often as the last, or more
    double last = 0;
    std::size_t next = 0;
    for (std::size_t f = 0; f < columns_.size(); ++f) {
      const Column& column = columns_[f];
      const double range_above = column.high - column.above;  // without the lowest
      const double range_below = column.below - column.low;   // without the largest
      std::optional<Code> code;
      if (column.low != 0 && column.Codes(column.lows) &&
          column.above - column.low >= (read_as_it_is ? FarOf(column.low) : kFar) * range_above)
        code = Code{f,
                    column.low,
                    column.lows / column.rows,
                    column.above,
                    column.high,
                    (column.above - column.low) / range_above};
      if (!code && column.high != 0 && column.Codes(column.highs) &&
          column.high - column.below >= kFar * range_below)
        code = Code{f,          column.high,  column.highs / column.rows,
                    column.low, column.below, (column.high - column.below) / range_below};
      if (!code || !std::isfinite(code->ratio)) continue;
      code->well_known = IsWellKnown(code->value);
      if (!code->well_known && (code->ratio < kFarOfOthers || code->ratio > kRounding)) continue;
      if (!found) found = code;
      found->columns += 1;
      rising = f == next && code->share >= last ? rising + 1 : 1;
      next = f + 1;
      last = code->share;
      if (rising >= kPadded) return std::nullopt;  // rows that are padded, which a mask leaves out
    }
    return found;
  }
  /// Whether other data of the same kind has no value in this column near the code, though ten are to be
  /// expected.
  [[nodiscard]] bool Lacks(const Code& code) const {
    if (code.column >= columns_.size()) return false;
    const Column& column = columns_[code.column];
    if (column.rows < kLeastRows || code.share * column.rows < kExpected || column.levels.size() < kLevels)
      return false;
    const bool below = code.value < code.low;
    const double gap = below ? code.low - code.value : code.value - code.high;
    return (below ? column.low - code.value : code.value - column.high) >= 0.5 * gap;
  }
  void VisitFields(Fields& io) { io("columns", columns_, kMaxColumns); }

 private:
  static constexpr double kLargest = 1e60, kLeastRows = 64, kLeastOthers = 32, kLeastCodes = 3, kShare = 0.01;
  static constexpr double kExpected = 10;
  static constexpr double kPadded = 4;
  static constexpr std::size_t kLevels = 9;  // the code is one of them

  static double FarOf(double value) {
    if (value == -99) return kFarOfTwoNines;
    return value <= -999 && IsWellKnown(value) && std::fmod(value, 10) == -9 ? kFarOfNines : kFar;
  }

  static bool IsWellKnown(double value) {
    double size = std::abs(value);
    if (value == -1 || value == -32768 || value == -2147483648.0) return true;
    if (size < 99 || size > 1e12 || size != std::floor(size)) return false;
    // Nines in single precision are rounded from 10^8 on.
    const double tens = std::pow(10, std::ceil(std::log10(size)));
    return size == tens - 1 || (size == tens && size >= 1000);
  }

  struct Column {
    double rows = 0;
    double low = 0, lows = 0, above = 0;    // lowest value, how often, and the lowest of the others
    double high = 0, highs = 0, below = 0;  // largest value, how often, and the largest of the others
    bool one = true;                        // all values so far are equal
    std::set<double> levels;
    void Add(double value) {
      if (!(std::abs(value) < kLargest)) return;
      if (levels.size() < kLevels) levels.insert(value);
      if (rows++ == 0) {
        low = high = above = below = value;
        lows = highs = 1;
        return;
      }
      if (one && value != low) {
        one = false;
        above = std::max(value, low);
        below = std::min(value, low);
      }
      if (value < low) {
        above = low;
        low = value;
        lows = 0;
      } else if (value > low) {
        above = above > low ? std::min(above, value) : value;
      }
      lows += value == low ? 1 : 0;
      if (value > high) {
        below = high;
        high = value;
        highs = 0;
      } else if (value < high) {
        below = below < high ? std::max(below, value) : value;
      }
      highs += value == high ? 1 : 0;
    }
    [[nodiscard]] bool Codes(double count) const {
      return rows >= kLeastRows && levels.size() >= kLevels && count >= kLeastCodes &&
             count >= kShare * rows && rows - count >= kLeastOthers;
    }
    void VisitFields(Fields& io) {
      io("rows", rows);
      io("low", low);
      io("lows", lows);
      io("above", above);
      io("high", high);
      io("highs", highs);
      io("below", below);
      io("one", one);
      io("levels", levels, kLevels);
    }
  };
  std::vector<Column> columns_;
};

}  // namespace luff::rules

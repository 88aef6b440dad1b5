#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// How values of a row go together, over rows of samples. Of a table (N, F) with three columns or more: each
/// pair of the first 16. Of other shapes, all neighbours along one axis are one pair: the last axis of (N, C,
/// H, W), the longer one of (N, T, F). Rows that hold a value that is not finite, or not below 1e60 in
/// magnitude, are skipped.
class Correlations {
 public:
  static constexpr std::size_t kMaxColumns = 16;

  /// Adds a sample. A sample of another kind() first clears the sums.
  void Add(const SampleValues& sample);
  void Clear();

  /// Number of axes, the one along which values are neighbours, and number of columns, e.g. "2,1,10". Pairs
  /// are comparable if this is equal.
  [[nodiscard]] const std::string& kind() const noexcept { return kind_; }
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  /// How many values of a pair count as independent: a row of a table, sixteen neighbours of other shapes
  /// (patches of four by four values), and each row at least once.
  [[nodiscard]] double independent() const noexcept;
  [[nodiscard]] std::size_t pairs() const noexcept { return n_.size(); }

  /// One pair: Pearson's correlation (0 if a value does not vary), and means and variances of both values.
  struct Pair {
    double r = 0, mean_x = 0, mean_y = 0, variance_x = 0, variance_y = 0;
  };
  [[nodiscard]] Pair at(std::size_t pair) const noexcept;

  void VisitFields(Fields& io);

 private:
  /// The columns of a pair; 0 and 0 where all values are one.
  [[nodiscard]] std::pair<std::size_t, std::size_t> ColumnsAt(std::size_t pair) const noexcept;
  void AddPair(std::size_t pair, double x, double y) noexcept;

  std::string kind_;
  std::int64_t rows_ = 0;
  std::vector<double> reference_;                 // of each column: its first value
  std::vector<double> n_, x_, y_, xx_, yy_, xy_;  // of each pair: sums of powers of value - reference
};

}  // namespace luff::rules

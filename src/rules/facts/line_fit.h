#pragma once
#include <array>
#include <cstddef>
#include <vector>

#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Fits a line (ridge regression) to rows that come batch by batch, in two halves, so
/// that rows of one half can be answered by what the other one shows. Keeps sums and no rows: memory is
/// constant, and grows with the square of the width.
///
/// Columns and targets are standardised by the first batch. The penalty is what a 32nd of the rows would
/// weigh, each with a deviation of one: it decides nothing where columns tell something.
class LineFit {
 public:
  static constexpr std::size_t kMostWidth = 128, kMostTargets = 64;

  /// What answers rows: slopes of each column (width x targets), for standardised columns and targets.
  struct Line {
    std::vector<double> slopes, centre, mean;  // centre: of the columns; mean: of the targets
  };

  /// Adds rows; `columns` is rows x width, `targets` rows x targets, `halves` 0 or 1 for each row. The first
  /// call sets the widths; later ones of others are ignored. `as_they_are`: targets are not standardised.
  void Add(const std::vector<double>& columns, const std::vector<double>& targets,
           const std::vector<std::size_t>& halves, bool as_they_are);
  /// The line through the rows of one half, or of both (`half` 2). Its slopes are 0 where there are no rows.
  [[nodiscard]] Line Solve(std::size_t half) const;
  /// The answer to one row, `width` numbers as they were given, in units of standardised targets.
  void Answer(const Line& line, const double* row, std::vector<double>* answer) const;
  /// A target in these units.
  [[nodiscard]] double Standardised(std::size_t target, double value) const {
    return (value - target_shift_[target]) / target_scale_[target];
  }
  /// Width of a unit of a target.
  [[nodiscard]] double Unit(std::size_t target) const { return target_scale_[target]; }
  [[nodiscard]] std::size_t width() const noexcept { return shift_.size(); }
  [[nodiscard]] std::size_t targets() const noexcept { return target_shift_.size(); }
  [[nodiscard]] double rows() const noexcept { return halves_[0].rows + halves_[1].rows; }

  void VisitFields(Fields& io);

 private:
  struct Half {
    double rows = 0;
    std::vector<double> columns, targets;   // sums
    std::vector<double> squares, products;  // of columns: the lower triangle, by rows; columns times targets
    void VisitFields(Fields& io);
  };
  void Begin(const std::vector<double>& columns, const std::vector<double>& targets, std::size_t rows,
             bool as_they_are);
  [[nodiscard]] double Column(std::size_t j, double value) const;

  std::vector<double> shift_, scale_, target_shift_, target_scale_;
  std::array<Half, 2> halves_;
};

}  // namespace luff::rules

#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** How far each column of a model's answers goes together with each column of the
/// targets. A column is one of several targets of a row (N, K); single numbers, two classes, and targets of
/// other shapes (masks) are one column. Constant memory.
class AnswerColumns {
 public:
  static constexpr std::size_t kMaxColumns = 32;

  /// Adds a call of a regression, of a binary cross entropy, or of a cross entropy of two classes. Ignored:
  /// others, and calls of another number of columns than the first.
  void Add(const LossCall& call, const Recognition& found);
  void Clear();

  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  [[nodiscard]] double rows() const noexcept { return rows_; }
  /// Pearson's correlation of a column of answers with one of targets; 0 where one of them does not vary.
  [[nodiscard]] double r(std::size_t answer, std::size_t target) const noexcept;

  void VisitFields(Fields& io);

 private:
  void AddRow(const double* answers, const double* targets) noexcept;

  std::size_t columns_ = 0;
  double rows_ = 0, count_ = 0;  // samples; values of each column
  std::vector<double> reference_x_, reference_y_;
  std::vector<double> x_, y_, xx_, yy_, xy_;  // sums of powers of value - reference; xy: answer x target
};

/// What differs between the columns of the training and those of an evaluation.
struct ColumnChange {
  std::vector<std::size_t> inverted;  // answers tell the target with the opposite sign
  /// Targets that another column of the answers tells, and which one.
  std::vector<std::pair<std::size_t, std::size_t>> exchanged;
  double trained = 0, own = 0, other = 0;  // of the first one: r in training, in the evaluation, of the other
};

/// Compares an evaluation with the training before it. Signs differ where r is `least` or more in training
/// and -`least` or less in the evaluation. Columns are exchanged where each of some belongs to another
/// one of them: that one's r is `least` or more, and larger by 0.3, and in training no column told the target
/// better than its own. All differences are five standard errors of Fisher's transformed r at least.
[[nodiscard]] ColumnChange Compare(const AnswerColumns& training, const AnswerColumns& evaluation,
                                   double least);

}  // namespace luff::rules

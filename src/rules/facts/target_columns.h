#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Columns of an input of (N, F) that hold the target: in each row so far, the target
/// is the column's value times one factor plus one number, up to rounding. Constant memory.
class TargetColumns {
 public:
  static constexpr std::size_t kMaxColumns = 1024;
  static constexpr std::size_t kLeastColumns = 3;  // with fewer, the target may be meant to be a column

  /// Adds a batch with one target a row. Ignored: batches of other shapes, samples that are not whole, fewer
  /// than 8 rows, and targets that do not vary.
  void Add(const SampleValues& input, const SampleValues& target);
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t batches() const noexcept { return batches_; }
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  /// The columns that hold the target in all rows.
  [[nodiscard]] std::vector<std::size_t> Found() const;
  void VisitFields(Fields& io);

 private:
  struct Column {
    std::int64_t index = 0;
    double slope = 0, intercept = 0;
    void VisitFields(Fields& io) {
      io("index", index);
      io("slope", slope);
      io("intercept", intercept);
    }
  };
  std::vector<Column> left_;
  std::size_t columns_ = 0;
  std::int64_t rows_ = 0, batches_ = 0;
};

}  // namespace luff::rules

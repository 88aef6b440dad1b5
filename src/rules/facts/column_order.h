#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "rules/facts/features.h"

namespace luff::rules {

/// All columns of a table in another order, seen by what each of them is like.
struct ColumnOrder {
  std::string how;  // "in reverse order"
  double as_it_is =
      0;  // mean squared difference in squared standard errors: the smaller of means and deviations
  double reordered = 0;  // the larger of both, if the columns are read so; about 1 if that is right
};

/// Looks for columns in reverse order, and for columns of which the first ones have become the last. Means as
/// well as deviations are unlike as they are (10 times what chance gives) and alike in that order (3 times at
/// most): windows that are normalised one by one and fall where others rose have means in reverse order, and
/// deviations as before. Eight columns that vary, and 64 rows on either side, of `rows` and `other_rows`
/// different ones.
[[nodiscard]] std::optional<ColumnOrder> FindColumnOrder(const Features& training, const Features& evaluation,
                                                         std::int64_t rows, std::int64_t other_rows);

}  // namespace luff::rules

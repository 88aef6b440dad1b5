#pragma once
#include <optional>
#include <vector>

#include "luff/tensor/summary.h"

namespace luff::server {

/// Equal bins, for a picture.
struct EqualBins {
  double low = 0, high = 0;
  std::vector<double> counts;
};
/// Spreads recorded bins, which are logarithmic, evenly over `count` equal ones from the lowest edge to the
/// highest. A stranger's run may hold any bins and counts. nullopt if there are none.
[[nodiscard]] std::optional<EqualBins> InEqualBins(const SparseHistogram& bins, std::size_t count);

}  // namespace luff::server

#pragma once
#include <cstdint>

#include "luff/tensor/summary.h"
#include "luff/tensor/view.h"

namespace luff::tensor {

/// A view as (outer, units, inner) in row-major order: element (o, u, i) belongs to unit u.
struct UnitShape {
  std::uint64_t units = 1;
  std::uint64_t inner = 1;
};

[[nodiscard]] inline UnitShape UnitShapeOf(const Layout& layout, UnitAxis axis) noexcept {
  const int rank = layout.rank;
  UnitShape shape;
  const auto product = [&](int from, int to) {
    std::uint64_t p = 1;
    for (int i = from; i < to; ++i) p *= static_cast<std::uint64_t>(layout.dims[static_cast<std::size_t>(i)]);
    return p;
  };
  if (rank == 0) return shape;
  if (rank == 1) {  // one row of units
    shape.units = product(0, 1);
    return shape;
  }
  switch (axis) {
    case UnitAxis::kChannel:
      shape.units = product(1, 2);
      shape.inner = product(2, rank);
      break;
    case UnitAxis::kLast: shape.units = product(rank - 1, rank); break;
    case UnitAxis::kAllButFirst: shape.units = product(1, rank); break;
  }
  return shape;
}

}  // namespace luff::tensor

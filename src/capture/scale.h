#pragma once
#include <cstddef>

#include "luff/tensor/view.h"

namespace luff::capture {

/// Multiplies `count` contiguous elements in place by `factor`, rounding once to their own type as an
/// optimizer that unscales does. False for types that are not scaled (integers, bool, complex, float8).
[[nodiscard]] bool ScaleInPlace(DType dtype, std::byte* data, std::size_t count, double factor) noexcept;

/// Converts contiguous float32 or float64 to bfloat16 (round to nearest even). False for other types.
[[nodiscard]] bool ToBFloat16(DType dtype, const std::byte* from, std::size_t count, std::byte* to) noexcept;

}  // namespace luff::capture

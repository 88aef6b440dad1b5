#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "luff/tensor/summary.h"

namespace luff::rules {

/// Whether the values of a weight are as an initialisation draws them: evenly within the bound of torch's
/// layers (1 / sqrt(fan in)), of Xavier or of He, or normally with He's deviation, 0.02 or 1. Training, or a
/// file, leaves no weight like that. False for fewer than 256 values.
[[nodiscard]] inline bool IsAsDrawn(const Summary& values, DType dtype,
                                    const std::vector<std::int64_t>& shape) {
  constexpr double kSure = 5;  // standard errors
  if (shape.size() < 2 || values.count < 256 || values.finite_count() != values.count) return false;
  double inner = 1;
  for (std::size_t axis = 2; axis < shape.size(); ++axis) inner *= static_cast<double>(shape[axis]);
  const double fan_in = static_cast<double>(shape[1]) * inner;
  const double fan_out = static_cast<double>(shape[0]) * inner;
  const auto count = static_cast<double>(values.count);
  const double std = values.std();
  const double top = values.abs_max(dtype);
  if (!(std > 0) || !(fan_in > 0) || !(fan_out > 0) ||
      std::abs(values.mean()) > kSure * std / std::sqrt(count))
    return false;
  const auto near = [](double value, double expected, double error) {
    return std::abs(value - expected) <= error * expected;
  };
  for (const double bound :
       {1 / std::sqrt(fan_in), std::sqrt(6 / (fan_in + fan_out)), std::sqrt(6 / fan_in)}) {
    // The largest of n values comes within a few n-ths of the bound; the deviation of an even distribution
    // has a standard error of 0.45 / sqrt(n).
    if (top <= bound * (1 + 1e-6) && top >= bound * (1 - 12 / count) &&
        near(std, bound / std::sqrt(3.0), kSure * 0.45 / std::sqrt(count)))
      return true;
  }
  for (const double deviation : {std::sqrt(2 / fan_out), std::sqrt(2 / fan_in), 0.02, 1.0}) {
    if (near(std, deviation, kSure * 0.71 / std::sqrt(count)) &&
        near(values.abs_mean(), std * 0.7979, kSure * 0.6 / std::sqrt(count)))
      return true;
  }
  return false;
}

}  // namespace luff::rules

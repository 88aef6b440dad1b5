// Difference to an earlier value of the same tensor, optionally replacing it in the same pass.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "luff/tensor/summary.h"
#include "tensor/float_environment.h"
#include "tensor/kernel_table.h"
#include "tensor/strided.h"

namespace luff {
namespace {

template <typename Bits>
std::uint64_t CountChanged(const std::byte* a, const std::byte* b, std::uint64_t count) noexcept {
  std::uint64_t changed = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    Bits x, y;
    std::memcpy(&x, a + i * sizeof(Bits), sizeof(Bits));
    std::memcpy(&y, b + i * sizeof(Bits), sizeof(Bits));
    changed += x != y;
  }
  return changed;
}

struct Pair64 {
  std::uint64_t low, high;
  bool operator==(const Pair64&) const = default;
};

std::uint64_t CountChanged(const std::byte* a, const std::byte* b, std::uint64_t count, std::size_t size) noexcept {
  switch (size) {
    case 1: return CountChanged<std::uint8_t>(a, b, count);
    case 2: return CountChanged<std::uint16_t>(a, b, count);
    case 4: return CountChanged<std::uint32_t>(a, b, count);
    case 8: return CountChanged<std::uint64_t>(a, b, count);
    default: return CountChanged<Pair64>(a, b, count);
  }
}

/// Complex elements differ by |x - y|, which needs both parts; every other type is one real number.
struct Parts {
  DType dtype;
  std::uint64_t per_element;
};

Parts PartsOf(DType dtype) noexcept {
  switch (dtype) {
    case DType::kComplex32: return {DType::kFloat16, 2};
    case DType::kComplex64: return {DType::kFloat32, 2};
    case DType::kComplex128: return {DType::kFloat64, 2};
    default: return {dtype, 1};
  }
}

constexpr std::uint64_t kChunk = 512;

/// Adds `count` elements, given as parts.
void AddChunk(const double* current, const double* previous, std::uint64_t count, bool complex,
              Difference* out) noexcept {
  constexpr double kMax = std::numeric_limits<double>::max();
  constexpr std::uint64_t kLanes = 4;  // independent chains
  double l1[kLanes] = {}, sq[kLanes] = {}, prev_l1[kLanes] = {}, prev_sq[kLanes] = {}, top[kLanes] = {};
  for (std::uint64_t i = 0; i < count; ++i) {
    double d, y;
    if (complex) {
      d = std::hypot(current[2 * i] - previous[2 * i], current[2 * i + 1] - previous[2 * i + 1]);
      y = std::hypot(previous[2 * i], previous[2 * i + 1]);
    } else {
      d = std::fabs(current[i] - previous[i]);
      y = std::fabs(previous[i]);
    }
    const std::uint64_t k = i % kLanes;
    d = d <= kMax ? d : 0.0;  // a non-finite side says nothing about a distance
    y = y <= kMax ? y : 0.0;
    l1[k] += d;
    sq[k] += d * d;
    prev_l1[k] += y;
    prev_sq[k] += y * y;
    top[k] = d > top[k] ? d : top[k];
  }
  for (std::uint64_t k = 0; k < kLanes; ++k) {
    out->l1 += l1[k];
    out->sum_sq += sq[k];
    out->previous_l1 += prev_l1[k];
    out->previous_sum_sq += prev_sq[k];
    out->max = std::max(out->max, top[k]);
  }
}

}  // namespace

void ComputeDifference(const TensorView& view, std::byte* previous, bool update_previous, Difference* out) noexcept {
  *out = Difference();
  if (view.data == nullptr || previous == nullptr || !IsKnownDType(static_cast<std::uint8_t>(view.layout.dtype))) return;
  const tensor::FloatEnvironment environment;
  const std::size_t size = DTypeSize(view.layout.dtype);
  const Parts parts = PartsOf(view.layout.dtype);
  const auto to_double = tensor::Kernels().to_double[static_cast<std::size_t>(parts.dtype)];
  tensor::ForEachPiece(view, /*any_order=*/false, nullptr,
                       [&](const std::byte* data, std::uint64_t count, std::byte*) noexcept {
                         double current[2 * kChunk];
                         double earlier[2 * kChunk];
                         while (count != 0) {
                           const std::uint64_t part = std::min(count, kChunk);
                           to_double(data, part * parts.per_element, current);
                           to_double(previous, part * parts.per_element, earlier);
                           AddChunk(current, earlier, part, parts.per_element == 2, out);
                           out->changed_count += CountChanged(data, previous, part, size);
                           if (update_previous) std::memcpy(previous, data, part * size);
                           data += part * size;
                           previous += part * size;
                           count -= part;
                         }
                       });
}

}  // namespace luff

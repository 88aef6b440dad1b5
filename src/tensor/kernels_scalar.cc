// The reference: one element at a time, accumulating in float64. Used where no SIMD target fits, and by
// tests.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tensor/element.h"
#include "tensor/kernel_table.h"

namespace luff::tensor {
namespace {

template <DType kType>
void SummarizeBlock(const std::byte* from, std::size_t count, Summary* into) noexcept {
  const std::size_t size = DTypeSize(kType);
  constexpr Domain kDomain = DomainOf(kType);
  using Bound =
      std::conditional_t<kDomain == Domain::kFloat, double,
                         std::conditional_t<kDomain == Domain::kSigned, std::int64_t, std::uint64_t>>;
  auto low = std::bit_cast<Bound>(into->min_bits);
  auto high = std::bit_cast<Bound>(into->max_bits);
  double sum = 0, sum_sq = 0, abs_sum = 0;
  std::uint64_t zero = 0, nan = 0, inf = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double value = ReadElement<kType>(from + i * size);
    Bound bound;
    if constexpr (kType == DType::kInt64 || kType == DType::kUInt64) {
      bound = LoadAs<Bound>(from + i * size);
    } else {
      if constexpr (kDomain == Domain::kFloat) {
        if (std::isnan(value)) {
          ++nan;
          continue;
        }
        if (std::isinf(value)) {
          ++inf;
          continue;
        }
      }
      bound = static_cast<Bound>(value);
    }
    zero += value == 0;
    low = std::min(low, bound);
    high = std::max(high, bound);
    sum += value;
    sum_sq += value * value;
    abs_sum += std::fabs(value);
  }
  if constexpr (kDomain == Domain::kFloat) {
    low += 0.0;  // -0 becomes +0, so that all targets agree
    high += 0.0;
  }
  into->min_bits = std::bit_cast<std::uint64_t>(low);
  into->max_bits = std::bit_cast<std::uint64_t>(high);
  into->count += count;
  into->sum += sum;
  into->sum_sq += sum_sq;
  into->abs_sum += abs_sum;
  into->zero_count += zero;
  into->nan_count += nan;
  into->inf_count += inf;
}

template <DType kType>
void Summarize(const std::byte* from, std::size_t count, std::byte* to, bool /*stream*/,
               Summary* into) noexcept {
  constexpr std::size_t kBlock = 1024;  // errors of the sums grow with the number of blocks, not of elements
  const std::size_t size = DTypeSize(kType);
  if (to != nullptr && count != 0) std::memcpy(to, from, count * size);
  for (; count > kBlock; count -= kBlock, from += kBlock * size) SummarizeBlock<kType>(from, kBlock, into);
  SummarizeBlock<kType>(from, count, into);
}

template <DType kType>
void ToDouble(const std::byte* from, std::size_t count, double* to) noexcept {
  const std::size_t size = DTypeSize(kType);
  for (std::size_t i = 0; i < count; ++i) to[i] = ReadElement<kType>(from + i * size);
}

template <DType kType>
void ToFloat(const std::byte* from, std::size_t count, float* to) noexcept {
  constexpr double kMax = std::numeric_limits<float>::max();
  const std::size_t size = DTypeSize(kType);
  for (std::size_t i = 0; i < count; ++i) {
    const double value = ReadElement<kType>(from + i * size);
    to[i] = std::isfinite(value) ? static_cast<float>(std::clamp(value, -kMax, kMax))
                                 : std::numeric_limits<float>::quiet_NaN();
  }
}

/// Real and imaginary part of a complex element; the value and 0 of any other.
template <DType kType>
std::pair<double, double> ReadParts(const std::byte* from) noexcept {
  if constexpr (kType == DType::kComplex32) {
    return {ReadElement<DType::kFloat16>(from), ReadElement<DType::kFloat16>(from + 2)};
  } else if constexpr (kType == DType::kComplex64) {
    return {ReadElement<DType::kFloat32>(from), ReadElement<DType::kFloat32>(from + 4)};
  } else if constexpr (kType == DType::kComplex128) {
    return {ReadElement<DType::kFloat64>(from), ReadElement<DType::kFloat64>(from + 8)};
  } else {
    return {ReadElement<kType>(from), 0.0};
  }
}

template <DType kType>
void Differ(const std::byte* current, const std::byte* previous, std::size_t count,
            Difference* into) noexcept {
  const std::size_t size = DTypeSize(kType);
  Difference part;  // separate, so that small terms are not added singly to large sums
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* now = current + i * size;
    const std::byte* before = previous + i * size;
    part.changed_count += std::memcmp(now, before, size) != 0;
    const auto [re, im] = ReadParts<kType>(now);
    const auto [previous_re, previous_im] = ReadParts<kType>(before);
    double d, y;
    if constexpr (kType == DType::kComplex32 || kType == DType::kComplex64 || kType == DType::kComplex128) {
      d = Magnitude(re - previous_re, im - previous_im);
      y = Magnitude(previous_re, previous_im);
    } else {
      d = std::fabs(re - previous_re);
      y = std::fabs(previous_re);
    }
    if (std::isfinite(d)) {
      part.l1 += d;
      part.sum_sq += d * d;
      part.max = std::max(part.max, d);
    }
    if (std::isfinite(y)) {
      part.previous_l1 += y;
      part.previous_sum_sq += y * y;
    }
  }
  into->l1 += part.l1;
  into->sum_sq += part.sum_sq;
  into->max = std::max(into->max, part.max);
  into->changed_count += part.changed_count;
  into->previous_l1 += part.previous_l1;
  into->previous_sum_sq += part.previous_sum_sq;
}

void UnitsAcross(const double* values, std::size_t count, std::uint64_t* positive, std::uint64_t* zero,
                 double* sum) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const bool finite = std::isfinite(values[i]);
    positive[i] += finite && values[i] > 0;
    zero[i] += values[i] == 0;
    sum[i] += finite ? values[i] : 0.0;
  }
}

void UnitsWithin(const double* values, std::size_t count, std::uint64_t* positive, std::uint64_t* zero,
                 double* sum) noexcept {
  double total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool finite = std::isfinite(values[i]);
    *positive += finite && values[i] > 0;
    *zero += values[i] == 0;
    total += finite ? values[i] : 0.0;
  }
  *sum += total;
}

template <std::size_t... kIndex>
constexpr KernelTable MakeTable(std::index_sequence<kIndex...>) {
  KernelTable table;
  table.name = "scalar";
  table.setting = "scalar";
  ((table.summarize[kIndex] = &Summarize<static_cast<DType>(kIndex)>), ...);
  ((table.to_double[kIndex] = &ToDouble<static_cast<DType>(kIndex)>), ...);
  ((table.to_float[kIndex] = &ToFloat<static_cast<DType>(kIndex)>), ...);
  ((table.difference[kIndex] = &Differ<static_cast<DType>(kIndex)>), ...);
  table.units_across = &UnitsAcross;
  table.units_within = &UnitsWithin;
  table.hash = &HashBaseline;
  return table;
}

constexpr KernelTable kTable = MakeTable(std::make_index_sequence<kDTypeCount>());

}  // namespace

const KernelTable* ScalarKernels() noexcept { return &kTable; }

}  // namespace luff::tensor

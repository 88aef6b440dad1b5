// The reference: one element at a time, accumulating in float64. Used where no SIMD target fits, and by tests.
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
  using Bound = std::conditional_t<kDomain == Domain::kFloat, double,
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
void Summarize(const std::byte* from, std::size_t count, std::byte* to, bool /*stream*/, Summary* into) noexcept {
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

template <std::size_t... kIndex>
constexpr KernelTable MakeTable(std::index_sequence<kIndex...>) {
  KernelTable table;
  table.name = "scalar";
  table.setting = "scalar";
  ((table.summarize[kIndex] = &Summarize<static_cast<DType>(kIndex)>), ...);
  ((table.to_double[kIndex] = &ToDouble<static_cast<DType>(kIndex)>), ...);
  ((table.to_float[kIndex] = &ToFloat<static_cast<DType>(kIndex)>), ...);
  table.hash = &HashBaseline;
  return table;
}

constexpr KernelTable kTable = MakeTable(std::make_index_sequence<kDTypeCount>());

}  // namespace

const KernelTable* ScalarKernels() noexcept { return &kTable; }

}  // namespace luff::tensor

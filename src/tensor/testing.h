#pragma once
// For this room's tests: random tensors of every dtype, and a slow reference that is obviously correct.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "luff/tensor/summary.h"
#include "tensor/element.h"
#include "tensor/kernel_table.h"

namespace luff {

inline void PrintTo(DType dtype, std::ostream* out) { *out << DTypeName(dtype); }

}  // namespace luff

namespace luff::tensor {

inline std::vector<DType> AllDTypes() {
  std::vector<DType> all;
  for (int i = 1; i < kDTypeCount; ++i) all.push_back(static_cast<DType>(i));
  return all;
}

/// Kinds of test values.
enum class Content { kOrdinary, kWithNonFinite, kAnyBits, kOffset, kZeros };

/// Makes `count` elements of `dtype`, the same for the same seed.
inline std::vector<std::byte> MakeElements(DType dtype, std::size_t count, Content content,
                                           std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::size_t size = DTypeSize(dtype);
  std::vector<std::byte> bytes(count * size);
  if (content == Content::kZeros) return bytes;
  for (auto& b : bytes) b = static_cast<std::byte>(random() & 0xff);
  if (dtype == DType::kBool) {
    for (auto& b : bytes) b &= std::byte{1};
  }
  if (dtype == DType::kFloat64 || dtype == DType::kComplex128) {
    // Below 2^768: whether sums of larger ones overflow depends on their order.
    for (std::size_t i = 7; i < bytes.size(); i += 8) bytes[i] &= std::byte{0xef};
  }
  if (content == Content::kAnyBits) return bytes;
  std::normal_distribution<double> normal(content == Content::kOffset ? 1e6 : 0.0, 1.0);
  const auto fill = [&](auto element) {
    using E = decltype(element);
    for (std::size_t i = 0; i + sizeof(E) <= bytes.size(); i += sizeof(E)) {
      E value = static_cast<E>(normal(random));
      if (content == Content::kWithNonFinite) {
        const auto pick = random() % 40;
        if (pick == 0) value = std::numeric_limits<E>::quiet_NaN();
        if (pick == 1) value = std::numeric_limits<E>::infinity();
        if (pick == 2) value = -std::numeric_limits<E>::infinity();
        if (pick == 3) value = E{0};
        if (pick == 4) value = -E{0};
        if (pick == 5) value = std::numeric_limits<E>::denorm_min();
        // 1e150 for float64: whether sums of larger values overflow depends on their order.
        if (pick == 6) value = sizeof(E) == 4 ? std::numeric_limits<E>::max() : static_cast<E>(1e150);
      }
      std::memcpy(bytes.data() + i, &value, sizeof(E));
    }
  };
  if (dtype == DType::kFloat32 || dtype == DType::kComplex64) fill(float{});
  if (dtype == DType::kFloat64 || dtype == DType::kComplex128) fill(double{});
  if (dtype == DType::kBFloat16 && content != Content::kWithNonFinite) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto bits =
          static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(normal(random))) >> 16);
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
  }
  return bytes;
}

struct Reference {
  DType dtype = DType::kInvalid;
  Summary summary;
  long double sum = 0, sum_sq = 0, abs_sum = 0;
};

/// Summarizes one element at a time in long double.
inline Reference ReferenceSummary(DType dtype, const std::byte* data, std::size_t count) {
  Reference r;
  r.dtype = dtype;
  r.summary.count = count;
  const std::size_t size = DTypeSize(dtype);
  bool first = true;
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* at = data + i * size;
    double value = 0;
    ScalarKernels()->to_double[static_cast<std::size_t>(dtype)](at, 1, &value);
    if (std::isnan(value)) {
      ++r.summary.nan_count;
      continue;
    }
    if (std::isinf(value)) {
      ++r.summary.inf_count;
      continue;
    }
    r.summary.zero_count += value == 0;
    r.sum += value;
    r.sum_sq += static_cast<long double>(value) * value;
    r.abs_sum += std::fabs(value);
    Summary one;
    one.count = 1;
    switch (DomainOf(dtype)) {
      case Domain::kFloat: one.min_bits = std::bit_cast<std::uint64_t>(value + 0.0); break;
      case Domain::kSigned:
        one.min_bits = dtype == DType::kInt64 ? LoadAs<std::uint64_t>(at)
                                              : static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
        break;
      case Domain::kUnsigned:
        one.min_bits =
            dtype == DType::kUInt64 ? LoadAs<std::uint64_t>(at) : static_cast<std::uint64_t>(value);
        break;
    }
    one.max_bits = one.min_bits;
    Summary bounds = first ? Summary() : r.summary;
    bounds.count = first ? 0 : 1;
    bounds.nan_count = bounds.inf_count = 0;
    bounds.Merge(one, dtype);
    r.summary.min_bits = bounds.min_bits;
    r.summary.max_bits = bounds.max_bits;
    first = false;
  }
  r.summary.sum = static_cast<double>(r.sum);
  r.summary.sum_sq = static_cast<double>(r.sum_sq);
  r.summary.abs_sum = static_cast<double>(r.abs_sum);
  return r;
}

/// Returns "" if `got` agrees with the reference, else the differences. Sums must agree within 1.1e-6 (float
/// lanes) or 1e-12 of the sum of magnitudes, bounds of complex numbers within 1e-12, all else exactly.
inline std::string Mismatch(const Summary& got, const Reference& want) {
  std::string text;
  const auto exact = [&](const char* name, std::uint64_t a, std::uint64_t b) {
    if (a != b)
      text += std::string(name) + " is " + std::to_string(a) + ", expected " + std::to_string(b) + "; ";
  };
  const auto near = [&](const char* name, double a, double b, long double bound) {
    if (a == b || (std::isnan(a) && std::isnan(b))) return;
    if (std::fabs(static_cast<long double>(a) - b) <= bound) return;
    text += std::string(name) + " is " + std::to_string(a) + ", expected " + std::to_string(b) + "; ";
  };
  const bool float_lanes = IsFloating(want.dtype) && want.dtype != DType::kFloat64;
  const long double tolerance = float_lanes ? 1.1e-6L : 1e-12L;
  exact("count", got.count, want.summary.count);
  exact("zero_count", got.zero_count, want.summary.zero_count);
  exact("nan_count", got.nan_count, want.summary.nan_count);
  exact("inf_count", got.inf_count, want.summary.inf_count);
  if (IsComplex(want.dtype)) {  // hypot and a square root may differ in the last place
    near("min", got.min(want.dtype), want.summary.min(want.dtype),
         std::fabs(want.summary.min(want.dtype)) * tolerance);
    near("max", got.max(want.dtype), want.summary.max(want.dtype),
         std::fabs(want.summary.max(want.dtype)) * tolerance);
  } else {
    exact("min_bits", got.min_bits, want.summary.min_bits);
    exact("max_bits", got.max_bits, want.summary.max_bits);
  }
  near("sum", got.sum, want.summary.sum, want.abs_sum * tolerance);
  near("abs_sum", got.abs_sum, want.summary.abs_sum, want.abs_sum * tolerance);
  near("sum_sq", got.sum_sq, want.summary.sum_sq, want.sum_sq * tolerance);
  return text;
}

/// Calls `fn` once for each table this CPU can run, with that table in use; restores the previous one at the
/// end.
template <typename Fn>
void ForEachTarget(Fn&& fn) {
  const KernelTable* before = &Kernels();
  for (const KernelTable* table : UsableKernels()) {
    SetKernels(table);
    fn(*table);
  }
  SetKernels(before);
}

}  // namespace luff::tensor

#pragma once
// The kernels of one SIMD target. All kernels read contiguous memory, never allocate, never throw, and expect
// the default floating-point environment (see float_environment.h).
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "luff/tensor/summary.h"

namespace luff::tensor {

/// Adds `count` elements at `from` to `*into` (which Begin() made), and copies them to `to` unless it is
/// null. `stream`: store past the caches. `from` needs no alignment.
using SummarizeKernel = void (*)(const std::byte* from, std::size_t count, std::byte* to, bool stream,
                                 Summary* into) noexcept;
/// Converts to float64 (complex: magnitude).
using ToDoubleKernel = void (*)(const std::byte* from, std::size_t count, double* to) noexcept;
/// Converts to float32 for binning: finite values beyond float32 become its largest, all non-finite ones NaN.
using ToFloatKernel = void (*)(const std::byte* from, std::size_t count, float* to) noexcept;
/// XXH3-64, seed 0.
using HashKernel = std::uint64_t (*)(const void* from, std::size_t bytes) noexcept;
/// Adds the difference of `count` contiguous elements. The sums omit elements with a non-finite distance.
using DifferenceKernel = void (*)(const std::byte* current, const std::byte* previous, std::size_t count,
                                  Difference* into) noexcept;
/// `units_across` takes one value from each of `count` adjacent units: positive[i], zero[i] and sum[i] belong
/// to values[i]. `units_within` takes `count` values of one unit, to which the counters belong.
using UnitsKernel = void (*)(const double* values, std::size_t count, std::uint64_t* positive,
                             std::uint64_t* zero, double* sum) noexcept;

struct KernelTable {
  const char* name = "";     // as SimdTarget() returns it
  std::string_view setting;  // as LUFF_SIMD names it
  std::array<SummarizeKernel, kDTypeCount> summarize{};
  std::array<ToDoubleKernel, kDTypeCount> to_double{};
  std::array<ToFloatKernel, kDTypeCount> to_float{};
  std::array<DifferenceKernel, kDTypeCount> difference{};
  UnitsKernel units_across = nullptr;
  UnitsKernel units_within = nullptr;
  HashKernel hash = nullptr;
};

/// The table in use: the best for this CPU, or the one that LUFF_SIMD names (an unknown or impossible name is
/// ignored). Chosen once. **Thread-safe.** Costs one load.
[[nodiscard]] const KernelTable& Kernels() noexcept;
/// All tables this CPU can run, worst first. For tests and benchmarks.
[[nodiscard]] std::span<const KernelTable* const> UsableKernels() noexcept;
/// For tests: makes Kernels() return `table` from now on.
void SetKernels(const KernelTable* table) noexcept;

// Defined by the files of kernels; null where the compiler or CPU architecture lacks the target.
[[nodiscard]] const KernelTable* ScalarKernels() noexcept;
[[nodiscard]] const KernelTable* Sse4Kernels() noexcept;
[[nodiscard]] const KernelTable* Avx2Kernels() noexcept;
[[nodiscard]] const KernelTable* Avx3Kernels() noexcept;
[[nodiscard]] const KernelTable* NeonKernels() noexcept;

// XXH3 per target (hash_*.cc).
[[nodiscard]] std::uint64_t HashBaseline(const void* from, std::size_t bytes) noexcept;
[[nodiscard]] std::uint64_t HashAvx2(const void* from, std::size_t bytes) noexcept;
[[nodiscard]] std::uint64_t HashAvx3(const void* from, std::size_t bytes) noexcept;

/// An empty Summary, whose min and max any value replaces.
[[nodiscard]] Summary Begin(DType dtype) noexcept;
/// Sets min and max of a summary without finite values to 0.
inline void Finish(Summary* summary) noexcept {
  if (summary->finite_count() == 0) summary->min_bits = summary->max_bits = 0;
}

}  // namespace luff::tensor

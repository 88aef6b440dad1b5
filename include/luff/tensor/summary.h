#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "luff/tensor/view.h"

namespace luff {

/// Statistics of one tensor at one step, over its **finite** elements unless said otherwise.
///
/// Complex elements count by their magnitude. `std`, `variance`, `mean`, norms follow from it:
/// mean = sum / finite_count, variance (ddof 0) = sum_sq / n - mean^2 computed in float64,
/// l1 = abs_sum, l2 = sqrt(sum_sq) (vector norms of the flattened tensor).
struct Summary {
  std::uint64_t count = 0;  // all elements, non-finite ones too
  double sum = 0;
  double sum_sq = 0;
  double abs_sum = 0;
  /// Smallest and largest finite value, exact in the tensor's own width: IEEE double bits for floating and
  /// complex types, int64 bits for signed, uint64 bits for unsigned types and bool. Meaningless if no element
  /// is finite.
  std::uint64_t min_bits = 0;
  std::uint64_t max_bits = 0;
  std::uint64_t zero_count = 0;
  std::uint64_t nan_count = 0;
  std::uint64_t inf_count = 0;

  [[nodiscard]] std::uint64_t finite_count() const noexcept { return count - nan_count - inf_count; }
  [[nodiscard]] double mean() const noexcept;      // NaN if nothing is finite
  [[nodiscard]] double variance() const noexcept;  // ddof 0, never negative; NaN if nothing is finite
  [[nodiscard]] double std() const noexcept;
  [[nodiscard]] double abs_mean() const noexcept;
  [[nodiscard]] double l2() const noexcept;
  [[nodiscard]] double min(DType dtype) const noexcept;  // NaN if nothing is finite
  [[nodiscard]] double max(DType dtype) const noexcept;
  [[nodiscard]] double abs_max(DType dtype) const noexcept;
  /// Merges the summary of another part or step of the same dtype into this one.
  void Merge(const Summary& other, DType dtype) noexcept;
};

/// The three reductions of smdebug that a Summary does not hold: min |x|, prod x, prod |x| (float64).
struct ExtraReductions {
  double abs_min = std::numeric_limits<double>::infinity();
  double prod = 1;
  double abs_prod = 1;
};

/// Logarithmic histogram of 4,096 bins: bin = float32 bit pattern of the value >> 20 (sign, exponent, top 3
/// mantissa bits). Mergeable by addition. A bin is at most 12.5 % of its value wide, so its middle is within
/// 6.25 % of every value in it. NaN and Inf are not binned. Source: the DDSketch argument in
/// docs/spec/run-format.md.
struct HistogramBin {
  std::uint16_t bin;
  std::uint64_t count;
};
/// Occupied bins, ascending by bin.
using SparseHistogram = std::vector<HistogramBin>;
inline constexpr std::size_t kHistogramBins = 4096;
/// Lower (towards -inf) and upper edge of a bin as values.
[[nodiscard]] double HistogramBinLow(std::uint16_t bin) noexcept;
[[nodiscard]] double HistogramBinHigh(std::uint16_t bin) noexcept;
/// Quantile q in [0, 1] by linear interpolation inside the bin; NaN when empty.
[[nodiscard]] double HistogramQuantile(std::span<const HistogramBin> bins, double q) noexcept;

/// Which positions of a tensor count as one unit (neuron, channel).
enum class UnitAxis : std::uint8_t {  // permanent
  kChannel = 0,                       // axis 1 (rank >= 2); `channels_last` modules use kLast
  kLast = 1,                          // the last axis
  kAllButFirst = 2,                   // every position except along axis 0 (smdebug's definition of a node)
};

/// For each unit: how many values are > 0, how many are == 0, and the sum of the finite ones.
struct UnitCounts {
  UnitAxis axis = UnitAxis::kChannel;
  std::uint64_t values_per_unit = 0;
  std::vector<std::uint64_t> positive;  // one per unit
  std::vector<std::uint64_t> zero;
  std::vector<double> sum;
};

/// Difference from an earlier value of the same tensor: statistics of |x - y|.
struct Difference {
  double l1 = 0;
  double sum_sq = 0;
  double max = 0;
  std::uint64_t changed_count = 0;  // elements whose bits differ
  double previous_l1 = 0;           // sum |y|
  double previous_sum_sq = 0;       // sum y^2
};

/// Summarizes `view` in one pass. The same pass copies the elements to `copy_to`, unless it is null:
/// contiguously, in row-major order, view.layout.byte_count() bytes. Never throws, never allocates. Source:
/// fused kernels (src/tensor/pass-inl.h; error bounds in kernels_simd.cc), checked against long double in
/// summarize_test.cc.
void Summarize(const TensorView& view, Summary* out, std::byte* copy_to = nullptr) noexcept;
/// Copies elements contiguously in row-major order. Any strides.
void CopyContiguous(const TensorView& view, std::byte* to) noexcept;
/// Adds the elements to `dense` (kHistogramBins counters).
void AddHistogram(const TensorView& view, std::span<std::uint64_t> dense) noexcept;
/// Computes summary and histogram together, for runs with histograms.
void SummarizeWithHistogram(const TensorView& view, Summary* out, std::span<std::uint64_t> dense,
                            std::byte* copy_to = nullptr) noexcept;
[[nodiscard]] SparseHistogram ToSparse(std::span<const std::uint64_t> dense);

void ComputeExtra(const TensorView& view, ExtraReductions* out) noexcept;
/// XXH3-64 of the elements in row-major order (independent of strides), seed 0.
[[nodiscard]] std::uint64_t ContentHash(const TensorView& view) noexcept;
/// Resizes the vectors of `out`. Treats a tensor of rank 0 or 1 as one row of units.
void ComputeUnits(const TensorView& view, UnitAxis axis, UnitCounts* out);
/// `previous` holds the earlier elements contiguously, in the same layout. If `update_previous`, the same
/// pass overwrites them with the current elements.
void ComputeDifference(const TensorView& view, std::byte* previous, bool update_previous,
                       Difference* out) noexcept;

/// Converts `count` contiguous elements to float64 (complex: magnitude). For tests, plots and rules.
void ToFloat64(DType dtype, const std::byte* from, std::size_t count, double* to) noexcept;

/// Name of the SIMD target in use, e.g. "AVX2"; LUFF_SIMD=scalar forces the reference loop (tests).
[[nodiscard]] const char* SimdTarget() noexcept;

}  // namespace luff

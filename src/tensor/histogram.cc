#include <algorithm>
#include <bit>
#include <cmath>

#include "luff/tensor/summary.h"
#include "tensor/element.h"

namespace luff {
namespace {

constexpr int kShift = 20;  // 32 bits - sign, exponent and 3 mantissa bits
constexpr std::uint32_t kSignBin = 0x800;

/// The edge of a bin nearer to zero (`offset` 0) or farther from it (1), without sign.
double Edge(std::uint32_t magnitude_bin, std::uint32_t offset) noexcept {
  const std::uint32_t bits = (magnitude_bin + offset) << kShift;
  // The last finite bin ends where float32 ends; beyond it lie Inf and NaN.
  if (bits >= 0x7f800000u) return static_cast<double>(std::numeric_limits<float>::max());
  return static_cast<double>(std::bit_cast<float>(bits));
}

}  // namespace

double HistogramBinLow(std::uint16_t bin) noexcept {
  const std::uint32_t code = bin & (kHistogramBins - 1);
  return code < kSignBin ? Edge(code, 0) : -Edge(code - kSignBin, 1);
}

double HistogramBinHigh(std::uint16_t bin) noexcept {
  const std::uint32_t code = bin & (kHistogramBins - 1);
  return code < kSignBin ? Edge(code, 1) : -Edge(code - kSignBin, 0);
}

double HistogramQuantile(std::span<const HistogramBin> bins, double q) noexcept {
  // 128 bits would be needed for hostile counts; float64 cannot overflow and is exact below 2^53.
  double total = 0;
  for (const HistogramBin& bin : bins) total += static_cast<double>(bin.count);
  if (!(total > 0) || std::isnan(q)) return std::numeric_limits<double>::quiet_NaN();
  double left = std::clamp(q, 0.0, 1.0) * total;
  // Values ascend through the negative bins from the last to the first, then through the positive ones.
  const auto split =
      std::find_if(bins.begin(), bins.end(), [](const HistogramBin& b) { return b.bin >= kSignBin; });
  double last = std::numeric_limits<double>::quiet_NaN();
  const auto visit = [&](const HistogramBin& bin) noexcept {
    const auto count = static_cast<double>(bin.count);
    if (bin.count == 0) return false;
    const double low = HistogramBinLow(bin.bin);
    const double high = HistogramBinHigh(bin.bin);
    last = high;
    if (left <= count) {
      last = low + (high - low) * (left / count);
      return true;
    }
    left -= count;
    return false;
  };
  for (auto it = bins.end(); it != split;) {
    if (visit(*--it)) return last;
  }
  for (auto it = bins.begin(); it != split; ++it) {
    if (visit(*it)) return last;
  }
  return last;
}

SparseHistogram ToSparse(std::span<const std::uint64_t> dense) {
  SparseHistogram sparse;
  const std::size_t bins = std::min(dense.size(), kHistogramBins);
  std::size_t occupied = 0;
  for (std::size_t i = 0; i < bins; ++i) occupied += dense[i] != 0;
  sparse.reserve(occupied);
  for (std::size_t i = 0; i < bins; ++i) {
    if (dense[i] != 0) sparse.push_back({static_cast<std::uint16_t>(i), dense[i]});
  }
  return sparse;
}

}  // namespace luff

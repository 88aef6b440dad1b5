#include "server/histogram.h"

#include <algorithm>
#include <limits>

namespace luff::server {

std::optional<EqualBins> InEqualBins(const SparseHistogram& bins, std::size_t count) {
  if (bins.empty() || count == 0) return std::nullopt;
  EqualBins equal;
  // Bins of negative values come behind those of positive ones, and ascend towards the lowest.
  equal.low = std::numeric_limits<double>::max();
  equal.high = std::numeric_limits<double>::lowest();
  for (const HistogramBin& bin : bins) {
    equal.low = std::min(equal.low, HistogramBinLow(bin.bin));
    equal.high = std::max(equal.high, HistogramBinHigh(bin.bin));
  }
  equal.counts.resize(count, 0);
  const double width = (equal.high - equal.low) / static_cast<double>(count);
  const auto place = [&](double value) {  // what is at one place alone, as infinity is, is in the first bin
    const double at = width > 0 ? (value - equal.low) / width : 0;
    return static_cast<std::size_t>(std::clamp(at, 0.0, static_cast<double>(count - 1)));
  };
  for (const HistogramBin& bin : bins) {
    const double from = HistogramBinLow(bin.bin);
    const double to = HistogramBinHigh(bin.bin);
    const std::size_t last = place(to);
    for (std::size_t i = place(from); i <= last; ++i) {
      const double begin = std::max(from, equal.low + width * static_cast<double>(i));
      const double end = std::min(to, equal.low + width * static_cast<double>(i + 1));
      const double share = to > from ? std::max(0.0, end - begin) / (to - from) : 1;
      equal.counts[i] += share * static_cast<double>(bin.count);
    }
  }
  return equal;
}

}  // namespace luff::server

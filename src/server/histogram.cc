#include "server/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace luff::server {
namespace {

constexpr std::uint16_t kSignBit = 0x800, kSizeBits = 0x7ff;
constexpr double kShown = 1e-6;  // of the largest size: what is smaller is around 0

struct Range {
  double low = std::numeric_limits<double>::max(), high = std::numeric_limits<double>::lowest();
  // Bins of negative values come behind those of positive ones, and ascend towards the lowest.
  void Take(const SparseHistogram& bins) {
    for (const HistogramBin& bin : bins) {
      low = std::min(low, HistogramBinLow(bin.bin));
      high = std::max(high, HistogramBinHigh(bin.bin));
    }
  }
};

/// Spreads the counts over equal bins from `low` to `high`, in which all of them lie.
std::vector<double> Spread(const SparseHistogram& bins, double low, double high, std::size_t count) {
  std::vector<double> counts(count, 0);
  const double width = (high - low) / static_cast<double>(count);
  const auto place = [&](double value) {  // what is at one place alone, as infinity is, is in the first bin
    const double at = width > 0 ? (value - low) / width : 0;
    return static_cast<std::size_t>(std::clamp(at, 0.0, static_cast<double>(count - 1)));
  };
  for (const HistogramBin& bin : bins) {
    const double from = HistogramBinLow(bin.bin);
    const double to = HistogramBinHigh(bin.bin);
    const std::size_t last = place(to);
    for (std::size_t i = place(from); i <= last; ++i) {
      const double begin = std::max(from, low + width * static_cast<double>(i));
      const double end = std::min(to, low + width * static_cast<double>(i + 1));
      const double share = to > from ? std::max(0.0, end - begin) / (to - from) : 1;
      counts[i] += share * static_cast<double>(bin.count);
    }
  }
  return counts;
}

}  // namespace

std::optional<EqualBins> InEqualBins(const SparseHistogram& bins, std::size_t count) {
  if (bins.empty() || count == 0) return std::nullopt;
  Range range;
  range.Take(bins);
  return EqualBins{range.low, range.high, Spread(bins, range.low, range.high, count)};
}

void MergeHistogram(const SparseHistogram& other, SparseHistogram* into) {
  SparseHistogram both;
  both.reserve(into->size() + other.size());
  auto a = into->begin();
  for (const HistogramBin& bin : other) {
    while (a != into->end() && a->bin < bin.bin) both.push_back(*a++);
    if (a != into->end() && a->bin == bin.bin)
      both.push_back({bin.bin, a++->count + bin.count});
    else
      both.push_back(bin);
  }
  both.insert(both.end(), a, into->end());
  *into = std::move(both);
}

SharedBins::SharedBins(std::span<const SparseHistogram* const> all, std::size_t count, bool log) : log_(log) {
  Range range;
  for (const SparseHistogram* one : all) range.Take(*one);
  if (range.low > range.high || count == 0) return;
  if (!log) {
    for (std::size_t i = 0; i <= count; ++i)
      edges_.push_back(range.low +
                       (range.high - range.low) * static_cast<double>(i) / static_cast<double>(count));
    return;
  }
  int largest = 0;
  for (const SparseHistogram* one : all) {
    for (const HistogramBin& bin : *one) largest = std::max(largest, bin.bin & kSizeBits);
  }
  const double smallest = HistogramBinLow(static_cast<std::uint16_t>(largest)) * kShown;
  floor_ = largest;
  while (floor_ > 0 && HistogramBinLow(static_cast<std::uint16_t>(floor_)) > smallest) --floor_;
  int last = std::numeric_limits<int>::min();
  first_ = std::numeric_limits<int>::max();
  for (const SparseHistogram* one : all) {
    for (const HistogramBin& bin : *one) {
      first_ = std::min(first_, Place(bin.bin));
      last = std::max(last, Place(bin.bin));
    }
  }
  const int places = last - first_ + 1;
  joined_ = static_cast<int>((static_cast<std::size_t>(places) + count - 1) / count);
  // Lower edge of a place.
  const auto edge = [&](int place) {
    const int size = floor_ + std::abs(place);
    return HistogramBinLow(static_cast<std::uint16_t>(place > 0 ? size : kSignBit | size));
  };
  for (int place = first_; place <= last; place += joined_) edges_.push_back(edge(place));
  edges_.push_back(last >= 0 ? HistogramBinHigh(static_cast<std::uint16_t>(floor_ + last)) : edge(last + 1));
}

int SharedBins::Place(std::uint16_t bin) const noexcept {
  const int size = std::max((bin & kSizeBits) - floor_, 0);
  return (bin & kSignBit) != 0 ? -size : size;
}

std::vector<double> SharedBins::Counts(const SparseHistogram& histogram) const {
  if (edges_.empty()) return {};
  if (!log_) return Spread(histogram, edges_.front(), edges_.back(), count());
  std::vector<double> counts(count(), 0);
  for (const HistogramBin& bin : histogram) {
    const auto at = static_cast<std::size_t>((Place(bin.bin) - first_) / joined_);
    counts[std::min(at, counts.size() - 1)] += static_cast<double>(bin.count);
  }
  return counts;
}

}  // namespace luff::server

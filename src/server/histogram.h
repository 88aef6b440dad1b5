#pragma once
#include <optional>
#include <span>
#include <vector>

#include "luff/tensor/summary.h"

namespace luff::server {

/// Equal bins, for a picture.
struct EqualBins {
  double low = 0, high = 0;
  std::vector<double> counts;
};
/// Spreads recorded bins, which are logarithmic, evenly over `count` equal ones from the lowest edge to the
/// highest. A stranger's run may hold any bins and counts. nullopt if there are none.
[[nodiscard]] std::optional<EqualBins> InEqualBins(const SparseHistogram& bins, std::size_t count);

/// Adds the counts of `other` to `into`.
void MergeHistogram(const SparseHistogram& other, SparseHistogram* into);

/// How several histograms are shown in the same bins: `edges` ascend, one more than there are bins.
class SharedBins {
 public:
  /// `count`: bins at most. Equal ones from the lowest edge of all histograms to the highest; with `log`,
  /// recorded bins joined in equal numbers, and all within a millionth of the largest size joined to one
  /// around 0, so that both tails of a distribution are seen.
  SharedBins(std::span<const SparseHistogram* const> all, std::size_t count, bool log);
  [[nodiscard]] const std::vector<double>& edges() const noexcept { return edges_; }
  [[nodiscard]] std::size_t count() const noexcept { return edges_.empty() ? 0 : edges_.size() - 1; }
  /// One number for each bin.
  [[nodiscard]] std::vector<double> Counts(const SparseHistogram& histogram) const;

 private:
  /// Place of a recorded bin in the order of values; 0: around 0.
  [[nodiscard]] int Place(std::uint16_t bin) const noexcept;
  std::vector<double> edges_;
  bool log_;
  int floor_ = 0, first_ = 0, joined_ = 1;
};

}  // namespace luff::server

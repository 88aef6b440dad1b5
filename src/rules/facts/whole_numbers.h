#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** How values would be distributed over whole numbers, if what stands behind the point
/// were cut off, and if they were rounded. Constant memory.
class WholeNumbers {
 public:
  void Add(const std::vector<double>& values);
  void Clear() { *this = {}; }

  [[nodiscard]] double count() const noexcept { return count_; }
  /// Every value so far is a whole number.
  [[nodiscard]] bool all_whole() const noexcept { return count_ > 0 && whole_ == count_; }
  void VisitFields(Fields& io);

  /// That `whole` holds what `real` holds, with a cast to integers on its way.
  struct Cut {
    double real_share = 0;              // of `real`'s values that are no whole numbers
    double zeros = 0;                   // share of 0 in `whole`
    double as_cut = 0, as_rounded = 0;  // distance of the distributions: 0 if equal, 1 if apart
  };
  /// Nullopt unless all of `whole` are whole numbers, a fifth of `real` at least is not, and the shares of
  /// whole numbers are those of `real` cut off, but not of `real` rounded: whole numbers with noise on them,
  /// or mixed with each other, lie around what they were. Values above 1 without negative ones are left
  /// alone: counts to which numbers of 0 to 1 are added to make a density of them.
  [[nodiscard]] static std::optional<Cut> Compare(const WholeNumbers& whole, const WholeNumbers& real);

 private:
  static constexpr std::size_t kBins = 7;  // -3 and below, -2, ..., 2, 3 and above
  using Bins = std::array<double, kBins>;

  double count_ = 0, whole_ = 0, negative_ = 0, above_one_ = 0;
  Bins cut_ = {}, rounded_ = {};
};

}  // namespace luff::rules

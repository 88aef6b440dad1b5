#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Whether an input holds whole numbers that were made of others by a cast:
/// standardised columns without what stands behind the point, or values that the target of a regression has
/// in full. Constant memory.
class CutColumns {
 public:
  static constexpr std::size_t kMaxColumns = 256;

  /// Adds a batch of (N, F) or (N, T, F), in which a column is an index of the last axis. `target`: of a
  /// regression that has a row for each, or null.
  void Add(const SampleValues& sample, const SampleValues* target);

  struct Found {
    /// Columns that are distributed as a normal number of deviation 1 that is cut, of those with more than
    /// two values; 0: the target shows it.
    std::size_t normal = 0, columns = 0;
    double zeros = 0;  // share of 0 in these columns
    bool by_target = false;
    double agreement = 0;  // of the input with the target cut off
  };
  [[nodiscard]] std::optional<Found> Find() const;
  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kBins = 9;  // -4 and below to 4 and above
  using Bins = std::vector<double>;

  [[nodiscard]] std::optional<Found> FindNormal() const;
  [[nodiscard]] std::optional<Found> FindByTarget() const;
  void AddTarget(const SampleValues& sample, const SampleValues& target);

  bool unfit_ = false;  // some value is no small whole number
  double rows_ = 0;
  std::size_t features_ = 0;
  Bins columns_;  // kBins of each column
  // Against the target: of inputs of the same shape, value by value; of series, the last time against the
  // first number of the target, by feature.
  bool same_shape_ = false;
  double compared_ = 0, agreed_ = 0, real_ = 0, nonzero_ = 0, negative_ = 0, above_one_ = 0;
  Bins target_, target_rounded_;
  Bins met_;   // by feature: last time and target cut off agree
  Bins last_;  // kBins of the last time of each feature
};

}  // namespace luff::rules

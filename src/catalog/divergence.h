#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "luff/base/result.h"
#include "luff/query/trial.h"

/// Where two runs part: the first step and tensor whose recorded numbers are not the same, and the first that
/// differ by more than both runs' noise.
namespace luff::catalog {

/// A number of a tensor at a step: a scalar, the mean of a loss, or an L2 norm.
struct DifferenceAt {
  std::string tensor;
  std::string kind;       // losses, gradients, weights, others
  std::int64_t step = 0;  // as the mode counts it
  double a = 0, b = 0;
  double noise = 0;  // standard deviation of a - b that both runs' own jitter explains; 0: not of its kind
  std::uint64_t as_early = 0;  // further tensors of the kind that differ since the same step
};

struct Divergence {
  std::string mode;                  // whose steps are compared; "" if the runs have no steps in common
  std::uint64_t steps = 0;           // compared
  std::int64_t first = 0, last = 0;  // of them
  std::uint64_t tensors = 0;         // compared: names in both runs
  std::uint64_t pairs = 0;           // numbers that both runs have at the same step
  std::vector<std::string> only_a, only_b;  // names of the other tensors, at most kMaxNamed
  std::uint64_t only_a_count = 0, only_b_count = 0;
  bool whole = true;                 // false: the steps after `last` were not looked at
  std::optional<DifferenceAt> any;   // the first that is not bit-identical
  std::vector<DifferenceAt> beyond;  // by kind, the earliest first: beyond noise
  static constexpr std::size_t kMaxNamed = 5;
};

/// Compares the numbers of two runs step by step: TRAIN steps, or those of the first mode that both have. At
/// most `budget` rows of each run are read.
[[nodiscard]] Result<Divergence> FindDivergence(const query::Trial& a, const query::Trial& b,
                                                std::uint64_t budget = 20'000'000);

/// Standard deviation of the values' jitter around a course that is locally a straight line: the median of
/// |y(t) - (y(t-1) + y(t+1)) / 2|, as a deviation of normal values (1 / 0.6745), times sqrt(2/3). Source:
/// Gasser, Sroka, Jennen-Steinmetz, "Residual variance and residual pattern in nonlinear regression",
/// Biometrika 73 (1986), with the median in place of the mean of squares. NaN for fewer than 4 finite values.
[[nodiscard]] double JitterOf(std::span<const double> values);

/// The first place from `from` on at which a and b differ beyond noise: there and at the next kLasting - 1
/// places by more than kDeviations standard deviations of both runs' jitter in the kWindow values before (at
/// the beginning: the first kWindow), and by more than kSmallest of the larger one, always in the same
/// direction; or at which only one of them is finite.
struct Parting {
  std::size_t place = 0;
  double noise = 0;
};
[[nodiscard]] std::optional<Parting> FirstBeyondNoise(std::span<const double> a, std::span<const double> b,
                                                      std::size_t from);
inline constexpr std::size_t kWindow = 64, kLasting = 5;
inline constexpr double kDeviations = 5, kSmallest = 1e-3;

/// Tensors that two runs have in common, by name.
struct CommonTensors {
  static constexpr std::uint32_t kNone = UINT32_MAX;
  std::vector<query::TensorId> a, b;        // of each row
  std::vector<std::uint32_t> row_a, row_b;  // by tensor; kNone: not in both
  explicit CommonTensors(const query::Trial& of_a, const query::Trial& of_b);
};
/// Places of two runs' steps of one mode in a common order. `n`: as step_at counts.
struct CommonSteps {
  query::Mode mode = query::Mode::kTrain;
  bool any = false;
  std::vector<std::int64_t> step;   // ascending, as the mode counts them
  std::vector<std::uint32_t> a, b;  // n of each
  CommonSteps(const query::Trial& of_a, const query::Trial& of_b);
};

/// How much larger the norms of one run are than those of another: rows are tensors that both have, columns
/// are buckets of equally many common steps.
struct RatioMap {
  std::string mode;
  std::vector<query::TensorId> a, b;      // of each row
  std::vector<std::int64_t> first, last;  // steps of each column
  /// Row by row. 126 + sign(d) 126 min(1, sqrt(|d| / 4)) for d = log10 of the geometric mean of b's L2 norms
  /// in the bucket over a's; 0 or 252 where only one of them is zero; 254: something was not finite, 255: not
  /// recorded in both.
  std::vector<std::uint8_t> cells;
};
/// `from`, `to`: steps of the mode. Of buckets with more rows than the budget allows the first steps are
/// taken.
[[nodiscard]] Result<RatioMap> CompareNorms(const query::Trial& a, const query::Trial& b, std::int64_t from,
                                            std::int64_t to, std::size_t columns,
                                            std::uint64_t budget = 20'000'000);

}  // namespace luff::catalog

#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "luff/profile/input.h"

/// Times of many steps in bounded memory: the first ones as they are, then counts of alike ones.
namespace luff::profile {

/// Times that differ by less than a thousandth have the same key; keys ascend with times. `seconds` >= 0.
[[nodiscard]] inline std::uint32_t KeyOfTime(double seconds) noexcept {
  constexpr int kCut = 23 - 10;  // of a mantissa of 23 bits, ten are kept
  return std::bit_cast<std::uint32_t>(static_cast<float>(std::fmax(seconds, 0))) >> kCut;
}

/// What of the times of single steps a table says. 16,384 values exactly; of more, quantiles are right to a
/// thousandth.
class TimeQuantiles {
 public:
  void Add(double seconds, std::uint64_t steps);
  /// The value at this share of all; 0 without values.
  [[nodiscard]] double At(double share) const;

 private:
  struct Alike {
    std::uint64_t steps = 0;
    double sum = 0;
  };
  static constexpr std::size_t kMostExact = 1 << 14;
  void Put(double seconds, std::uint64_t steps);

  std::vector<float> all_;
  std::map<std::uint32_t, Alike> alike_;  // empty: all_ has them
};

/// Sums over steps, as MeansOf() needs them.
struct StepSums {
  double steps = 0, wall_s = 0, wait_s = 0;
  double timed_s = 0, queue_s = 0, cpu_s = 0;  // of the steps whose CPU time is known
  void Add(const StepTime& one) noexcept;
  void Add(const StepSums& more, double share) noexcept;
};
[[nodiscard]] Means MeansOf(const StepSums& sums) noexcept;

/// Steps for MeansOf(): 16,384 of them exactly; of more, the longest are told to a thousandth.
class StepTimes {
 public:
  void Add(const StepTime& one);
  [[nodiscard]] bool empty() const noexcept { return all_.empty() && alike_.empty(); }
  [[nodiscard]] Means Take();

 private:
  static constexpr std::size_t kMostExact = 1 << 14;
  std::vector<StepTime> all_;
  std::map<std::uint32_t, StepSums> alike_;  // by wall_s; empty: all_ has them
};

}  // namespace luff::profile

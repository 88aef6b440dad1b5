#pragma once
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "luff/profile/input.h"

/// Times of many steps in bounded memory: the first ones as they are, then counts of alike ones.
namespace luff::profile {

/// One T for all times that differ by less than a thousandth. Times are nanoseconds in 64 bits: at most 64
/// powers of two, with a page each.
template <typename T>
class ByTime {
 public:
  [[nodiscard]] bool empty() const noexcept { return empty_; }
  [[nodiscard]] T& operator[](double seconds) {
    constexpr int kCut = 23 - kBits;  // of the mantissa's 23 bits
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::fmax(seconds, 0)));
    const std::uint32_t key = (bits & 0x7FFFFFFFU) >> kCut;
    auto& page = pages_[key >> kBits];
    if (page == nullptr) page = std::make_unique<Page>();
    empty_ = false;
    return (*page)[key % kInPage];
  }
  /// Calls `use(one)`, ascending by time, until it returns false.
  void EachUntil(auto use) const {
    for (const auto& page : pages_) {
      for (std::size_t i = 0; page != nullptr && i < kInPage; ++i) {
        if (!use((*page)[i])) return;
      }
    }
  }

 private:
  static constexpr int kBits = 10;
  static constexpr std::uint32_t kInPage = 1U << kBits;
  using Page = std::array<T, kInPage>;
  std::array<std::unique_ptr<Page>, 256> pages_;  // by exponent
  bool empty_ = true;
};

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
  ByTime<Alike> alike_;  // empty: all_ has them
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
  ByTime<StepSums> alike_;  // by wall_s; empty: all_ has them
};

}  // namespace luff::profile

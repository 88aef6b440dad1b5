#pragma once
#include <time.h>

#include <algorithm>
#include <limits>

/// How work grows with what there is, on a machine that does other things too.
namespace luff::query::testing {

/// CPU time of this thread for `work`: the least of three.
template <typename Work>
[[nodiscard]] double CpuSeconds(Work work) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) {
    const auto now = [] {
      timespec at{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
      return static_cast<double>(at.tv_sec) + static_cast<double>(at.tv_nsec) * 1e-9;
    };
    const double begun = now();
    work();
    least = std::min(least, now() - begun);
  }
  return least;
}

/// Four times as much may take so many times as long: 4 if it is linear, 16 if it is quadratic.
inline constexpr double kLinear = 8;

}  // namespace luff::query::testing

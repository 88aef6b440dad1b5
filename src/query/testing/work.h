#pragma once
#include <time.h>

#include <algorithm>
#include <limits>

/// Measures how work grows with its input, on a machine that is busy with other things too.
namespace luff::query::testing {

/// CPU time of this thread for `work`: the least of three runs.
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

/// How many times as long four times the input may take: linear work takes 4 times, quadratic work 16 times.
inline constexpr double kLinear = 8;

}  // namespace luff::query::testing

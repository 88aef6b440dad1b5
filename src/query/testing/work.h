#pragma once
#include <time.h>

#include <algorithm>
#include <cstddef>
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

/// Whether four times the input takes less than 8 times as long: linear work takes 4 times, quadratic work 16
/// times. What differs is measured again: a busy neighbour may have slowed one of the two.
///
/// \param seconds returns the time for an input of so many.
template <typename Seconds>
[[nodiscard]] bool IsLinear(Seconds seconds, std::size_t few) {
  double small = std::numeric_limits<double>::infinity(), large = small;
  for (int i = 0; i < 4; ++i) {
    small = std::min(small, seconds(few));
    large = std::min(large, seconds(4 * few));
    if (large < 8 * small) return true;
  }
  return false;
}

}  // namespace luff::query::testing

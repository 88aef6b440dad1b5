// How many cases a test tries where each one is slow.
#pragma once

#include <cstdlib>

namespace luff {

/// True where a part of a test's cases is enough: under sanitizers, which make them ten times as
/// slow, unless the run is thorough. `./dev test` says so. All cases run in the optimised build.
inline bool FewerCases() {
  return std::getenv("LUFF_FEWER_CASES") != nullptr;  // NOLINT(concurrency-mt-unsafe): nobody sets it
}

/// True in the thorough run: cases that are one like the other may be a thousand.
inline bool AllCases() {
  return std::getenv("LUFF_ALL_CASES") != nullptr;  // NOLINT(concurrency-mt-unsafe): nobody sets it
}

}  // namespace luff

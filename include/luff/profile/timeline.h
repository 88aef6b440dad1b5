#pragma once
#include <cstdint>
#include <vector>

#include "luff/query/trial.h"

/// Steps and their phases as intervals of one clock, for programs that draw them.
namespace luff::profile {

/// Unix time, in nanoseconds.
struct Interval {
  std::int64_t begin_ns = 0, end_ns = 0;
};

struct PhaseSlice : Interval {
  format::Phase phase = format::Phase::kOther;
  std::uint32_t begins = 0;  // how often it began
};

struct PlacedStep : Interval {
  std::vector<PhaseSlice> phases;  // ascending, apart from each other, inside the step; never kOther
};

/// Places the steps of one worker, in the order in which they ended.
///
/// Lengths are exact. A step lies where the host's clock said that it ended; where that clock was set back,
/// it begins when the one before it ended. A phase has one interval: it is as long as the phase took in all,
/// and begins where the phase began last, or as near to that as the others leave room. What no interval
/// covers is kOther.
class Timeline {
 public:
  /// Reuses the vector of `out`.
  void Place(const query::StepPhases& phases, PlacedStep* out);

 private:
  std::int64_t free_from_ns_ = INT64_MIN;
};

}  // namespace luff::profile

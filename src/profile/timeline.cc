#include "luff/profile/timeline.h"

#include <algorithm>

namespace luff::profile {

void Timeline::Place(const query::StepPhases& phases, PlacedStep* out) {
  const std::int64_t wall = phases.head.wall_ns;
  // Of a damaged run: what the clock cannot hold begins at 0.
  const std::int64_t ended =
      std::clamp(phases.ended_unix_ns, std::int64_t{0}, INT64_MAX - format::kMaxPhaseNs);
  out->begin_ns = std::max({ended - wall, free_from_ns_, std::int64_t{0}});
  out->end_ns = out->begin_ns > INT64_MAX - wall ? INT64_MAX : out->begin_ns + wall;
  free_from_ns_ = out->end_ns;

  out->phases.clear();
  for (std::size_t i = 1; i < format::kPhaseCount; ++i) {  // 0 is kOther
    if (phases.ns[i] <= 0) continue;
    const std::int64_t start = std::clamp(phases.starts_ns[i], std::int64_t{-1}, wall);
    PhaseSlice slice;
    slice.begin_ns = start;
    slice.end_ns = phases.ns[i];  // the length, until it is placed
    slice.phase = static_cast<format::Phase>(i);
    slice.begins = phases.begins[i];
    out->phases.push_back(slice);
  }
  std::ranges::stable_sort(out->phases, {}, &PhaseSlice::begin_ns);
  std::int64_t left = 0;  // that the slices from here on need
  for (const PhaseSlice& slice : out->phases) left += slice.end_ns;
  std::int64_t from = 0;
  for (PhaseSlice& slice : out->phases) {
    const std::int64_t length = std::min(slice.end_ns, wall - from);
    const std::int64_t latest = std::max(from, wall - left);
    const std::int64_t at = std::clamp(slice.begin_ns, from, latest);
    left -= slice.end_ns;
    slice.begin_ns = std::min(out->begin_ns + at, out->end_ns);
    slice.end_ns = std::min(slice.begin_ns + length, out->end_ns);
    from = std::min(at + length, wall);
  }
}

}  // namespace luff::profile

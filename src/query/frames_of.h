#pragma once
#include <vector>

#include "luff/base/work_bound.h"
#include "luff/format/frames.h"
#include "luff/query/trial.h"
#include "luff/store/reader.h"

namespace luff::query {

/// Calls `use(ordinal, body)` for the frames of a kind in a segment whose step is `wanted(ordinal)`.
/// `use`: Status. Errors: those of reading, and of `use`.
template <typename Wanted, typename Use>
[[nodiscard]] Status EachFrameOf(const store::SegmentReader& segment, format::FrameKind kind,
                                 std::vector<std::byte>* scratch, const Wanted& wanted, const Use& use) {
  if ((segment.frame_kinds() >> static_cast<unsigned>(kind) & 1U) == 0) return Status::Ok();
  LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
  LUFF_ASSIGN_OR_RETURN(const auto frames, segment.Frames(store::Again::kNo));
  for (const format::FrameEntry& entry : frames) {
    if (static_cast<format::FrameKind>(entry.kind) != kind || !wanted(entry.ordinal)) continue;
    LUFF_ASSIGN_OR_RETURN(const auto body, segment.ReadFrame(entry, scratch));
    LUFF_RETURN_IF_ERROR(use(entry.ordinal, body));
  }
  return Status::Ok();
}

/// The phases of one step. A phase that is not known counts as other.
[[nodiscard]] StepPhases PhasesOf(std::uint32_t worker, std::int64_t ended_unix_ns,
                                  const format::PhasesView& view);

}  // namespace luff::query

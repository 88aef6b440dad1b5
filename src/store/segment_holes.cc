#include "store/segment_holes.h"

#include <algorithm>
#include <iterator>

namespace luff::store {

bool SegmentHoles::Covers(std::uint64_t from, std::uint64_t end) const {
  const auto after = there_.upper_bound(from);
  return after != there_.begin() && std::prev(after)->second >= end;
}

void SegmentHoles::Add(std::uint64_t from, std::uint64_t end) {
  if (from >= end) return;
  auto at = there_.upper_bound(from);
  if (at != there_.begin() && std::prev(at)->second >= from) --at;
  while (at != there_.end() && at->first <= end) {
    from = std::min(from, at->first);
    end = std::max(end, at->second);
    at = there_.erase(at);
  }
  there_.emplace(from, end);
}

Status SegmentHoles::Fill(std::uint64_t from, std::uint64_t bytes) {
  if (bytes == 0 || Covers(from, from + bytes)) return Status::Ok();
  LUFF_ASSIGN_OR_RETURN(const auto there, mirror_->NeedRows(segment_, from, bytes));
  for (const auto& [begin, end] : there) Add(begin, end);
  return Status::Ok();
}

}  // namespace luff::store

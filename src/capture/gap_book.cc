#include "capture/gap_book.h"

#include <algorithm>

namespace luff::capture {

void GapBook::Add(const format::GapRow& row, std::int64_t step) {
  format::GapRow gap = row;
  if (gap.first_step < 0) gap.first_step = gap.last_step = step;
  Key key{gap.tensor, gap.collection, gap.reason, gap.forms};
  if (open_.size() >= kMaxKeys && !open_.contains(key)) {  // who exactly is lost, how much is not
    gap.tensor = gap.collection = format::kNoId;
    gap.forms = 0;
    key = Key{gap.tensor, gap.collection, gap.reason, gap.forms};
  }
  any_pending_ = true;
  Entry& entry = open_[key];
  if (!entry.pending) {
    entry.row = gap;
    entry.pending = true;
    return;
  }
  entry.row.count += gap.count;
  entry.row.bytes += gap.bytes;
  entry.row.first_step = std::min(entry.row.first_step, gap.first_step);
  entry.row.last_step = std::max(entry.row.last_step, gap.last_step);
}

void GapBook::Collect(std::int64_t now_ns, bool all, std::vector<format::GapRow>* out) {
  constexpr std::int64_t kQuietNs = 1'000'000'000;
  if (!any_pending_) return;
  any_pending_ = false;
  for (auto& [key, entry] : open_) {
    if (!entry.pending) continue;
    if (all || entry.last_told_ns == 0 || now_ns - entry.last_told_ns >= kQuietNs) {
      out->push_back(entry.row);
      entry.pending = false;
      entry.last_told_ns = std::max<std::int64_t>(now_ns, 1);
    } else {
      any_pending_ = true;
    }
  }
}

}  // namespace luff::capture

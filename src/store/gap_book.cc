#include "luff/store/gap_book.h"

#include <algorithm>
#include <new>

namespace luff::store {

void GapBook::Join(const format::GapRow& gap, Entry* entry) noexcept {
  if (!entry->pending) {
    entry->row = gap;
    entry->pending = true;
    return;
  }
  entry->row.forms = static_cast<std::uint16_t>(entry->row.forms | gap.forms);
  entry->row.count += gap.count;
  entry->row.bytes += gap.bytes;
  entry->row.first_step = std::min(entry->row.first_step, gap.first_step);
  entry->row.last_step = std::max(entry->row.last_step, gap.last_step);
}

void GapBook::Add(const format::GapRow& row, std::int64_t step) noexcept {
  format::GapRow gap = row;
  if (gap.first_step < 0) gap.first_step = gap.last_step = step;
  any_pending_ = true;
  try {
    const Key key{gap.tensor, gap.collection, gap.reason, gap.forms};
    auto found = open_.find(key);
    if (found == open_.end() && open_.size() < kMaxKeys) found = open_.try_emplace(key).first;
    if (found != open_.end()) {
      Join(gap, &found->second);
      return;
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): joined with the rest
  }
  gap.tensor = gap.collection = format::kNoId;
  Join(gap, &rest_[std::min<std::size_t>(gap.reason, kReasons - 1)][gap.forms == 0 ? 0 : 1]);
}

bool GapBook::IsDue(const Entry& entry, std::int64_t now_ns, bool all) noexcept {
  constexpr std::int64_t kQuietNs = 1'000'000'000;
  return all || entry.last_told_ns == 0 || now_ns - entry.last_told_ns >= kQuietNs;
}

void GapBook::Collect(std::int64_t now_ns, bool all, std::vector<format::GapRow>* out) {
  if (!any_pending_) return;
  bool left = false;
  const auto tell = [&](Entry& entry) {
    if (!entry.pending) return;
    if (!IsDue(entry, now_ns, all)) {
      left = true;
      return;
    }
    out->push_back(entry.row);
    entry.pending = false;
    entry.last_told_ns = std::max<std::int64_t>(now_ns, 1);
  };
  for (auto& [key, entry] : open_) tell(entry);
  for (auto& entries : rest_) std::for_each(entries.begin(), entries.end(), tell);
  any_pending_ = left;
}

}  // namespace luff::store

#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "query/smdebug_trial.h"

/// Templates of SmdebugTrial that several of its sources use.
namespace luff::query {

template <typename Wanted>
std::vector<std::pair<std::uint32_t, std::uint32_t>> SmdebugTrial::StepsWith(
    TensorId id, Mode mode, std::optional<std::uint32_t> worker, Wanted wanted) const {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> found;
  const auto& entries = directory_.entries();
  std::uint32_t last = 0xFFFFFFFFU;
  for (const std::uint32_t at : directory_.Postings(id)) {
    const Record& record = directory_.record(at);
    if (record.entry == last || !wanted(record)) continue;
    const std::uint32_t n = step_of_entry_[record.entry];
    if (n == 0xFFFFFFFFU || (mode != Mode::kGlobal && steps_.mode(n) != mode)) continue;
    if (worker && directory_.workers()[entries[record.entry].worker].number != *worker) continue;
    last = record.entry;
    found.emplace_back(n, record.entry);
  }
  // Sorts by step, then by worker. Files of one worker are usually in that order already.
  const auto less = [&](const auto& a, const auto& b) {
    const auto key = [&](const auto& at) {
      return std::pair(steps_.key(at.first, mode), directory_.workers()[entries[at.second].worker].number);
    };
    return key(a) < key(b);
  };
  if (!std::is_sorted(found.begin(), found.end(), less)) std::sort(found.begin(), found.end(), less);
  return found;
}

template <typename Use>
Status SmdebugTrial::FirstWith(TensorId id, const char* what, std::int64_t step, Mode mode,
                               std::optional<std::uint32_t> worker, Use use) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_ASSIGN_OR_RETURN(const std::uint32_t n, StepOrError(step, mode));
  LUFF_RETURN_IF_ERROR(CheckWorker(worker));
  for (const std::uint32_t entry : EntriesOf(n, worker)) {
    const auto found = RowsOf(entry, id);
    if (!found) continue;
    LUFF_ASSIGN_OR_RETURN(const bool done, use(*found));
    if (done) return Status::Ok();
  }
  return NotSaved(id, what, step, mode);
}

}  // namespace luff::query

#include <algorithm>

#include "query/smdebug_trial.h"
#include "query/smdebug_with-inl.h"

namespace luff::query {
Status SmdebugTrial::CheckWorker(std::optional<std::uint32_t> worker) const {
  if (!worker) return Status::Ok();
  std::string known;
  for (const auto& candidate : directory_.workers()) {
    if (candidate.number == *worker) return Status::Ok();
    if (known.size() < 100) known += (known.empty() ? "" : ", ") + std::to_string(candidate.number);
  }
  return NotFound("no worker " + std::to_string(*worker) + "; there are: " + known + ": " + path());
}

std::optional<TensorId> SmdebugTrial::TensorNamed(std::string_view name) const {
  const auto id = directory_.FindTensor(name);
  return id && *id < tensors_.size() ? id : std::nullopt;
}

Result<TensorId> SmdebugTrial::FindTensor(std::string_view name) const {
  if (const auto id = TensorNamed(name)) return *id;
  return NoTensor(name);
}

bool SmdebugTrial::HasRows(TensorId id, std::uint32_t n) const {
  return std::any_of(entries_at_[n].begin(), entries_at_[n].end(),
                     [&](std::uint32_t entry) { return RowsOf(entry, id).has_value(); });
}

std::optional<SmdebugTrial::Found> SmdebugTrial::RowsOf(std::uint32_t entry, TensorId id) const {
  Found found;
  found.entry = &directory_.entries()[entry];
  const std::uint32_t end = found.entry->first + found.entry->count;
  const auto postings = directory_.Postings(id);
  bool any = false;
  for (auto at = std::lower_bound(postings.begin(), postings.end(), found.entry->first);
       at != postings.end() && *at < end; ++at) {
    const Record& record = directory_.record(*at);
    any = true;
    if (record.kind == Kind::kValue) {
      found.value = &record;
    } else if (record.kind == Kind::kShape) {
      found.shape = &record;
    } else {
      found.reductions[record.reduction + (record.abs ? format::kSmdebugReductionCount : 0)] = &record;
      found.reduced = true;
    }
  }
  if (!any) return std::nullopt;
  return found;
}

std::vector<std::uint32_t> SmdebugTrial::EntriesOf(std::uint32_t n,
                                                   std::optional<std::uint32_t> worker) const {
  std::vector<std::uint32_t> entries = entries_at_[n];
  if (worker) {
    std::erase_if(entries, [&](std::uint32_t entry) {
      return directory_.workers()[directory_.entries()[entry].worker].number != *worker;
    });
  }
  return entries;
}

std::vector<std::int64_t> SmdebugTrial::Keys(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& at,
                                             Mode mode) const {
  std::vector<std::int64_t> keys;
  keys.reserve(at.size());
  for (const auto& [n, entry] : at) keys.push_back(steps_.key(n, mode));
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

Result<std::vector<std::int64_t>> SmdebugTrial::TensorSteps(TensorId id, Mode mode) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  return Keys(StepsWith(id, mode, {}, [](const Record&) { return true; }), mode);
}

Result<std::vector<std::int64_t>> SmdebugTrial::ValueSteps(TensorId id, Mode mode,
                                                           std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_RETURN_IF_ERROR(CheckWorker(worker));
  return Keys(StepsWith(id, mode, worker, [](const Record& r) { return r.kind == Kind::kValue; }), mode);
}

Result<std::vector<std::uint32_t>> SmdebugTrial::TensorWorkers(TensorId id, std::int64_t step,
                                                               Mode mode) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_ASSIGN_OR_RETURN(const std::uint32_t n, StepOrError(step, mode));
  std::vector<std::uint32_t> found;
  for (const std::uint32_t entry : entries_at_[n]) {
    if (RowsOf(entry, id)) found.push_back(directory_.workers()[directory_.entries()[entry].worker].number);
  }
  if (found.empty()) return NotSaved(id, "anything", step, mode);
  return found;
}

Status SmdebugTrial::NotSaved(TensorId id, const char* what, std::int64_t step, Mode mode) const {
  const std::string& name = tensors_[id].name;
  const bool value = std::string_view(what) == "value";
  const auto steps = value ? ValueSteps(id, mode, {}) : TensorSteps(id, mode);
  StepTable::Neighbours around;
  if (steps.ok()) {
    const auto at = std::lower_bound(steps->begin(), steps->end(), step);
    if (at != steps->begin()) around.before = *std::prev(at);
    if (at != steps->end()) around.after = *at;
    if (at != steps->end() && *at == step) around = {step, {}};
  }
  std::string hint = NearestText(around);
  if (const auto n = steps_.Find(step, mode)) {
    for (const std::uint32_t entry : entries_at_[*n]) {
      const auto found = RowsOf(entry, id);
      if (!found || found->value != nullptr) continue;
      hint += found->reduced ? "; reductions of it were saved" : "; its shape was saved";
      break;
    }
  }
  return OutOfRange(std::string(what) + " of \"" + name + "\" at " + StepText(step, mode) +
                    " was not saved, " + hint + ": " + path());
}

}  // namespace luff::query

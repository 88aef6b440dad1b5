#include <algorithm>

#include "query/smdebug_trial.h"
#include "query/smdebug_with-inl.h"

namespace luff::query {
namespace {

std::string StepText(std::int64_t step, Mode mode) {
  return (mode == Mode::kGlobal ? "global step " : std::string(ModeName(mode)) + " step ") +
         std::to_string(step);
}

std::string NearestText(const StepTable::Neighbours& around) {
  if (!around.before && !around.after) return "none was saved";
  std::string text = "nearest saved: ";
  if (around.before) text += std::to_string(*around.before);
  if (around.before && around.after) text += " and ";
  if (around.after) text += std::to_string(*around.after);
  return text;
}

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "\"" : ", \"") + name + "\"";
  return text;
}

}  // namespace

Status SmdebugTrial::CheckId(TensorId id) const {
  if (id < tensors_.size()) return Status::Ok();
  return InvalidArgument("found tensor number " + std::to_string(id) + ", expected one below " +
                         std::to_string(tensors_.size()));
}

Status SmdebugTrial::CheckWorker(std::optional<std::uint32_t> worker) const {
  if (!worker) return Status::Ok();
  std::string known;
  for (const auto& candidate : directory_.workers()) {
    if (candidate.number == *worker) return Status::Ok();
    if (known.size() < 100) known += (known.empty() ? "" : ", ") + std::to_string(candidate.number);
  }
  return NotFound("no worker " + std::to_string(*worker) + "; there are: " + known + ": " + path());
}

Result<TensorId> SmdebugTrial::FindTensor(std::string_view name) const {
  if (const auto id = directory_.FindTensor(name); id && *id < tensors_.size()) return *id;
  if (tensors_.empty())
    return NotFound("no tensor \"" + std::string(name) + "\": the trial has none yet: " + path());
  std::vector<std::string> known;
  for (const TensorInfo& info : tensors_) known.push_back(info.name);
  return NotFound("no tensor \"" + std::string(name) + "\"; nearest: " + Joined(NearestNames(name, known)) +
                  ": " + path());
}

Result<std::vector<std::string>> SmdebugTrial::TensorNames(const NameFilter& filter) const {
  std::optional<Regex> regex;
  if (!filter.regex.empty()) {
    LUFF_ASSIGN_OR_RETURN(regex, Regex::Compile(filter.regex));
  }
  if (!filter.collection.empty()) {
    const auto known = CollectionNames();
    if (std::find(known.begin(), known.end(), filter.collection) == known.end()) {
      return NotFound("no collection \"" + filter.collection + "\"; there are: " +
                      Joined(known.size() > 12 ? NearestNames(filter.collection, known) : known) + ": " +
                      path());
    }
  }
  std::optional<std::uint32_t> n;
  if (filter.step) {
    LUFF_ASSIGN_OR_RETURN(n, StepOrError(*filter.step, filter.mode));
  }
  std::vector<std::string> names;
  for (const TensorInfo& info : tensors_) {
    if (regex && !regex->Search(info.name)) continue;
    if (!filter.collection.empty() && std::find(info.collections.begin(), info.collections.end(),
                                                filter.collection) == info.collections.end()) {
      continue;
    }
    if (n) {
      const auto& entries = entries_at_[*n];
      if (std::none_of(entries.begin(), entries.end(),
                       [&](std::uint32_t entry) { return RowsOf(entry, info.id).has_value(); }))
        continue;
    } else if (filter.mode != Mode::kGlobal) {
      if (StepsWith(info.id, filter.mode, {}, [](const Record&) { return true; }).empty()) continue;
    }
    names.push_back(info.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

StepState SmdebugTrial::StateOfStep(std::int64_t step, Mode mode) const {
  if (steps_.Find(step, mode)) return StepState::kAvailable;
  if (loaded_all_ || step < 0) return StepState::kUnavailable;
  return steps_.Around(step, mode).after ? StepState::kUnavailable : StepState::kNotYetAvailable;
}

Result<std::uint32_t> SmdebugTrial::StepOrError(std::int64_t step, Mode mode) const {
  if (const auto n = steps_.Find(step, mode)) return *n;
  const StepTable::Neighbours around = steps_.Around(step, mode);
  if (StateOfStep(step, mode) == StepState::kNotYetAvailable) {
    return Unavailable(StepText(step, mode) + " is not there yet, " + NearestText(around) +
                       "; refresh the trial or wait for the step: " + path());
  }
  return OutOfRange(StepText(step, mode) + " was not saved, " + NearestText(around) + ": " + path());
}

Result<StepInfo> SmdebugTrial::FindStep(std::int64_t step, Mode mode) const {
  LUFF_ASSIGN_OR_RETURN(const std::uint32_t n, StepOrError(step, mode));
  return steps_.at(n);
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

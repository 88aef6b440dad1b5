#include "query/step_trial.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "luff/base/regex.h"
#include "luff/base/work_bound.h"

#include "base/nearest_names.h"

namespace luff::query {
namespace {

// Of columns, e.g. nine of 20,000 steps; the last may exceed it.
constexpr std::size_t kCachedBytes = 16U << 20;

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "\"" : ", \"") + name + "\"";
  return text;
}

}  // namespace

std::string StepText(std::int64_t step, Mode mode) {
  return (mode == Mode::kGlobal ? "global step " : std::string(ModeName(mode)) + " step ") +
         std::to_string(step);
}

std::string NearestText(const StepTable::Neighbours& around, std::string_view lead) {
  if (!around.before && !around.after) return "none was saved";
  std::string text(lead);
  if (around.before) text += std::to_string(*around.before);
  if (around.before && around.after) text += " and ";
  if (around.after) text += std::to_string(*around.after);
  return text;
}

Status StepTrial::CheckId(TensorId id) const {
  if (id < tensors_.size()) return WorkBound::GoOn();
  return InvalidArgument("found tensor number " + std::to_string(id) + ", expected one below " +
                         std::to_string(tensors_.size()));
}

Status StepTrial::CheckPlace(std::size_t n) const {
  if (n < steps_.size()) return WorkBound::GoOn();
  return OutOfRange("found step number " + std::to_string(n) + ", expected one below " +
                    std::to_string(steps_.size()));
}

Status StepTrial::NoTensor(std::string_view name) const {
  if (tensors_.empty())
    return NotFound("no tensor \"" + std::string(name) + "\": the " + what_ + " has none yet: " + path());
  std::vector<std::string> known;
  for (const TensorInfo& info : tensors_) known.push_back(info.name);
  const auto near = NearestNames(name, known);
  return NotFound("no tensor \"" + std::string(name) + "\"; " +
                  (near.empty() ? "`luff tensors` lists them" : "nearest: " + Joined(near)) + ": " + path());
}

Status StepTrial::CheckCollection(const std::string& name) const {
  const auto known = CollectionNames();
  if (std::find(known.begin(), known.end(), name) != known.end()) return Status::Ok();
  if (known.empty()) return NotFound("no collection \"" + name + "\": the " + what_ + " has none: " + path());
  const auto near = NearestNames(name, known);
  return NotFound(
      "no collection \"" + name + "\"; " +
      (known.size() > 12 && !near.empty() ? "nearest: " + Joined(near) : "there are: " + Joined(known)) +
      ": " + path());
}

StepState StepTrial::StateOfStep(std::int64_t step, Mode mode) const {
  if (steps_.Find(step, mode)) return StepState::kAvailable;
  if (loaded_all_ || step < 0) return StepState::kUnavailable;
  // Steps come in order: once a later one is complete, an earlier one was skipped.
  return steps_.Around(step, mode).after ? StepState::kUnavailable : StepState::kNotYetAvailable;
}

Result<std::uint32_t> StepTrial::StepOrError(std::int64_t step, Mode mode) const {
  if (const auto n = steps_.Find(step, mode)) return *n;
  const StepTable::Neighbours around = steps_.Around(step, mode);
  if (StateOfStep(step, mode) == StepState::kNotYetAvailable) {
    return Unavailable(StepText(step, mode) + " is not there yet, " + NearestText(around) +
                       "; refresh the trial or wait for the step: " + path());
  }
  return OutOfRange(StepText(step, mode) + " was not saved, " + NearestText(around) + ": " + path());
}

Result<StepInfo> StepTrial::FindStep(std::int64_t step, Mode mode) const {
  LUFF_ASSIGN_OR_RETURN(const std::uint32_t n, StepOrError(step, mode));
  return steps_.at(n);
}

Result<bool> StepTrial::WaitForNews(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::chrono::nanoseconds pause{0};
  const std::size_t steps = steps_.size();
  const bool was_over = loaded_all_;
  for (;;) {
    LUFF_ASSIGN_OR_RETURN(const bool news, Refresh());
    if (news && (steps_.size() != steps || loaded_all_ != was_over)) return true;
    const auto now = std::chrono::steady_clock::now();
    if (loaded_all_ || now >= deadline) return news;
    pause = PauseAfter(pause);
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, deadline - now));
  }
}

Status StepTrial::WaitForStep(std::int64_t step, Mode mode, std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  LUFF_RETURN_IF_ERROR(Refresh().status());
  for (;;) {
    const StepState state = StateOfStep(step, mode);
    if (state == StepState::kAvailable) return Status::Ok();
    if (state == StepState::kUnavailable) return StepOrError(step, mode).status();
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return DeadlineExceeded("step " + std::to_string(step) + " of mode " + std::string(ModeName(mode)) +
                              " did not come in time: " + path());
    }
    LUFF_RETURN_IF_ERROR(WaitForNews(left).status());
  }
}

Status StepTrial::BeginRows(std::size_t n, StepRows* out) const {
  LUFF_RETURN_IF_ERROR(CheckPlace(n));
  out->info = steps_.at(n);
  out->summaries.clear();
  out->scalars.clear();
  out->units.clear();
  out->forms.clear();
  out->events.clear();
  out->event_json.clear();
  out->phases.clear();
  return Status::Ok();
}

Result<Summary> TrialValues::ReadSummary(TensorId id, std::int64_t step, Mode mode,
                                         std::optional<std::uint32_t> worker) const {
  LUFF_ASSIGN_OR_RETURN(const SummaryAt at, ReadSummaryAt(id, step, mode, worker));
  return at.summary;
}

Result<SummaryColumns> TrialValues::Summaries(TensorId id, Mode mode,
                                              std::optional<std::uint32_t> worker) const {
  LUFF_ASSIGN_OR_RETURN(const auto shared, SharedSummaries(id, mode, worker));
  return *shared;
}

Result<std::vector<std::string>> StepTrial::TensorNames(const NameFilter& filter) const {
  std::optional<Regex> regex;
  if (!filter.regex.empty()) {
    LUFF_ASSIGN_OR_RETURN(regex, Regex::Compile(filter.regex));
  }
  if (!filter.collection.empty()) {
    LUFF_RETURN_IF_ERROR(CheckCollection(filter.collection));
  }
  std::optional<std::uint32_t> n;
  if (filter.step) {
    LUFF_ASSIGN_OR_RETURN(n, StepOrError(*filter.step, filter.mode));
  }
  std::vector<std::string> names;
  for (const TensorInfo& info : tensors_) {
    if (regex && !regex->Search(info.name)) continue;
    const auto& collections = info.collections;
    if (!filter.collection.empty() &&
        std::find(collections.begin(), collections.end(), filter.collection) == collections.end()) {
      continue;
    }
    if (n) {
      if (!HasRows(info.id, *n)) continue;
    } else if (filter.mode != Mode::kGlobal) {
      LUFF_ASSIGN_OR_RETURN(const auto steps, TensorSteps(info.id, filter.mode));
      if (steps.empty()) continue;
    }
    names.push_back(info.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::shared_ptr<const SummaryColumns> StepTrial::KeptColumns(TensorId id, Mode mode,
                                                             std::optional<std::uint32_t> worker) const {
  for (auto at = cache_.begin(); at != cache_.end(); ++at) {
    if (at->id != id || at->mode != mode || at->worker != worker || at->version != version_) continue;
    cache_.splice(cache_.begin(), cache_, at);
    return cache_.front().columns;
  }
  return nullptr;
}

void StepTrial::KeepColumns(TensorId id, Mode mode, std::optional<std::uint32_t> worker,
                            std::size_t row_bytes, std::shared_ptr<const SummaryColumns> columns) const {
  std::erase_if(cache_, [&](const Cached& old) {
    return old.version != version_ || (old.id == id && old.mode == mode && old.worker == worker);
  });
  const std::size_t size = columns->count.size() * row_bytes;
  cache_.push_front({id, mode, worker, version_, size, std::move(columns)});
  std::size_t bytes = 0;
  auto last = cache_.begin();
  for (; last != cache_.end() && (bytes == 0 || bytes < kCachedBytes); ++last) bytes += last->bytes + 1;
  cache_.erase(last, cache_.end());
}

}  // namespace luff::query

#include "query/smdebug_trial.h"

#include <algorithm>
#include <exception>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "luff/base/env.h"

namespace luff::query {
namespace {

using std::chrono::milliseconds;
using Json = nlohmann::ordered_json;

constexpr std::uint32_t kNotShown = 0xFFFFFFFFU;
constexpr std::size_t kWaitWindow = 1000;  // steps that a slower worker may lag behind, as in smdebug
constexpr double kPauses = 10;             // a worker is lost after this many times its longest pause so far

}  // namespace

std::uint32_t SmdebugTrial::world_size() const noexcept {
  return std::max(collections_.num_workers(), static_cast<std::uint32_t>(directory_.workers().size()));
}

Result<bool> SmdebugTrial::Refresh() {
  LUFF_ASSIGN_OR_RETURN(const bool news, directory_.Scan());
  const bool lost = CheckLost();
  if (!news && lost == lost_ && opened_) return false;
  opened_ = true;
  lost_ = lost;
  TakeInEntries();
  return true;
}

void SmdebugTrial::ShowAtMost(std::size_t steps) {
  options_.show_at_most = std::max(options_.show_at_most, steps);
  if (held_back_) TakeInEntries();
}

/// Returns true if no worker is left that could write. smdebug's only signs of life are its files, so this
/// follows from how long they have not changed.
bool SmdebugTrial::CheckLost() {
  if (directory_.ended()) return false;
  const std::int64_t now = Env::Real().NowUnixNs();
  const auto silent_s = [&](std::int64_t since) {
    return (static_cast<double>(now) - static_cast<double>(since)) * 1e-9;
  };
  if (directory_.workers().empty()) return false;
  for (const auto& worker : directory_.workers()) {
    const std::int64_t since = std::max(worker.written_unix_ns, directory_.created_unix_ns());
    const double patience =
        std::max(options_.lost_after_s, kPauses * 1e-9 * static_cast<double>(worker.longest_pause_ns));
    if (silent_s(since) <= patience) return false;
  }
  return true;
}

/// True while workers that are announced or counted have not written yet; they hold back the steps of the
/// others.
bool SmdebugTrial::Awaited() const {
  const auto& workers = directory_.workers();
  const auto begun =
      std::count_if(workers.begin(), workers.end(), [](const auto& worker) { return worker.last_step >= 0; });
  return static_cast<std::size_t>(begun) < std::max<std::size_t>(collections_.num_workers(), workers.size());
}

void SmdebugTrial::TakeNames() {
  const bool resolve = collections_taken_ != directory_.collections_version();
  if (resolve) {
    collections_taken_ = directory_.collections_version();
    collection_problems_.clear();
    std::vector<SmdebugCollections::Problem> problems;
    collections_.Parse(directory_.collections(), &problems);
    for (const auto& problem : problems) {
      collection_problems_.push_back("collections file: found " + problem.what +
                                     ", expected what smdebug 1.0 writes: " + path() +
                                     "/collections/000000000/" + problem.file);
    }
    for (TensorInfo& info : tensors_) collections_.Describe(&info);
  }
  while (tensors_.size() < directory_.tensor_count()) {
    TensorInfo info;
    info.id = static_cast<TensorId>(tensors_.size());
    info.name = directory_.tensor_name(info.id);
    collections_.Describe(&info);
    tensors_.push_back(std::move(info));
  }
}

void SmdebugTrial::TakeInEntries() {
  TakeNames();
  const auto& entries = directory_.entries();
  for (auto i = static_cast<std::uint32_t>(step_of_entry_.size()); i < entries.size(); ++i)
    pending_.push_back(i);
  step_of_entry_.resize(entries.size(), kNotShown);
  MergeSteps();
  loaded_all_ = (directory_.ended() || lost_) && !held_back_;
  ++version_;
}

void SmdebugTrial::MergeSteps() {
  held_back_ = false;
  if (pending_.empty()) return;
  const auto& entries = directory_.entries();
  std::stable_sort(pending_.begin(), pending_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return entries[a].global_step < entries[b].global_step;
  });
  // The frontier: the step that every worker has passed.
  std::int64_t frontier = std::numeric_limits<std::int64_t>::max();
  if (!directory_.ended() && !lost_) {
    const bool awaited = Awaited();
    if (awaited) frontier = -1;
    for (const auto& worker : directory_.workers()) {
      if (worker.last_step >= 0) frontier = std::min(frontier, worker.last_step);
    }
    // Stops waiting for workers that are a thousand steps behind.
    std::size_t ahead = 0;
    std::int64_t last = -1;
    for (const std::uint32_t entry : pending_) {
      if (entries[entry].global_step <= frontier || entries[entry].global_step == last) continue;
      last = entries[entry].global_step;
      ++ahead;
    }
    for (std::size_t i = 0; ahead > kWaitWindow && i < pending_.size(); ++i) {
      const std::int64_t step = entries[pending_[i]].global_step;
      if (step <= frontier) continue;
      frontier = step;
      --ahead;
    }
  }
  std::size_t taken = 0;
  std::vector<std::uint32_t> touched;  // steps that got new entries, once each
  for (; taken < pending_.size(); ++taken) {
    const Entry& entry = entries[pending_[taken]];
    if (entry.global_step > frontier) break;
    std::optional<std::uint32_t> n = steps_.Find(entry.global_step, Mode::kGlobal);
    if (!n) {
      held_back_ = steps_.size() >= options_.show_at_most;
      if (held_back_) break;
      StepInfo info;
      info.global_step = entry.global_step;
      info.mode_step = entry.mode_step;
      info.mode = entry.mode;
      info.wall_unix_ns = entry.written_unix_ns;
      // smdebug does not count updates; in its usual loop each TRAIN step ends with one.
      if (entry.mode == Mode::kTrain) last_update_ = std::max(last_update_, entry.mode_step);
      info.update = entry.mode == Mode::kTrain || last_update_ == 0 ? last_update_ : last_update_ + 1;
      n = steps_.Append(info, 0);
      entries_at_.resize(steps_.size());
    }
    step_of_entry_[pending_[taken]] = *n;
    entries_at_[*n].push_back(pending_[taken]);
    if (touched.empty() || touched.back() != *n) touched.push_back(*n);
  }
  const auto number = [&](std::uint32_t e) { return directory_.workers()[entries[e].worker].number; };
  for (const std::uint32_t n : touched) {
    std::sort(entries_at_[n].begin(), entries_at_[n].end(),
              [&](std::uint32_t a, std::uint32_t b) { return number(a) < number(b); });
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(taken));
}

std::chrono::nanoseconds SmdebugTrial::PauseAfter(std::chrono::nanoseconds last) const {
  // Each refresh lists folders.
  return std::clamp<std::chrono::nanoseconds>(last * 2, milliseconds(5), milliseconds(250));
}

std::vector<WorkerInfo> SmdebugTrial::workers() const {
  std::vector<WorkerInfo> result;
  for (const auto& worker : directory_.workers()) {
    WorkerInfo info;
    info.worker = worker.number;
    info.ended = directory_.ended();
    if (info.ended) info.reason = format::EndReason::kCompleted;
    info.alive = !info.ended && !lost_;
    info.last_global_step = worker.last_step;
    info.last_train_step = worker.last_train;
    info.heartbeat_unix_ns = worker.written_unix_ns;
    result.push_back(info);
  }
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.worker < b.worker; });
  return result;
}

std::string SmdebugTrial::Document(std::string_view name) const {
  try {
    if (name == "collections") {
      Json list = Json::array();
      const Json all = collections_.text().empty() ? Json::object() : ParseOrderedJson(collections_.text());
      for (const std::string& one : collections_.Names()) {
        Json item = {{"name", one}};
        if (const auto at = all.find(one); at != all.end() && at->is_object()) item.update(*at);
        list.push_back(std::move(item));
      }
      return JsonText(list);
    }
    if (name == "smdebug") {
      Json workers = Json::array();
      for (const auto& worker : directory_.workers()) {
        workers.push_back(
            {{"worker", worker.number}, {"name", worker.name}, {"announced", worker.announced}});
      }
      Json original = Json::object();
      for (std::uint32_t id = 0; id < directory_.tensor_count(); ++id) {
        if (const std::string& graph = directory_.original_name(id); !graph.empty())
          original[directory_.tensor_name(id)] = graph;
      }
      Json json = {{"workers", workers},
                   {"num_workers", collections_.num_workers()},
                   {"ended", directory_.ended()},
                   {"original_names", original}};
      return JsonText(json);
    }
  } catch (const std::exception&) {
    return {};  // Problems() reports the collections file
  }
  return {};
}

Trial::Outcome SmdebugTrial::outcome() const {
  if (directory_.ended()) return {"completed", ""};
  if (!lost_) return {"running", ""};
  return {"failed",
          "nothing was written for long and smdebug's end marker (training_job_end.ts) is missing: "
          "the job was killed, or copied here while it ran"};
}

std::vector<GapInfo> SmdebugTrial::Gaps() const {
  std::vector<GapInfo> gaps;
  for (const auto& worker : directory_.workers()) {
    if (worker.last_step >= 0) continue;
    GapInfo gap;
    gap.worker = worker.number;
    gap.reason = "worker lost";
    gap.first_step = 0;
    gap.last_step = steps_.size() == 0 ? 0 : steps_.global_steps().back();
    if (loaded_all_) gaps.push_back(std::move(gap));
  }
  return gaps;
}

std::vector<std::string> SmdebugTrial::Problems() const {
  std::vector<std::string> problems = directory_.problems();
  problems.insert(problems.end(), collection_problems_.begin(), collection_problems_.end());
  if (directory_.collections().empty() && !directory_.entries().empty()) {
    problems.push_back(
        "no collections file, so tensors have no collections; copy the folder collections too: " + path() +
        "/collections/000000000");
  }
  return problems;
}

}  // namespace luff::query

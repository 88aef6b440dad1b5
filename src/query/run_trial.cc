#include "query/run_trial.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "luff/base/env.h"
#include "luff/store/control.h"
#include "luff/store/mirror.h"
#include "query/run_state.h"
#include "query/smdebug_trial.h"

namespace luff::query {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kLookEveryNs = 50'000'000;  // how often the workers' processes are checked
constexpr auto kFirstPause = std::chrono::microseconds(200);
// With live pages: one small read for each worker.
constexpr auto kLongestPause = std::chrono::milliseconds(4);
// Without live pages: several system calls, perhaps over a network.
constexpr auto kLongestPauseAfar = std::chrono::milliseconds(50);

/// A text of the document "end", in which a worker's hook says how it ended; "" if it says nothing.
std::string EndNote(const store::WorkerReader& reader, const char* name) {
  constexpr std::size_t kLongest = std::size_t{64} << 10U;
  const auto document = reader.documents().find("end");
  if (document == reader.documents().end() || document->second.size() > kLongest) return {};
  const auto json = TryParseJson(document->second);
  if (!json.is_object() || !json.contains(name) || !json[name].is_string()) return {};
  return json[name].get<std::string>();
}

std::string Joined(const std::string& first, const std::string& second) {
  return first + (first.empty() || second.empty() ? "" : "; ") + second;
}
constexpr double kLongestSilenceS = 1e6;  // longer silences make no difference

StepKey KeyAt(const store::WorkerReader::StepPlace& place) noexcept {
  const auto& steps = place.segment->steps();
  return {steps.epoch[place.index], steps.global_step[place.index]};
}

}  // namespace

void WorkerState::Place(std::uint32_t n, std::uint64_t ordinal) {
  if (ordinal_of.size() <= n) ordinal_of.resize(n + std::size_t{1}, kNoOrdinal);
  ordinal_of[n] = ordinal;
  if (first_ordinal == kNoOrdinal) first_ordinal = ordinal;
  const auto at = static_cast<std::size_t>(ordinal - first_ordinal);
  if (step_of.size() <= at) {
    holes += at - step_of.size();
    step_of.resize(at + 1, kNoStep);
  }
  step_of[at] = n;
}

bool WorkerState::HasRoomFor(std::uint64_t ordinal) const noexcept {
  if (first_ordinal == kNoOrdinal || ordinal - first_ordinal < step_of.size()) return true;
  return ordinal - first_ordinal - step_of.size() <= kMaxHoles - holes;
}

Result<std::unique_ptr<Trial>> Trial::Open(const std::string& path, const OpenOptions& options) {
  std::unique_ptr<Trial> trial;
  if (!Env::Real().Exists(path + "/run.json") && SmdebugDirectory::Looks(path)) {
    trial = std::make_unique<SmdebugTrial>(path, options);
  } else {
    store::ReaderOptions reader_options;
    reader_options.use_live_page = options.use_live_page;
    LUFF_ASSIGN_OR_RETURN(auto run, store::RunReader::Open(path, reader_options));
    trial = std::make_unique<RunTrial>(std::move(run), options);
  }
  LUFF_RETURN_IF_ERROR(trial->Refresh().status());
  const auto deadline = std::chrono::steady_clock::now() + options.wait_for_first_step;
  while (trial->step_count() == 0 && !trial->loaded_all_steps()) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    LUFF_RETURN_IF_ERROR(trial->WaitForNews(left).status());
  }
  return trial;
}

RunTrial::RunTrial(std::unique_ptr<store::RunReader> run, const OpenOptions& options)
    : StepTrial("run", options),
      run_(std::move(run)) {
  (void)TakeInWorkers();
}

Result<bool> RunTrial::Refresh() { return TakeInNews(false); }

Result<bool> RunTrial::RefreshAll() { return TakeInNews(true); }

Result<bool> RunTrial::TakeInNews(bool thorough) {
  // Finds dead workers first, so that the reading that follows is sure to see everything they published.
  const bool changed = CheckWorkers();
  LUFF_ASSIGN_OR_RETURN(const bool news, run_->Refresh(thorough));
  if (!news && !changed && version_ > 0) return false;
  return TakeInWorkers();
}

void RunTrial::ShowAtMost(std::size_t steps) {
  options_.show_at_most = std::max(options_.show_at_most, steps);
  if (held_back_) (void)TakeInWorkers();
}

bool RunTrial::TakeInWorkers() {
  for (const auto& reader : run_->workers()) {
    const auto at =
        std::lower_bound(workers_.begin(), workers_.end(), reader->worker(),
                         [](const auto& known, std::uint32_t key) { return known->reader->worker() < key; });
    if (at != workers_.end() && (*at)->reader == reader.get()) continue;
    auto state = std::make_unique<WorkerState>();
    state->reader = reader.get();
    workers_.insert(at, std::move(state));
  }
  for (const auto& worker : workers_) TakeDefinitions(*worker);
  ResolveCollections();
  if (version_ == 0) (void)CheckWorkers();
  (void)MergeSteps();
  const bool over =
      std::all_of(workers_.begin(), workers_.end(), [](const auto& w) { return w->ended() || w->lost; });
  loaded_all_ = over && !held_back_ && !Awaited();
  ++version_;
  return true;
}

/// True while workers of the run are missing and it is younger than lost_after_s; they hold back its steps.
bool RunTrial::Awaited() const noexcept {
  if (workers_.size() >= std::max<std::uint32_t>(1, world_size())) return false;
  std::int64_t now_unix_ns = Env::Real().NowUnixNs();
  if (const auto& mirror = run_->mirror(); mirror != nullptr) {
    if (mirror->Look().ended) return false;
    now_unix_ns = mirror->Look().host_unix_ns;
  }
  return SecondsBetween(created_unix_ns(), now_unix_ns) < options_.lost_after_s;
}

bool RunTrial::CheckWorkers() {
  const std::int64_t now = Env::Real().NowMonotonicNs();
  bool changed = false;
  if (!loaded_all_ && version_ > 0 && workers_.size() < std::max<std::uint32_t>(1, world_size())) {
    changed = !Awaited();
  }
  for (const auto& worker : workers_) {
    if (worker->ended()) {
      worker->lost = false;
      continue;
    }
    if (worker->checked_ns != 0 && now - worker->checked_ns < kLookEveryNs) continue;
    worker->checked_ns = now;
    const store::Liveness life = worker->reader->liveness();
    // Compares the clocks of two machines only once; from then on counts from when this process saw the last
    // sign of life. Of a run in a bucket both times are those of the worker's host: a mirror that is not
    // followed any more tells nothing of the worker.
    if (const auto& mirror = run_->mirror(); mirror != nullptr) {
      (void)mirror->Look();
      const std::uint32_t number = worker->reader->worker();
      const double silent_s = mirror->EndedOf(number)
                                  ? kLongestSilenceS
                                  : SecondsBetween(life.heartbeat_unix_ns, mirror->TimeOf(number));
      worker->heard_ns = now - static_cast<std::int64_t>(std::clamp(silent_s, 0.0, kLongestSilenceS) * 1e9);
    } else if (worker->heard_ns == 0) {
      const double silent_s = SecondsBetween(life.heartbeat_unix_ns, Env::Real().NowUnixNs());
      worker->heard_ns = now - static_cast<std::int64_t>(std::clamp(silent_s, 0.0, kLongestSilenceS) * 1e9);
    } else if (life.heartbeat_unix_ns != worker->heartbeat_unix_ns) {
      worker->heard_ns = now;
    }
    worker->heartbeat_unix_ns = life.heartbeat_unix_ns;
    const bool silent = SecondsBetween(worker->heard_ns, now) > options_.lost_after_s;
    const bool lost = life.process_exists ? !*life.process_exists : silent;
    if (lost == worker->lost) continue;
    if (lost) (void)const_cast<store::WorkerReader*>(worker->reader)->Refresh(true);
    worker->lost = lost && !worker->ended();
    changed = true;
  }
  return changed;
}

void RunTrial::TakeDefinitions(WorkerState& worker) {
  const auto definitions = worker.reader->definitions();
  for (; worker.definitions_taken < definitions.size(); ++worker.definitions_taken) {
    const store::EpochTensorDef& definition = definitions[worker.definitions_taken];
    const store::TensorDef& def = definition.def;
    auto at = by_name_.find(def.name);
    if (at == by_name_.end()) {
      at = by_name_.emplace(def.name, static_cast<TensorId>(tensors_.size())).first;
      TensorInfo info;
      info.id = at->second;
      info.name = def.name;
      info.role = def.role;
      info.module_path = def.module_path;
      info.module_type = def.module_type;
      tensors_.push_back(std::move(info));
      collection_ids_.push_back(def.collections);
      definer_.push_back(&worker);
      collections_[worker.reader->worker()].first = "\n";  // resolve again
    }
    worker.trial_id.try_emplace(ScopedId(definition.epoch, def.id), at->second);
    worker.local_id.try_emplace(ScopedId(definition.epoch, at->second), def.id);
  }
}

/// Names of collections come from the document "collections" of the worker that defined the tensor.
void RunTrial::ResolveCollections() {
  for (const auto& worker : workers_) {
    const auto document = worker->reader->documents().find("collections");
    const std::string& text =
        document == worker->reader->documents().end() ? std::string() : document->second;
    auto& known = collections_[worker->reader->worker()];
    if (known.first == text) continue;
    known.first = text;
    known.second.clear();
    try {
      const auto json = TryParseJson(text);
      if (json.is_array()) {
        for (const auto& item : json) {
          known.second.push_back(item.is_object()   ? item.value("name", "")
                                 : item.is_string() ? item.get<std::string>()
                                                    : "");
        }
      }
    } catch (const std::exception&) {
      known.second.clear();  // an invalid document names no collections
    }
    for (std::size_t id = 0; id < tensors_.size(); ++id) {
      if (definer_[id] != worker.get()) continue;
      tensors_[id].collections.clear();
      for (const std::uint32_t index : collection_ids_[id]) {
        if (index < known.second.size()) tensors_[id].collections.push_back(known.second[index]);
      }
    }
  }
}

bool RunTrial::MergeSteps() {
  held_back_ = false;
  // The frontier: the step that every worker that still writes has passed.
  std::optional<StepKey> frontier;
  bool held = Awaited() && world_size() > 1;
  for (const auto& worker : workers_) {
    if (worker->ended() || worker->lost) continue;
    const std::uint64_t next = worker->reader->next_ordinal();
    const auto last = next == 0 ? std::nullopt : worker->reader->FindStep(next - 1);
    if (!last) {
      held = true;
      continue;
    }
    const StepKey key = KeyAt(*last);
    if (!frontier || key < *frontier) frontier = key;
  }
  if (held) return false;
  bool news = false;
  for (;;) {
    std::optional<StepKey> lowest;
    for (const auto& worker : workers_) {
      if (const auto head = worker->reader->FirstStepFrom(worker->taken)) {
        const std::uint64_t ordinal = head->segment->steps().ordinal[head->index];
        if (!worker->HasRoomFor(ordinal)) {
          worker->taken = kNoOrdinal;  // no step has this ordinal: the worker's later steps are ignored
          worker->problem =
              "found step number " + std::to_string(ordinal) + " of the worker behind number " +
              std::to_string(worker->first_ordinal + worker->step_of.size() - 1) +
              ", expected no such hole; its later steps are not shown: " + head->segment->path();
          continue;
        }
        const StepKey key = KeyAt(*head);
        if (!lowest || key < *lowest) lowest = key;
      }
    }
    if (!lowest || (frontier && workers_.size() > 1 && *frontier < *lowest)) return news;
    held_back_ = steps_.size() >= options_.show_at_most;
    if (held_back_) return news;
    news = true;
    std::uint32_t n = kNoStep;  // a late worker joins the steps of the others
    if (steps_.size() > 0 && lowest->global_step <= steps_.global_steps().back()) {
      const auto known = steps_.Find(lowest->global_step, Mode::kGlobal);
      if (known && steps_.epoch(*known) == lowest->epoch) n = *known;
    }
    for (const auto& worker : workers_) {
      const auto head = worker->reader->FirstStepFrom(worker->taken);
      if (!head || KeyAt(*head) != *lowest) continue;
      const auto& columns = head->segment->steps();
      const std::uint64_t ordinal = columns.ordinal[head->index];
      if (n == kNoStep ||
          worker->OrdinalOf(n) != kNoOrdinal) {  // new, or the worker records the same step again
        n = steps_.Append(InfoOf(columns.mark(head->index)), lowest->epoch);
      }
      worker->Place(n, ordinal);
      worker->taken = ordinal + 1;
    }
  }
}

std::chrono::nanoseconds RunTrial::PauseAfter(std::chrono::nanoseconds last) const {
  const bool near =
      !workers_.empty() && std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) {
        return worker->reader->uses_live_page() || worker->ended();
      });
  return std::clamp<std::chrono::nanoseconds>(last * 3 / 2, kFirstPause,
                                              near ? kLongestPause : kLongestPauseAfar);
}

bool RunTrial::awaits_values() const {
  const auto& mirror = run_->mirror();
  return mirror != nullptr && mirror->Look().behind && !mirror->Look().ended;
}

std::uint64_t RunTrial::values_missed() const noexcept {
  return run_->mirror() == nullptr ? 0 : run_->mirror()->missed();
}

std::string RunTrial::MirrorNote() const {
  if (run_->mirror() == nullptr) return {};
  const store::Mirror::State& state = run_->mirror()->Look();
  std::string note = state.url;
  if (state.pruned) note += std::string("; ") + store::kPrunedNote;
  if (state.behind) note += "; its upload is behind with values";
  if (state.silent)
    note += "; nobody uploads it any more, although it has not ended: what is shown may be old";
  if (!state.problem.empty()) note += "; shown as it was fetched last, since " + state.problem;
  return note;
}

std::vector<WorkerInfo> RunTrial::workers() const {
  std::vector<WorkerInfo> result;
  for (const auto& worker : workers_) {
    WorkerInfo info;
    info.worker = worker->reader->worker();
    info.ended = worker->ended();
    if (info.ended) info.reason = static_cast<format::EndReason>(worker->reader->end()->reason);
    info.alive = !info.ended && !worker->lost;
    const store::Liveness life = worker->reader->liveness();
    info.heartbeat_unix_ns = life.heartbeat_unix_ns;
    info.goes_on = info.ended && EndNote(*worker->reader, "process") == "goes on";
    info.pid = info.goes_on ? 0 : life.pid;
    const std::uint64_t next = worker->reader->next_ordinal();
    const auto segments = worker->reader->segments();
    if (const auto last = next == 0 ? std::nullopt : worker->reader->FindStep(next - 1)) {
      info.last_global_step = last->segment->steps().global_step[last->index];
    }
    const auto first =
        std::ranges::find_if(segments, [](const auto& segment) { return segment->steps().size() > 0; });
    if (first != segments.end()) info.first_global_step = (*first)->steps().global_step.front();
    for (std::size_t s = segments.size(); s-- > 0 && info.last_train_step < 0;) {
      const auto& steps = segments[s]->steps();
      for (std::size_t i = steps.size(); i-- > 0 && info.last_train_step < 0;) {
        if (steps.mode[i] == static_cast<std::uint8_t>(Mode::kTrain))
          info.last_train_step = steps.mode_step[i];
      }
    }
    result.push_back(info);
  }
  return result;
}

/// Records are never changed, so each is read once.
const std::optional<store::ControlRecord>& RunTrial::NewestOutcome() const {
  const auto records = store::ReadControl(path(), control_read_, nullptr);
  if (!records.ok()) return outcome_said_;
  for (const store::ControlRecord& record : *records) {
    if (record.number == control_read_ + 1) control_read_ = record.number;  // one before may still come
    if (record.kind == "outcome" && (!outcome_said_ || record.number > outcome_said_->number))
      outcome_said_ = record;
  }
  return outcome_said_;
}

Trial::Outcome RunTrial::outcome() const {
  std::int64_t begun = created_unix_ns();
  bool stopped = false;
  std::string failure;
  std::string notes;
  for (const auto& worker : workers_) {
    const auto segments = worker->reader->segments();
    for (const auto& segment : segments) {
      if (segment->header().epoch == worker->reader->epoch())
        begun = std::max(begun, segment->header().created_unix_ns);
    }
    const std::string name = "worker " + std::to_string(worker->reader->worker());
    if (!worker->ended()) {
      if (!worker->lost) continue;
      failure = name + " ended without a word: killed, or its machine is gone";
      continue;
    }
    const std::string note = EndNote(*worker->reader, "why");
    if (!note.empty()) notes = Joined(notes, name + ": " + note);
    switch (static_cast<format::EndReason>(worker->reader->end()->reason)) {
      case format::EndReason::kCompleted: break;
      case format::EndReason::kStopped: stopped = true; break;
      case format::EndReason::kException: failure = name + " ended by an exception"; break;
      case format::EndReason::kSignal: failure = name + " ended by a signal"; break;
      default: failure = name + " failed"; break;
    }
  }
  // The supervisor knows more than the workers do, provided that it wrote after the newest worker began.
  const auto& said = NewestOutcome();
  if (said && (said->created_unix_ns == 0 || said->created_unix_ns >= begun)) {
    try {
      const auto json = TryParseJson(said->body);
      if (json.is_object() && json.contains("state"))
        return {json.value("state", ""), Joined(json.value("why", ""), notes)};
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): uses what the workers say
    }
  }
  if (!loaded_all_) return {"running", ""};
  if (!failure.empty()) return {"failed", Joined(failure, notes)};
  if (stopped) return {"stopped", Joined("a control record asked for it", notes)};
  if (workers_.empty()) return {"failed", "no worker ever recorded anything"};
  return {"completed", notes};
}

std::vector<std::string> RunTrial::Problems() const {
  std::vector<std::string> result;
  for (const auto& worker : workers_) {
    const auto& found = worker->reader->problems();
    result.insert(result.end(), found.begin(), found.end());
    if (!worker->problem.empty()) result.push_back(worker->problem);
  }
  return result;
}

}  // namespace luff::query

#include "watch/watched_run.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/json.h"
#include "keys/gate.h"
#include "keys/order.h"
#include "luff/actions/requests.h"
#include "luff/base/env.h"
#include "luff/rules/kept_findings.h"
#include "luff/store/control.h"
#include "luff/store/reader.h"

namespace luff::watch {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::size_t kChunk = 20;         // steps between two looks at the clock
constexpr double kCheckpointSeconds = 60;  // what a restart judges again is cheap
constexpr std::int64_t kCheckpointSteps = 20'000;
constexpr std::int64_t kGoneNs = 60 * kSecondNs;  // a job may be started again

std::int64_t Now() { return Env::Real().NowMonotonicNs(); }

/// Without a lock of our own, another process stops and corrects: only what tells is left to do.
std::vector<actions::ActionSpec> SpecsFor(const RunSettings& settings, bool commands) {
  std::vector<actions::ActionSpec> specs = settings.actions;
  if (!commands)
    std::erase_if(specs, [](const actions::ActionSpec& spec) { return !actions::IsDelivery(spec.kind); });
  return specs;
}

std::shared_ptr<actions::Gate> GateFor(const RunSettings& settings, const std::string& run) {
  return settings.keys.empty() ? keys::GateOfRun(run) : keys::GateOf(settings.keys);
}

}  // namespace

WatchedRun::WatchedRun(std::string path, std::string name, const RunSettings& settings, bool commands)
    : path_(std::move(path)),
      name_(std::move(name)),
      run_id_(store::ReadRunId(path_).value_or("")),
      key_(settings.key),
      commands_(commands),
      stop_on_finding_(settings.stop_on_finding),
      ask_(settings.ask),
      runner_({path_, name_, SpecsFor(settings, commands), commands && settings.stop_on_finding,
               settings.stop, settings.notifier, commands, commands ? GateFor(settings, path_) : nullptr,
               !settings.keys.empty()}) {}

Result<std::unique_ptr<WatchedRun>> WatchedRun::Open(std::string path, std::string name,
                                                     const RunSettings& settings) {
  LUFF_RETURN_IF_ERROR(store::CheckOwner(path));
  auto trial = query::Trial::Open(path);
  if (!trial.ok()) {
    const StatusCode code = trial.status().code();
    if (code == StatusCode::kNotFound || code == StatusCode::kFailedPrecondition)
      return Unavailable(std::string(trial.status().message()));  // nobody has recorded yet
    return trial.status();
  }
  std::unique_ptr<store::SupervisorLock> command;
  if (!settings.ask) {  // a copy is commanded by nobody: its job is, through the bucket
    auto lock = store::SupervisorLock::Take(path);
    if (!lock.ok() && lock.status().code() != StatusCode::kAlreadyExists) return lock.status();
    if (lock.ok()) command = std::move(*lock);
  }
  std::unique_ptr<WatchedRun> run(
      new WatchedRun(std::move(path), std::move(name), settings, command != nullptr));
  run->lock_ = std::move(command);
  run->trial_ = std::move(*trial);
  rules::EvaluatorOptions options;
  options.folder = run->path_ + "/rules/luff";
  options.choices = settings.choices;
  options.checkpoint_seconds = kCheckpointSeconds;
  options.checkpoint_steps = kCheckpointSteps;
  auto evaluator = rules::Evaluator::Open(
      options, [to = run.get()](const rules::Finding& finding, const std::string& event) {
        to->NoteFound(finding, event);
      });
  if (!evaluator.ok()) {
    const bool held = evaluator.status().code() == StatusCode::kFailedPrecondition;
    return held ? AlreadyExists(std::string(evaluator.status().message())) : evaluator.status();
  }
  run->evaluator_ = std::move(*evaluator);
  // What stands in the file was found before; whether it was said is not ours to know.
  const std::string file = options.folder + "/findings.jsonl";
  if (const auto text = ReadRegular(file, 256ULL << 20, rules::kFindingsInRun); text.ok()) {
    std::size_t from = 0;
    for (std::size_t end = 0; (end = text->find('\n', from)) != std::string::npos; from = end + 1) {
      auto parsed = rules::ParseFindingUntrusted(std::string_view(*text).substr(from, end - from));
      if (parsed.ok()) run->NoteFound(std::move(parsed->first), std::move(parsed->second));
    }
  }
  return run;
}

// ---- The lane's thread ----

WatchedRun::Turn WatchedRun::Judge(std::size_t limit, std::int64_t budget_ns, Numbers* numbers) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  Turn turn;
  if (!lock.owns_lock() || finished_ || !failure_.ok()) return turn;
  const std::int64_t begun = Now();
  if (const auto news = trial_->Refresh(); !news.ok() && news.status().code() == StatusCode::kNotFound) {
    Fail(news.status());  // the directory was removed
    return turn;
  }
  const auto oldest = [&] {
    const std::size_t next = evaluator_->steps_done();
    return next < trial_->step_count() ? trial_->step_at(next).wall_unix_ns : std::int64_t{0};
  };
  while (turn.steps < limit) {
    const std::int64_t published = oldest();
    const auto done = evaluator_->Advance(*trial_, std::min(kChunk, limit - turn.steps));
    if (!done.ok()) {
      Fail(done.status());
      break;
    }
    if (*done == 0) {
      concluding_ = HasEnded();
      if (concluding_ && evaluator_->ReadyToFinish(*trial_)) Finish();
      break;
    }
    turn.steps += *done;
    const std::int64_t lag_ns = published == 0 ? 0 : Env::Real().NowUnixNs() - published;
    numbers->Judged(*done, static_cast<double>(std::max<std::int64_t>(lag_ns, 0)) * 1e-9);
    if (wanted_ || Now() - begun >= budget_ns) break;
  }
  oldest_unix_ns_ = failure_.ok() && !finished_ ? oldest() : 0;
  turn.cost_ns = Now() - begun;
  turn.more = oldest_unix_ns_ != 0;
  turn.soon = failure_.ok() && !finished_ && (concluding_ || evaluator_->behind() > 0);
  turn.dear = turn.cost_ns >= budget_ns && turn.steps <= kChunk;
  return turn;
}

bool WatchedRun::HasEnded() {
  if (!trial_->loaded_all_steps()) return dead_since_ns_ = -1, false;
  const std::vector<query::WorkerInfo> workers = trial_->workers();
  bool word = !workers.empty() && workers.size() >= trial_->world_size();
  for (const query::WorkerInfo& worker : workers) {
    if (worker.alive) return dead_since_ns_ = -1, false;
    word = word &&
           (worker.reason == format::EndReason::kCompleted || worker.reason == format::EndReason::kStopped);
  }
  if (workers.empty()) return false;
  if (dead_since_ns_ < 0) dead_since_ns_ = Now();
  if (!word && Now() - dead_since_ns_ < kGoneNs) return false;
  const auto more = trial_->RefreshAll();
  return !more.ok() || !*more;
}

void WatchedRun::NoteFound(rules::Finding finding, std::string event) {
  if (ask_ && stop_on_finding_ && finding.severity == rules::Severity::kStop) proven_[finding.id] = finding;
  events_.push_back({std::move(finding), std::move(event)});
  has_events_ = true;
}

void WatchedRun::Fail(const Status& why) {
  failure_ = why;
  at_end_ = true;
}

void WatchedRun::Finish() {
  if (const Status done = evaluator_->Finish(*trial_); !done.ok()) {
    Fail(done);
    return;
  }
  finished_ = at_end_ = true;
}

// ---- The main thread ----

std::vector<Event> WatchedRun::TakeEvents() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return {};
  has_events_ = false;
  return std::exchange(events_, {});
}

std::int64_t WatchedRun::TrainStep() const {
  std::int64_t step = -1;
  for (const query::WorkerInfo& worker : trial_->workers()) step = std::max(step, worker.last_train_step);
  return step;
}

void WatchedRun::Act(const Event& event, bool worse) {
  const std::scoped_lock lock(mutex_);
  runner_.OnFinding(event.finding, event.event, worse, TrainStep(), Now());
  busy_ = true;  // until the next Poll says otherwise
  if (!StopsOthers(event.finding)) return;
  asked_.insert(event.finding.id);
  AskToStop(event.finding);
}

bool WatchedRun::StopsOthers(const rules::Finding& finding) const {
  const bool stops = finding.severity == rules::Severity::kStop && !finding.healed;
  return !commands_ && stop_on_finding_ && stops && !finished_;
}

void WatchedRun::AskAgain(const Event& event) {
  const std::scoped_lock lock(mutex_);
  if (!StopsOthers(event.finding) || !asked_.insert(event.finding.id).second) return;
  AskToStop(event.finding);
}

void WatchedRun::ForgetAsked() {
  const std::scoped_lock lock(mutex_);
  stop_asked_ = false;
  asked_.clear();
}

void WatchedRun::AskToStop(const rules::Finding& finding) {
  if (ask_) {
    to_ask_.emplace_back(finding.id, finding.rule);
    return AskInBucket();
  }
  if (std::exchange(stop_asked_, true)) return;
  store::ControlRecord record;
  record.kind = "request";
  record.finding = finding.id;
  record.reason = fmt::format("{}: {}", finding.rule, finding.what);
  record.author = actions::Author() + " (luff watch)";
  record.body = JsonText(nlohmann::json{{"action", "stop"}});
  if (key_ != nullptr) {
    const Status is_signed = keys::SignRecord(*key_, run_id_, keys::kLongestNs, &record);
    if (!is_signed.ok())
      sayings_.push_back(fmt::format("luff: the stop of {} is not signed: {}\n", name_, is_signed.message()));
  }
  if (const auto written = store::WriteControl(path_, record); !written.ok())
    sayings_.push_back(
        fmt::format("luff: the stop of {} cannot be asked for: {}\n", name_, written.status().message()));
}

// A commit may be of somebody who has no key: our signature is under what the rules here have found alone.
void WatchedRun::AskInBucket() {
  const bool judged = finished_ || !failure_.ok();
  std::erase_if(to_ask_, [&](const auto& one) {
    if (stop_asked_) return true;
    if (const auto found = proven_.find(one.first); found != proven_.end()) {
      stop_asked_ = !judged && AskToStopInBucket(found->second);
      return judged || stop_asked_;
    }
    if (judged) {
      sayings_.push_back(
          fmt::format("luff: {} is not asked to stop: another process has committed {}, which the rules here "
                      "do not find\n",
                      name_, one.second));
    }
    return judged;
  });
  asking_ = !to_ask_.empty();
}

// The same finding asks with the same nonce, whoever asks: the second request does nothing.
bool WatchedRun::AskToStopInBucket(const rules::Finding& finding) {
  const auto tell = [&](std::string_view why) {
    sayings_.push_back(fmt::format("luff: the stop of {} cannot be asked for: {}\n", name_, why));
    return true;
  };
  if (key_ == nullptr) return tell("no key (--key FILE)");
  auto record = actions::RequestRecord("stop", "", fmt::format("{}: {}", finding.rule, finding.what),
                                       actions::Author() + " (luff watch)");
  if (!record.ok()) return tell(record.status().message());
  record->finding = finding.id;
  const std::string of = run_id_ + " stop " + finding.id;
  if (const Status is_signed = keys::SignRecordOnce(*key_, run_id_, keys::kLongestNs, of, &*record);
      !is_signed.ok())
    return tell(is_signed.message());
  return ask_(run_id_, keys::ObjectText(*record));
}

std::size_t WatchedRun::steps_done() const {
  const std::scoped_lock lock(mutex_);
  return evaluator_ == nullptr ? 0 : evaluator_->steps_done();
}

void WatchedRun::Resume(std::vector<rules::Finding> open) {
  runner_.Resume(std::move(open));
  runner_.Begin(Now());
}

void WatchedRun::Poll() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  wanted_ = !lock.owns_lock();
  if (wanted_) return;
  AskInBucket();
  if (finished_ && !std::exchange(ended_told_, true)) {
    if (runner_.coordinator().committed_step() >= 0) WriteOutcome();
    runner_.JobEnded();
  }
  const bool busy = runner_.coordinator().busy();
  const std::vector<query::WorkerInfo> workers = busy ? trial_->workers() : std::vector<query::WorkerInfo>();
  const auto acks = busy ? trial_->Acks() : std::vector<std::pair<std::uint32_t, format::AckRow>>();
  // Processes on other machines, and those of other parents, are not ours to signal.
  (void)runner_.Poll(Now(), TrainStep(), busy ? trial_->world_size() : 1, workers, acks);
  // Deliveries outlive the training, and their end belongs into the audit: else the next process delivers
  // again.
  const bool judged = !finished_ && failure_.ok();  // of a run that is gone, nobody answers a proposal
  busy_ = (judged && runner_.coordinator().busy()) || !runner_.deliveries().idle();
}

std::vector<std::string> WatchedRun::TakeSayings() {
  std::vector<std::string> all = runner_.TakeSayings();
  std::ranges::move(std::exchange(sayings_, {}), std::back_inserter(all));
  return all;
}

std::string WatchedRun::TakeNotRecorded() {
  constexpr std::size_t kSteps = 100;  // by then, rules have what they ever have
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || not_recorded_told_ || evaluator_->steps_done() == 0) return "";
  if (!finished_ && evaluator_->steps_done() < kSteps) return "";
  not_recorded_told_ = true;
  return rules::NotRecordedText(rules::Summarize(evaluator_->coverage()));
}

// As `luff run` writes it, so that everybody can tell which finding stopped the job.
void WatchedRun::WriteOutcome() {
  const rules::Finding& finding = runner_.stop_finding();
  nlohmann::ordered_json body;
  body["state"] = "stopped";
  body["why"] = finding.id.empty() ? runner_.stop_asked() : fmt::format("{}: {}", finding.rule, finding.what);
  body["findings"] = evaluator_->findings().size();
  body["train_step"] = runner_.coordinator().committed_step();
  body["remark"] = runner_.coordinator().remark();
  store::ControlRecord record;
  record.kind = "outcome";
  record.body = JsonText(body);
  record.finding = finding.id;
  record.author = "luff watch";
  if (const auto written = store::WriteControl(path_, record); !written.ok())
    sayings_.push_back(
        fmt::format("luff: the outcome of {} cannot be written: {}\n", name_, written.status().message()));
}

bool WatchedRun::settled() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && events_.empty() && !busy_ && !asking_;
}

bool WatchedRun::over() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && finished_ && ended_told_ && events_.empty() && !busy_ && !asking_;
}

Status WatchedRun::failure() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() ? failure_ : Status::Ok();
}

Status WatchedRun::Leave() {
  const std::scoped_lock lock(mutex_);
  return finished_ || !failure_.ok() ? Status::Ok() : evaluator_->Checkpoint();
}

void WatchedRun::Cancel() { runner_.deliveries().Cancel(Now(), "luff watch leaves"); }

}  // namespace luff::watch

#include "cli/watch.h"
#include "catalog/labels.h"

#include <signal.h>

#include <algorithm>
#include <cstdlib>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/json.h"
#include "base/output_file.h"
#include "cli/json.h"
#include "cli/terminal.h"
#include "keys/gate.h"
#include "keys/host_seal.h"
#include "luff/actions/host_post.h"
#include "luff/actions/requests.h"
#include "luff/base/env.h"
#include "luff/rules/kept_findings.h"
#include "luff/store/host_folder.h"

namespace luff::cli {
namespace {

constexpr double kFinishIdleSeconds = 60;
constexpr std::int64_t kLastSamplesNs = 3'000 * kNsPerMs;  // for the machine's sampler to write what it has
constexpr std::int64_t kDeliveryQuietNs = 2'000 * kNsPerMs, kDeliveryNs = 30'000 * kNsPerMs;
constexpr std::int64_t kDeliveryGraceNs = 6'000 * kNsPerMs;  // for those that were cancelled
constexpr std::int64_t kLookForEndNs = 2'000 * kNsPerMs, kRestartNs = 60'000 * kNsPerMs;

/// The other hosts of the job; null if it has none. The n-th training of each host belongs together.
std::shared_ptr<actions::HostLog> HostsOf(const SuperviseOptions& options) {
  // Of a job that goes on without others. Who only watches a run leaves the folder, which tells that it has
  // some.
  if (options.hosts_job.empty() && !options.keys_of_run) store::RemoveHostFolder(options.run);
  if (options.hosts_job.empty()) return nullptr;
  const bool sealed = std::ranges::any_of(
      options.outputs, [](const LiveOutput& one) { return one.format == kSync && !one.environment.empty(); });
  return std::make_shared<actions::HostLog>(
      keys::JobIdOf(options.hosts_job, options.training), keys::NewInstance(),
      std::make_unique<actions::FolderPost>(options.run),
      std::make_unique<keys::KeySeal>(options.host_key, options.keys), !sealed);
}

}  // namespace

std::int64_t FinishIdleNs() {
  const char* text = std::getenv("LUFF_RULE_IDLE_S");
  const Result<double> seconds = rules::ParseDouble(text != nullptr ? text : "");
  const double wanted =
      seconds.ok() && seconds.value() >= 0 && seconds.value() <= 86400 ? seconds.value() : kFinishIdleSeconds;
  return static_cast<std::int64_t>(wanted * 1e9);
}

Watch::Watch(Job& job, SuperviseOptions options)
    : job_(job),
      options_(std::move(options)),
      findings_path_(options_.run + "/rules/" + kEvaluator + "/findings.jsonl"),
      place_(std::in_place, options_.run),
      hosts_(HostsOf(options_)),
      runner_({options_.run, options_.job, options_.actions, options_.stop_on_finding, options_.stop,
               options_.notifier, true,
               options_.keys_of_run ? keys::GateOfRun(options_.run) : keys::GateOf(options_.keys),
               !options_.keys_of_run, hosts_, !options_.hosts_job.empty()}),
      rules_(options_.run, [&job](const std::string& text) { job.Say(text); }),
      teller_(StderrHasColour(), StderrIsTerminal() ? TerminalWidth() : 100) {
  if (hosts_)
    heir_.emplace(options_.run, keys::JobIdOf(options_.hosts_job, options_.training), hosts_->instance(),
                  options_.stop, options_.keys);
  TakeEarlierFindings();
}

bool Watch::Keep(const rules::Finding& finding) {
  const auto [place, is_new] = finding_at_.try_emplace(finding.id, findings_.size());
  if (is_new)
    findings_.push_back(finding);
  else
    findings_[place->second] = finding;
  return is_new;
}

// Findings of an earlier part of a resumed run are not reported again, but stand in the verdict; open ones
// may escalate.
void Watch::TakeEarlierFindings() {
  const auto text = ReadRegular(findings_path_, 256ULL << 20, rules::kFindingsInRun);
  if (!text.ok()) return;
  std::map<std::string, rules::Finding> open;
  std::size_t from = 0;
  for (std::size_t end = 0; (end = text.value().find('\n', from)) != std::string::npos; from = end + 1) {
    const auto parsed = rules::ParseFindingUntrusted(text.value().substr(from, end - from));
    if (!parsed.ok()) continue;
    const rules::Finding& finding = parsed.value().first;
    before_[finding.id] = finding.severity;
    teller_.Know(finding);
    (void)Keep(finding);
    if (finding.healed) {
      open.erase(finding.id);
    } else {
      open[finding.id] = finding;
    }
  }
  findings_read_ = from;
  std::vector<rules::Finding> left;
  for (auto& [id, finding] : open) left.push_back(std::move(finding));
  runner_.Resume(std::move(left));
}

void Watch::Start() {
  for (const std::string& line : outputs_.Start(options_.run, options_.outputs, job_.Now())) job_.Say(line);
  rules_.Start(options_.choices, options_.set);
  if (options_.sample) sampler_.Start(options_.run);
  if (options_.resume && !options_.ended) runner_.Begin(job_.Now());
}

// ---- While the job runs ----

void Watch::Tag() {
  if (options_.tags.empty()) return;
  catalog::LabelChange change;
  change.add = options_.tags;
  change.author = actions::Author() + " (luff run)";
  const auto tagged = catalog::ChangeLabel(options_.run, change);
  if (!tagged.ok() && tagged.status().code() == StatusCode::kNotFound) return;  // nobody has recorded yet
  if (tagged.ok()) runner_.Trust(*tagged);
  if (!tagged.ok()) job_.Say(fmt::format("luff: no tags: {}\n", tagged.status().message()));
  options_.tags.clear();
}

void Watch::Look(bool job_lives) {
  Tag();
  ReadFindings();
  if (job_lives) Act();
  for (const std::string& line : outputs_.Look(job_.Now())) job_.Say(line);
  place_->Look(train_step());
}

void Watch::AddTo(std::vector<pollfd>* fds) {
  if (phase_ == Phase::kDone) return;
  rules_.AddTo(fds);
  runner_.deliveries().AddTo(fds);
}

bool Watch::Owns(pid_t pid) const noexcept {
  return pid == rules_.pid() || runner_.deliveries().Owns(pid) || outputs_.Owns(pid) || sampler_.Owns(pid) ||
         (heir_ && heir_->Owns(pid));
}

void Watch::ChildEnded(pid_t pid, const ExitState& state) {
  if (pid == rules_.pid()) rules_.Ended(state, job_.Now());
  runner_.deliveries().Ended(pid, state);
  sampler_.Ended(pid, state);
  if (heir_) heir_->Ended(pid);
  if (const std::string said = outputs_.Ended(pid, state, job_.Now()); !said.empty()) job_.Say(said);
}

void Watch::ReadFindings() {
  const auto file = RegularFile::Open(findings_path_, rules::kFindingsInRun);
  if (!file.ok() || file.value()->size() <= findings_read_) return;
  std::string text(
      static_cast<std::size_t>(std::min<std::uint64_t>(file.value()->size() - findings_read_, 16U << 20)),
      '\0');
  const auto got =
      file.value()->ReadAt({reinterpret_cast<std::byte*>(text.data()), text.size()}, findings_read_);
  if (!got.ok()) return;
  text.resize(got.value());
  std::size_t from = 0;
  std::vector<FindingEvent> events;
  for (std::size_t end = 0; (end = text.find('\n', from)) != std::string::npos; from = end + 1) {
    OnFinding(text.substr(from, end - from), &events);
  }
  findings_read_ += from;
  if (const std::string news = teller_.Tell(events); !news.empty()) {
    if (options_.training > 1) job_.Say(fmt::format("luff: in training {}:\n", options_.training));
    job_.SayAsItIs(news);
  }
}

void Watch::OnFinding(const std::string& line, std::vector<FindingEvent>* events) {
  const auto parsed = rules::ParseFindingUntrusted(line);
  if (!parsed.ok()) return;
  const auto& [finding, event] = parsed.value();
  events->push_back(parsed.value());
  if (const auto old = before_.find(finding.id); old != before_.end() && finding.severity <= old->second) {
    (void)Keep(finding);
    if (finding.healed) runner_.OnFinding(finding, event, false, train_step(), job_.Now());
    return;
  }
  const auto known = finding_at_.find(finding.id);
  const bool worse = known != finding_at_.end() && finding.severity > findings_[known->second].severity;
  const bool is_new = Keep(finding);
  runner_.OnFinding(finding, event, worse, train_step(), job_.Now());
  if (is_new || worse) AppendFinding(line);
}

void Watch::AppendFinding(const std::string& line) {
  if (options_.findings_file.empty()) return;
  const std::string run = JsonText(Json{{"run", options_.run}});  // {"run":...}
  const Status written =
      AppendLine(options_.findings_file, JsonEscaped(run.substr(0, run.size() - 1) + "," + line.substr(1)));
  if (!written.ok() && !findings_file_failed_)
    job_.Say(fmt::format("luff: a finding cannot be written with --findings: {}\n", written.message()));
  findings_file_failed_ = findings_file_failed_ || !written.ok();
}

// Returns false if there is nothing to read yet.
bool Watch::RefreshTrial() {
  if (!trial_) {
    auto opened = query::Trial::Open(options_.run);
    if (opened.ok()) trial_ = std::move(opened).value();
  }
  if (!trial_) return false;
  const Result<bool> news = trial_->Refresh();
  static_cast<void>(news);  // what cannot be read now is read later; deadlines continue
  return true;
}

const Progress& Watch::progress() {
  if (has_rules()) return rules_.progress();
  if (RefreshTrial()) progress_.Look(*trial_);
  return progress_.progress();
}

void Watch::Act() {
  std::vector<query::WorkerInfo> workers;
  std::vector<std::pair<std::uint32_t, format::AckRow>> acks;
  std::uint32_t world = 1;
  if (busy() && RefreshTrial()) {
    workers = trial_->workers();
    acks = trial_->Acks();
    world = trial_->world_size();
  }
  const auto signal = runner_.Poll(job_.Now(), train_step(), world, workers, acks);
  if (heir_) {
    if (const Status has = heir_->Follow(ended() ? std::nullopt : runner_.coordinator().bequest()); !has.ok())
      job_.Say(fmt::format("luff: if this process dies now, nobody obeys in its place: {}\n", has.message()));
  }
  for (const std::string& line : runner_.TakeSayings()) job_.Say(line);
  if (signal == actions::Coordinator::Signal::kNone) return;
  job_.Say(fmt::format("luff: {}\n", runner_.coordinator().remark()));
  signalled_ = true;
  std::vector<pid_t> processes;
  for (const query::WorkerInfo& worker : workers) {
    if (worker.pid != 0) processes.push_back(static_cast<pid_t>(worker.pid));
  }
  if (!job_.Signal(signal == actions::Coordinator::Signal::kKill ? SIGKILL : SIGTERM, processes))
    job_.Say("luff: none of the training's processes can be reached from here\n");
}

// ---- The end ----

std::int64_t Watch::StepsOfTheLiving() {
  if (!RefreshTrial()) return -1;
  std::int64_t steps = -1;
  for (const query::WorkerInfo& worker : trial_->workers()) {
    if (worker.alive && !worker.ended) steps = std::max<std::int64_t>(steps, 0) + worker.last_global_step + 1;
  }
  return steps;
}

bool Watch::TrainingEnded() {
  const std::int64_t now = job_.Now();
  if (now - looked_ns_ < kLookForEndNs) return false;
  looked_ns_ = now;
  if (!RefreshTrial()) return false;
  const std::vector<query::WorkerInfo> workers = trial_->workers();
  bool word = !workers.empty() && workers.size() >= trial_->world_size();
  for (const query::WorkerInfo& worker : workers) {
    // A process that was stopped may be told to leave until it is gone.
    if (worker.alive || (stopping() && worker.pid != 0)) return dead_since_ns_ = -1, false;
    word = word &&
           (worker.reason == format::EndReason::kCompleted || worker.reason == format::EndReason::kStopped);
  }
  if (word) return true;
  if (dead_since_ns_ < 0) dead_since_ns_ = now;
  return !workers.empty() && now - dead_since_ns_ > kRestartNs;
}

void Watch::Enter(Phase phase) {
  phase_ = phase;
  entered_ns_ = news_ns_ = job_.Now();
  said_ = cancelled_ = false;
}

void Watch::End() {
  runner_.JobEnded();
  outputs_.JobEnded();
  sampler_.JobEnded();
  Enter(Phase::kJudging);
}

bool Watch::Finish(bool interrupted, bool job_lives, const std::optional<ExitState>& exit) {
  if (phase_ == Phase::kDone) return true;
  Tag();
  ReadFindings();
  Act();
  if (phase_ == Phase::kJudging) {
    if (!rules_told_) {
      // What was measured last is in the run when rules judge its end.
      if (sampler_.living() && job_.Now() - entered_ns_ < kLastSamplesNs) return false;
      rules_told_ = true;
      rules_.Finish(job_.Now());
    }
    rules_.KillIfIdle(job_.Now(), FinishIdleNs());
    if (rules_.living()) return false;
    ReadFindings();
    Enter(Phase::kDelivering);
    Act();
  }
  if (phase_ == Phase::kDelivering) {
    if (job_lives) entered_ns_ = job_.Now();
    if (!Delivered(interrupted)) return false;
    if (outputs_.uploading()) recorded_ = RecordOutcome(EndingOf(exit));
    for (const std::string& line : outputs_.RunEnded(job_.Now())) job_.Say(line);
    Enter(Phase::kWriting);
  }
  if (phase_ == Phase::kWriting) {
    if (!Written(interrupted)) return false;
    Enter(Phase::kDone);
    trial_.reset();
  }
  return true;
}

// Finishes deliveries that have begun, within bounds; Ctrl-C abandons them.
bool Watch::Delivered(bool interrupted) {
  actions::Deliveries& deliveries = runner_.deliveries();
  if (deliveries.idle()) return true;
  const std::int64_t now = job_.Now();
  const std::int64_t passed = now - entered_ns_;
  if (!said_ && passed > kDeliveryQuietNs) {
    said_ = true;
    job_.Say(fmt::format("luff: waiting for {}; Ctrl-C leaves {}\n",
                         Plural(deliveries.unfinished(), "delivery", "deliveries"),
                         deliveries.unfinished() == 1 ? "it" : "them"));
  }
  if (!cancelled_ && (interrupted || passed > kDeliveryNs)) {
    cancelled_ = true;
    deliveries.Cancel(now, interrupted ? "interrupted" : "the job has ended");
    return false;  // what becomes of them is told in the next turn
  }
  return passed > kDeliveryNs + kDeliveryGraceNs;
}

// Waits until the outputs have written the rest and ended. Ctrl-C kills them; so does a time in which they do
// nothing, because a disk is gone or somebody has stopped them.
bool Watch::Written(bool interrupted) {
  if (!outputs_.living()) return true;
  const std::int64_t now = job_.Now();
  if (const std::int64_t used = outputs_.cpu_ns(); used != std::exchange(outputs_cpu_ns_, used))
    news_ns_ = now;
  if (interrupted || now - news_ns_ > FinishIdleNs()) {
    for (const std::string& line : outputs_.Kill()) job_.Say(line);
    return true;
  }
  if (!said_ && now - entered_ns_ > kDeliveryQuietNs) {
    said_ = true;
    job_.Say("luff: waiting for the outputs; Ctrl-C leaves them\n");
  }
  return false;
}

Ending Watch::EndingOf(const std::optional<ExitState>& exit) {
  place_->Look(train_step());
  return {options_,
          exit,
          runner_,
          findings_,
          rules_.failed_rules(),
          *place_,
          rules_.coverage(),
          train_step(),
          rules_.failed(),
          signalled_,
          recorded_};
}

Verdict Watch::Conclude(const std::optional<ExitState>& exit) {
  const Verdict verdict = cli::Conclude(EndingOf(exit));
  // A job may go on with many other trainings.
  place_.reset();
  options_.lock.reset();
  return verdict;
}

}  // namespace luff::cli

#include "cli/supervise.h"
#include "cli/json.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/json.h"
#include "base/output_file.h"
#include "base/process_tree.h"
#include "cli/coverage.h"
#include "cli/job_signals.h"
#include "cli/kept_findings.h"
#include "cli/report.h"
#include "cli/run_place.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "cli/verdict.h"
#include "luff/actions/runner.h"
#include "luff/base/env.h"
#include "luff/base/process.h"
#include "luff/query/trial.h"

namespace luff::cli {
namespace {

constexpr const char* kEvaluator = "luff";
constexpr int kRuleWorkerStarts = 4;  // the first and three more
constexpr std::int64_t kNsPerMs = 1'000'000;
constexpr double kFinishIdleSeconds =
    60;  // how long the rule worker and the outputs may do nothing at the end
constexpr std::int64_t kDeliveryQuietNs = 2'000 * kNsPerMs, kDeliveryNs = 30'000 * kNsPerMs;
constexpr std::int64_t kGroupGraceNs = 500 * kNsPerMs, kGroupTermNs = 3'000 * kNsPerMs;

std::int64_t FinishIdleNs() {
  const char* text = std::getenv("LUFF_RULE_IDLE_S");
  const Result<double> seconds = rules::ParseDouble(text != nullptr ? text : "");
  const double wanted =
      seconds.ok() && seconds.value() >= 0 && seconds.value() <= 86400 ? seconds.value() : kFinishIdleSeconds;
  return static_cast<std::int64_t>(wanted * 1e9);
}

class Supervisor {
 public:
  explicit Supervisor(const SuperviseOptions& options)
      : options_(options),
        env_(Env::Real()),
        findings_path_(options.run + "/rules/" + kEvaluator + "/findings.jsonl"),
        place_(options.run),
        runner_({options.run, options.job, options.actions, options.stop_on_finding, options.stop,
                 options.notifier}),
        terminal_(StderrIsTerminal()),
        colour_(StderrHasColour()),
        teller_(colour_, terminal_ ? TerminalWidth() : 100) {}

  int Run() {
    BecomeReaper();
    TakeEarlierFindings();
    // Children that our process had before it became luff (`exec luff run` in a script) are not the job's.
    for (const BelowProcess& one : ProcessesBelow(getpid(), [this](pid_t pid) { return IsOurs(pid); }))
      inherited_.insert(one.pid);
    if (const JobSignals::Asked asked = signals_.Take(); asked.leave) {
      RemoveUnusedRun(options_);
      return 128 + asked.number;
    }
    const Result<pid_t> started = StartTraining();
    if (!started.ok()) {
      PrintError(started.status());
      RemoveUnusedRun(options_);
      return started.status().code() == StatusCode::kNotFound ? 127 : 126;
    }
    training_ = started.value();
    signals_.Started(training_);

    for (const std::string& line : outputs_.Start(options_.run, options_.outputs)) Say(line);
    StartRuleWorker();
    if (options_.resume) runner_.Begin(Now());
    while (!exit_) Turn();
    WaitForWorkers();
    runner_.JobEnded();
    EndJob();
    TellOfThoseLeft();
    outputs_.JobEnded();
    FinishRules();
    FinishDeliveries();
    FinishOutputs();
    ClearStatus();
    place_.Look(train_step_);
    const int code = Conclude({options_, *exit_, runner_, findings_, failed_rules_, place_, coverage_,
                               train_step_, rules_failed_, signalled_});
    if (exit_->signal != 0 && code == exit_->code) signals_.DieAsCommand(exit_->signal);
    return code;
  }

 private:
  // Findings of an earlier part of a resumed run are not reported again; open ones may escalate.
  void TakeEarlierFindings() {
    const auto text = ReadRegular(findings_path_, 256ULL << 20, kFindingsInRun);
    if (!text.ok()) return;
    std::map<std::string, rules::Finding> open;
    std::size_t from = 0;
    for (std::size_t end = 0; (end = text.value().find('\n', from)) != std::string::npos; from = end + 1) {
      const auto parsed = rules::ParseFindingUntrusted(text.value().substr(from, end - from));
      if (!parsed.ok()) continue;
      const rules::Finding& finding = parsed.value().first;
      before_[finding.id] = finding.severity;
      teller_.Know(finding);
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

  // ---- Starting ----

  Result<pid_t> StartTraining() {
    Json session;
    session["run"] = options_.run;
    session["resume"] = options_.resume;
    session["config"] = TryParseOrderedJson(options_.capture_json);
    session["supervisor_pid"] = getpid();
    std::string python_path = options_.bootstrap;
    if (const char* before = std::getenv("PYTHONPATH"); before != nullptr && *before != 0)
      python_path += ":" + std::string(before);
    ProcessOptions process;
    process.argv = options_.command;
    process.environment = {{"LUFF_SESSION", JsonText(session)}, {"PYTHONPATH", python_path}};
    process.in_our_group = &signals_.at_start();
    return StartProcess(process);
  }

  void StartRuleWorker() {
    if (options_.choices.empty() || rule_worker_starts_ >= kRuleWorkerStarts) return;
    ++rule_worker_starts_;
    int to[2];
    int from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) return;
    ProcessOptions process;
    process.argv = {"/proc/self/exe",
                    "_evaluate",
                    options_.run,
                    "--name",
                    kEvaluator,
                    "--rules",
                    rules::ChoicesToText(options_.choices),
                    "--parameters",
                    std::string(rules::ParameterSetName(options_.set))};
    process.new_session = true;
    process.dies_with_parent = true;
    process.stdin_fd = to[0];
    process.stdout_fd = from[1];
    const Result<pid_t> started = StartProcess(process);
    close(to[0]);
    close(from[1]);
    if (!started.ok()) {
      close(to[1]);
      close(from[0]);
      Say(fmt::format("luff: the rule worker cannot be started: {}\n", started.status().message()));
      rule_worker_starts_ = kRuleWorkerStarts;
      return;
    }
    rule_worker_ = started.value();
    rule_in_ = to[1];
    rule_out_ = from[0];
    fcntl(rule_out_, F_SETFL, O_NONBLOCK);
    if (finishing_) TellFinish();
  }

  // Deadlines do not pass while the job is stopped (Ctrl-Z).
  std::int64_t Now() noexcept { return signals_.RunningNs(); }

  // ---- The loop ----

  void Turn() {
    Wait(runner_.coordinator().busy() ? 20 : terminal_ ? 500 : 2000);
    ReadFindings();
    if (!exit_) Act();
    place_.Look(train_step_);
    ShowStatus();
  }

  void TakeSignals() {
    const JobSignals::Asked asked = signals_.Take();
    interrupted_ = asked.leave || interrupted_;
    // The command is gone, so a scheduler's signal is forwarded to the workers that are left.
    if (asked.alone != 0 && workers_left_) {
      for (const BelowProcess& one : Job()) kill(one.pid, asked.alone);
    }
    int status = 0;
    pid_t pid = 0;
    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {
      if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
        if (pid == training_) signals_.CommandStopped(WIFSTOPPED(status));
        continue;
      }
      if (pid == training_) {
        exit_ = DecodeStatus(status);
        signals_.Ended();
      }
      inherited_.erase(pid);
      if (signals_.IsWitness(pid)) signals_.WitnessEnded();
      if (pid == rule_worker_) RuleWorkerEnded(DecodeStatus(status));
      runner_.deliveries().Ended(pid, DecodeStatus(status));
      if (const std::string said = outputs_.Ended(pid, DecodeStatus(status)); !said.empty()) Say(said);
    }
    signals_.StopWithCommand([this] { ClearStatus(); });
  }

  void HearRuleWorker() {
    char buffer[4096];
    ssize_t got = 0;
    while ((got = read(rule_out_, buffer, sizeof(buffer))) > 0) {
      heard_.append(buffer, static_cast<std::size_t>(got));
      heard_ns_ = Now();
    }
    std::size_t end = 0;
    while ((end = heard_.find('\n')) != std::string::npos) {
      const std::string line = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      long long steps = 0;
      long long train_step = 0;
      if (std::sscanf(line.c_str(), "progress %lld %lld", &steps, &train_step) == 2 && train_step >= 0)
        train_step_ = train_step;
      if (line == "done") rules_done_ = true;
      TakeCoverageLine(line, &coverage_);
      if (line.starts_with("note ")) HearNote(line.substr(5));
    }
    if (heard_.size() > (64U << 10)) heard_.clear();
  }

  // Reports a rule's note about itself.
  void HearNote(const std::string& text) {
    try {
      const Json json = ParseOrderedJson(text);
      const auto rule = json.at("rule").get<std::string>();
      if (json.at("failed").get<bool>()) failed_rules_.insert(rule);
      if (!notes_.insert(text).second) return;  // a restarted rule worker repeats it
      const std::string said = Escaped(json.at("text").get<std::string>());
      Say(fmt::format("luff: rule {}: {}\n", Escaped(rule),
                      Wrapped(said, 6, terminal_ ? TerminalWidth() : 100)));
    } catch (const std::exception&) {  // not a line of our rule worker
    }
  }

  void RuleWorkerEnded(const ExitState& state) {
    if (rule_out_ >= 0) HearRuleWorker();
    close(rule_in_);
    close(rule_out_);
    rule_in_ = rule_out_ = -1;
    rule_worker_ = -1;
    if (rules_done_ || (finishing_ && state.code == 0)) return;
    if (state.code == kExitUsage || rule_worker_starts_ >= kRuleWorkerStarts) {
      rules_failed_ = true;
      Say(fmt::format(
          "luff: the rule worker ended ({}) and is not started again: rules are off, the training goes on. "
          "`luff check {}` runs them later\n",
          state.signal != 0 ? fmt::format("signal {}", state.signal)
                            : fmt::format("exit code {}", state.code),
          Escaped(options_.run)));
      return;
    }
    StartRuleWorker();
  }

  void ReadFindings() {
    const auto file = RegularFile::Open(findings_path_, kFindingsInRun);
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
    if (const std::string news = teller_.Tell(events); !news.empty()) SayAsItIs(news);
  }

  void OnFinding(const std::string& line, std::vector<FindingEvent>* events) {
    const auto parsed = rules::ParseFindingUntrusted(line);
    if (!parsed.ok()) return;
    const auto& [finding, event] = parsed.value();
    if (const auto old = before_.find(finding.id); old != before_.end() && finding.severity <= old->second) {
      events->push_back(parsed.value());
      if (finding.healed) runner_.OnFinding(finding, event, false, train_step_, Now());
      return;
    }
    const auto [place, is_new] = finding_at_.try_emplace(finding.id, findings_.size());
    const bool worse =
        is_new ? before_.contains(finding.id) : finding.severity > findings_[place->second].severity;
    if (is_new) {
      findings_.push_back(finding);
    } else {
      findings_[place->second] = finding;
    }
    events->push_back(parsed.value());
    runner_.OnFinding(finding, event, worse, train_step_, Now());
    if (is_new || worse) AppendFinding(line);
  }

  void AppendFinding(const std::string& line) {
    if (options_.findings_file.empty()) return;
    const Status written = AppendLine(options_.findings_file, JsonEscaped(line));
    if (!written.ok() && !findings_file_failed_)
      Say(fmt::format("luff: a finding cannot be written with --findings: {}\n", written.message()));
    findings_file_failed_ = findings_file_failed_ || !written.ok();
  }

  // Returns false if there is nothing to read yet.
  bool RefreshTrial() {
    if (!trial_) {
      auto opened = query::Trial::Open(options_.run);
      if (opened.ok()) trial_ = std::move(opened).value();
    }
    if (!trial_) return false;
    const Result<bool> news = trial_->Refresh();
    static_cast<void>(news);  // what cannot be read now is read later; deadlines continue
    return true;
  }

  void Act() {
    std::vector<query::WorkerInfo> workers;
    std::vector<std::pair<std::uint32_t, format::AckRow>> acks;
    std::uint32_t world = 1;
    if (runner_.coordinator().busy()) {
      if (RefreshTrial()) {
        workers = trial_->workers();
        acks = trial_->Acks();
        world = trial_->world_size();
      }
    }
    const auto signal = runner_.Poll(Now(), train_step_, world, workers, acks);
    for (const std::string& line : runner_.TakeSayings()) Say(line);
    if (signal == actions::Coordinator::Signal::kNone) return;
    Say(fmt::format("luff: {}\n", runner_.coordinator().remark()));
    signalled_ = true;
    SignalAll(signal == actions::Coordinator::Signal::kKill ? SIGKILL : SIGTERM);
  }

  // All processes of the job: everything that the command started, wherever it is in the process tree now.
  std::vector<BelowProcess> Job() const {
    return ProcessesBelow(getpid(), [this](pid_t pid) { return IsOurs(pid); });
  }

  void SignalAll(int number) const {
    for (const BelowProcess& one : Job()) {
      kill(one.pid, number);
      if (one.stopped) kill(one.pid, SIGCONT);
    }
  }

  bool IsOurs(pid_t pid) const {
    return pid == rule_worker_ || inherited_.contains(pid) || signals_.IsWitness(pid) ||
           runner_.deliveries().Owns(pid) || outputs_.Owns(pid);
  }

  // ---- The end ----

  // The command has ended, but it left processes that record into the run (a launcher's workers). The job
  // continues while steps come, or until Ctrl-C.
  void WaitForWorkers() {
    std::int64_t news_ns = Now();
    std::int64_t steps = -1;
    while (!interrupted_ && Now() - news_ns < FinishIdleNs()) {
      if (const std::int64_t now_at = StepsOfTheLiving(); now_at < 0) {
        return;
      } else if (now_at > std::exchange(steps, now_at)) {
        news_ns = Now();
      }
      if (!std::exchange(workers_left_, true))
        Say("luff: the command has ended, processes that it has left still record: the job goes on; Ctrl-C "
            "leaves "
            "them\n");
      Wait(500);
      ReadFindings();
      Act();
    }
  }

  // Total steps of recording workers; -1: no process of the job is left, or none records.
  std::int64_t StepsOfTheLiving() {
    if (Job().empty() || !RefreshTrial()) return -1;
    std::int64_t steps = -1;
    for (const query::WorkerInfo& worker : trial_->workers()) {
      if (worker.alive && !worker.ended)
        steps = std::max<std::int64_t>(steps, 0) + worker.last_global_step + 1;
    }
    return steps;
  }

  void TellOfThoseLeft() {
    if (const std::size_t left = Job().size(); left > 0)
      Say(fmt::format("luff: the command has left {} behind; no rule sees what they record from now on\n",
                      Plural(left, "process", "processes")));
  }

  // Ends all processes of a job that was asked to stop; otherwise leaves them alone, as without Luff.
  void EndJob() {
    if (!runner_.coordinator().stopping()) return;
    const std::int64_t begin = Now();
    int sent = 0;
    while (!Job().empty()) {
      const std::int64_t passed = Now() - begin;
      if (sent == 0 && passed > kGroupGraceNs) SignalAll(sent = SIGTERM);
      if (sent == SIGTERM && passed > kGroupGraceNs + kGroupTermNs) SignalAll(sent = SIGKILL);
      if (passed > kGroupGraceNs + 2 * kGroupTermNs) break;  // e.g. a process that hangs on a dead disk
      Wait(50);
    }
  }

  // Waits at most `wait_ms`. Takes signals, ended children and the rule worker's lines, nothing else.
  void Wait(int wait_ms) {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}, {rule_out_, POLLIN, 0}};  // poll ignores -1
    runner_.deliveries().AddTo(&fds);
    poll(fds.data(), fds.size(), wait_ms);
    if (rule_out_ >= 0 && (fds[1].revents & (POLLIN | POLLHUP)) != 0) HearRuleWorker();
    TakeSignals();
  }

  void TellFinish() {
    const ssize_t written = write(rule_in_, "finish\n", 7);
    static_cast<void>(written);  // RuleWorkerEnded handles a dead worker
  }

  void FinishRules() {
    const std::int64_t idle_ns = FinishIdleNs();
    finishing_ = true;
    if (rule_worker_ > 0) TellFinish();
    heard_ns_ = Now();
    while (rule_worker_ > 0) {
      Wait(200);
      ReadFindings();
      Act();
      if (Now() - heard_ns_ > idle_ns) {
        Say("luff: the rule worker does not come to an end and was killed\n");
        rules_failed_ = true;
        rule_worker_starts_ = kRuleWorkerStarts;
        kill(rule_worker_, SIGKILL);
        heard_ns_ = Now();
      }
    }
    ReadFindings();
  }

  // Finishes deliveries that have begun, within bounds; Ctrl-C abandons them.
  void FinishDeliveries() {
    actions::Deliveries& deliveries = runner_.deliveries();
    const std::int64_t begin = Now();
    bool said = false;
    bool cancelled = false;
    while (true) {
      Act();
      if (deliveries.idle()) break;
      const std::int64_t passed = Now() - begin;
      if (!said && passed > kDeliveryQuietNs) {
        said = true;
        Say(fmt::format("luff: waiting for {}; Ctrl-C leaves {}\n",
                        Plural(deliveries.unfinished(), "delivery", "deliveries"),
                        deliveries.unfinished() == 1 ? "it" : "them"));
      }
      if (!cancelled && (interrupted_ || passed > kDeliveryNs)) {
        cancelled = true;
        deliveries.Cancel(Now(), interrupted_ ? "interrupted" : "the job has ended");
      }
      if (passed > kDeliveryNs + 2 * kGroupTermNs) break;
      Wait(100);
    }
  }

  // Waits until the outputs have written the rest and ended. Ctrl-C kills them; so does a time in which they
  // do nothing, because a disk is gone or somebody has stopped them.
  void FinishOutputs() {
    const std::int64_t begin = Now(), idle_ns = FinishIdleNs();
    std::int64_t news_ns = begin, worked = -1;
    bool said = false;
    while (outputs_.living()) {
      if (const std::int64_t now = outputs_.cpu_ns(); now != std::exchange(worked, now)) news_ns = Now();
      if (interrupted_ || Now() - news_ns > idle_ns) {
        for (const std::string& line : outputs_.Kill()) Say(line);
        break;
      }
      if (!said && Now() - begin > kDeliveryQuietNs)
        Say("luff: waiting for the outputs; Ctrl-C leaves them\n");
      said = said || Now() - begin > kDeliveryQuietNs;
      Wait(100);
    }
  }

  // ---- The terminal ----

  void Say(const std::string& text) { SayAsItIs(EscapedLines(text)); }

  // For text that is already escaped, and may have colours.
  void SayAsItIs(const std::string& text) {
    ClearStatus();
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }

  void ClearStatus() {
    if (!status_.empty()) std::fputs("\r\033[2K", stderr);
    status_.clear();
  }

  // The cursor returns to the first column, so that the training's next output overwrites the line.
  void ShowStatus() {
    if (!terminal_ || exit_ || !JobSignals::InForeground(STDERR_FILENO)) return;
    const std::int64_t now = Now();
    if (now - status_ns_ < 500 * kNsPerMs) return;
    status_ns_ = now;
    std::string text;
    if (train_step_ < 0) {
      text = "luff: waiting for the first training step";
    } else {
      text =
          fmt::format("luff: step {}, {}, {}", train_step_, Plural(options_.choices.size(), "rule", "rules"),
                      findings_.empty() ? "no findings" : Plural(findings_.size(), "finding", "findings"));
      if (runner_.coordinator().stopping()) text += ", stopping";
    }
    if (text == status_) return;
    ClearStatus();
    status_ = text;
    fmt::print(stderr, "{}{}{}\r", colour_ ? "\033[2m" : "", text, colour_ ? "\033[0m" : "");
    std::fflush(stderr);
  }

  const SuperviseOptions& options_;
  Env& env_;
  const std::string findings_path_;
  RunPlace place_;
  actions::Runner runner_;
  LiveOutputs outputs_;
  const bool terminal_, colour_;
  JobSignals signals_;
  int rule_in_ = -1, rule_out_ = -1;
  pid_t training_ = -1, rule_worker_ = -1;
  std::set<pid_t> inherited_;
  int rule_worker_starts_ = 0;
  bool workers_left_ = false, finishing_ = false, rules_done_ = false, rules_failed_ = false,
       signalled_ = false, interrupted_ = false, findings_file_failed_ = false;
  std::optional<ExitState> exit_;
  std::string heard_, status_;
  std::int64_t heard_ns_ = 0, status_ns_ = 0;
  long long train_step_ = -1;
  std::uint64_t findings_read_ = 0;
  std::map<std::string, rules::Severity> before_;  // by id: findings of an earlier part of a resumed run
  std::vector<rules::Finding> findings_;
  std::unordered_map<std::string, std::size_t> finding_at_;  // by id: place in findings_
  std::set<std::string> failed_rules_, notes_;
  rules::CoverageSummary coverage_;
  Teller teller_;
  std::unique_ptr<query::Trial> trial_;
};

}  // namespace

int Supervise(const SuperviseOptions& options) {
  Supervisor supervisor(options);
  return supervisor.Run();
}

}  // namespace luff::cli

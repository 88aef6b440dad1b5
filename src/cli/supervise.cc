#include "cli/supervise.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/actions/process.h"
#include "luff/actions/runner.h"
#include "luff/base/env.h"
#include "luff/query/trial.h"
#include "luff/store/control.h"

namespace luff::cli {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kEvaluator = "luff";
constexpr int kRuleWorkerStarts = 4;  // the first and three more
constexpr std::int64_t kNsPerMs = 1'000'000;
constexpr double kFinishIdleSeconds = 60;  // the rule worker may be silent for so long at the end
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
        runner_({options.run, options.job, options.actions, options.stop_on_finding, options.stop,
                 options.notifier}),
        terminal_(StderrIsTerminal()),
        colour_(StderrHasColour()),
        teller_(colour_, terminal_ ? TerminalWidth() : 100) {}

  int Run() {
    BlockSignals();
    actions::BecomeReaper();
    // Findings of an earlier part of a resumed run are not said again.
    if (const auto text = ReadWholeFile(env_, findings_path_, 256ULL << 20); text.ok()) {
      std::size_t from = 0;
      for (std::size_t end = 0; (end = text.value().find('\n', from)) != std::string::npos; from = end + 1) {
        const auto parsed = rules::ParseFindingUntrusted(text.value().substr(from, end - from));
        if (!parsed.ok()) continue;
        before_[parsed.value().first.id] = parsed.value().first.severity;
        teller_.Know(parsed.value().first);
      }
      findings_read_ = from;
    }
    const Result<pid_t> started = StartTraining();
    if (!started.ok()) {
      PrintError(started.status());
      RemoveUnusedRun();
      return started.status().code() == StatusCode::kNotFound ? 127 : 126;
    }
    training_ = started.value();

    for (const std::string& line : outputs_.Start(options_.run, options_.outputs)) Say(line);
    StartRuleWorker();
    if (options_.resume) runner_.Begin();
    while (!exit_) Turn();
    runner_.JobEnded();
    actions::TakeTerminalBack();
    EndGroup();
    outputs_.JobEnded();
    FinishRules();
    FinishDeliveries();
    FinishOutputs();
    return Conclude();
  }

 private:
  // ---- starting
  // ------------------------------------------------------------------------------------------------------

  void BlockSignals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&set, number);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    signal(SIGPIPE, SIG_IGN);
  }

  Result<pid_t> StartTraining() {
    Json session;
    session["run"] = options_.run;
    session["resume"] = options_.resume;
    session["config"] = Json::parse(options_.capture_json, nullptr, false);
    session["supervisor_pid"] = getpid();
    std::string python_path = options_.bootstrap;
    if (const char* before = std::getenv("PYTHONPATH"); before != nullptr && *before != 0)
      python_path += ":" + std::string(before);
    actions::ProcessOptions process;
    process.argv = options_.command;
    process.environment = {{"LUFF_SESSION", session.dump()}, {"PYTHONPATH", python_path}};
    process.foreground = true;
    return actions::StartProcess(process);
  }

  void StartRuleWorker() {
    if (options_.choices.empty() || rule_worker_starts_ >= kRuleWorkerStarts) return;
    ++rule_worker_starts_;
    int to[2];
    int from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) return;
    actions::ProcessOptions process;
    const char* imitate = std::getenv("LUFF_RULE_WORKER");  // tests put a process in its place that dies
    process.argv = {imitate != nullptr ? imitate : "/proc/self/exe",
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
    const Result<pid_t> started = actions::StartProcess(process);
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

  // ---- the loop
  // --------------------------------------------------------------------------------------------------------

  void Turn() {
    Wait(runner_.coordinator().busy() ? 20 : terminal_ ? 500 : 2000);
    ReadFindings();
    if (!exit_) Act();
    ShowStatus();
  }

  void TakeSignals() {
    signalfd_siginfo info{};
    while (read(signals_, &info, sizeof(info)) == sizeof(info)) {
      const int number = static_cast<int>(info.ssi_signo);
      if (number == SIGCHLD) continue;
      if (exit_) interrupted_ = true;
      if (!exit_) actions::SignalGroup(training_, number);
    }
    int status = 0;
    pid_t pid = 0;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      if (pid == training_) exit_ = actions::DecodeStatus(status);
      if (pid == rule_worker_) RuleWorkerEnded(actions::DecodeStatus(status));
      runner_.deliveries().Ended(pid, actions::DecodeStatus(status));
      if (const std::string said = outputs_.Ended(pid, actions::DecodeStatus(status)); !said.empty())
        Say(said);
    }
  }

  void HearRuleWorker() {
    char buffer[4096];
    ssize_t got = 0;
    while ((got = read(rule_out_, buffer, sizeof(buffer))) > 0) {
      heard_.append(buffer, static_cast<std::size_t>(got));
      heard_ns_ = env_.NowMonotonicNs();
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
      if (line.starts_with("note ")) HearNote(line.substr(5));
    }
    if (heard_.size() > (64U << 10)) heard_.clear();
  }

  // What a rule says of itself.
  void HearNote(const std::string& text) {
    try {
      const Json json = Json::parse(text);
      const auto rule = json.at("rule").get<std::string>();
      const std::string said = Escaped(json.at("text").get<std::string>());
      Say(fmt::format("luff: rule {}: {}\n", Escaped(rule),
                      Wrapped(said, 6, terminal_ ? TerminalWidth() : 100)));
      if (json.at("failed").get<bool>()) failed_rules_.insert(rule);
    } catch (const std::exception&) {  // no line of our rule worker: nothing to tell
    }
  }

  void RuleWorkerEnded(const actions::ExitState& state) {
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
    const Result<std::unique_ptr<File>> file = env_.Open(findings_path_, Env::OpenMode::kRead);
    if (!file.ok()) return;
    const Result<std::uint64_t> size = file.value()->Size();
    if (!size.ok() || size.value() <= findings_read_) return;
    std::string text(
        static_cast<std::size_t>(std::min<std::uint64_t>(size.value() - findings_read_, 16U << 20)), '\0');
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
    if (const std::string news = teller_.Tell(events); !news.empty()) Say(news);
  }

  void OnFinding(const std::string& line, std::vector<FindingEvent>* events) {
    const auto parsed = rules::ParseFindingUntrusted(line);
    if (!parsed.ok()) return;
    const auto& [finding, event] = parsed.value();
    if (const auto old = before_.find(finding.id); old != before_.end() && finding.severity <= old->second) {
      events->push_back(parsed.value());
      return;
    }
    const auto known =
        std::find_if(findings_.begin(), findings_.end(), [&](const auto& f) { return f.id == finding.id; });
    const bool is_new = known == findings_.end();
    const bool worse = !is_new && finding.severity > known->severity;
    if (is_new) {
      findings_.push_back(finding);
    } else {
      *known = finding;
    }
    events->push_back(parsed.value());
    runner_.OnFinding(finding, event, worse, train_step_);
    if (is_new || worse) AppendFinding(line);
  }

  void AppendFinding(const std::string& line) {
    if (options_.findings_file.empty()) return;
    std::FILE* file = std::fopen(options_.findings_file.c_str(), "a");
    const bool written = file != nullptr && std::fprintf(file, "%s\n", line.c_str()) >= 0;
    if ((file != nullptr && std::fclose(file) != 0) || !written) {
      if (!findings_file_failed_)
        Say(fmt::format("luff: findings cannot be written to {}\n", Escaped(options_.findings_file)));
      findings_file_failed_ = true;
    }
  }

  void Act() {
    std::vector<query::WorkerInfo> workers;
    std::vector<std::pair<std::uint32_t, format::AckRow>> acks;
    std::uint32_t world = 1;
    if (runner_.coordinator().busy()) {
      if (!trial_) {
        auto opened = query::Trial::Open(options_.run);
        if (opened.ok()) trial_ = std::move(opened).value();
      }
      if (trial_) {
        const Result<bool> news = trial_->Refresh();
        static_cast<void>(news);  // what could not be read now is read later; deadlines go on
        workers = trial_->workers();
        acks = trial_->Acks();
        world = trial_->world_size();
      }
    }
    const auto signal = runner_.Poll(env_.NowMonotonicNs(), train_step_, world, workers, acks);
    for (const std::string& line : runner_.TakeSayings()) Say(line);
    if (signal == actions::Coordinator::Signal::kNone) return;
    Say(fmt::format("luff: {}\n", runner_.coordinator().remark()));
    signalled_ = true;
    SignalAll(signal == actions::Coordinator::Signal::kKill ? SIGKILL : SIGTERM);
  }

  // The group, and orphans of the job that left it.
  void SignalAll(int number) {
    actions::SignalGroup(training_, number);
    for (const pid_t pid : actions::LivingChildren()) {
      if (pid != training_ && !IsOurs(pid)) kill(pid, number);
    }
  }

  bool IsOurs(pid_t pid) const {
    return pid == rule_worker_ || runner_.deliveries().Owns(pid) || outputs_.Owns(pid);
  }

  // ---- the end
  // ---------------------------------------------------------------------------------------------------------

  bool Leftovers() const {
    if (actions::SignalGroup(training_, 0)) return true;
    if (!runner_.coordinator().stopping()) return false;  // a daemon that left the group may live on
    const std::vector<pid_t> living = actions::LivingChildren();
    return std::any_of(living.begin(), living.end(), [&](pid_t pid) { return !IsOurs(pid); });
  }

  void EndGroup() {
    const std::int64_t begin = env_.NowMonotonicNs();
    int sent = 0;
    while (Leftovers()) {
      const std::int64_t passed = env_.NowMonotonicNs() - begin;
      if (sent == 0 && passed > kGroupGraceNs) SignalAll(sent = SIGTERM);
      if (sent == SIGTERM && passed > kGroupGraceNs + kGroupTermNs) SignalAll(sent = SIGKILL);
      if (passed > kGroupGraceNs + 2 * kGroupTermNs) break;  // e.g. a process that waits for a dead disk
      Wait(20);
    }
  }

  // Takes signals and ends of children, nothing else.
  void Wait(int wait_ms) {
    std::vector<pollfd> fds = {{signals_, POLLIN, 0}, {rule_out_, POLLIN, 0}};  // of -1 poll takes no notice
    runner_.deliveries().AddTo(&fds);
    poll(fds.data(), fds.size(), wait_ms);
    if (rule_out_ >= 0 && (fds[1].revents & (POLLIN | POLLHUP)) != 0) HearRuleWorker();
    TakeSignals();
  }

  void TellFinish() {
    const ssize_t written = write(rule_in_, "finish\n", 7);
    static_cast<void>(written);  // a worker that is dead is noticed by its end
  }

  void FinishRules() {
    const std::int64_t idle_ns = FinishIdleNs();
    finishing_ = true;
    if (rule_worker_ > 0) TellFinish();
    heard_ns_ = env_.NowMonotonicNs();
    while (rule_worker_ > 0) {
      Wait(200);
      ReadFindings();
      Act();
      if (env_.NowMonotonicNs() - heard_ns_ > idle_ns) {
        Say("luff: the rule worker does not come to an end and was killed\n");
        rules_failed_ = true;
        rule_worker_starts_ = kRuleWorkerStarts;
        kill(rule_worker_, SIGKILL);
        heard_ns_ = env_.NowMonotonicNs();
      }
    }
    ReadFindings();
  }

  // Who was begun to be told is told, within bounds; Ctrl-C leaves it.
  void FinishDeliveries() {
    actions::Deliveries& deliveries = runner_.deliveries();
    const std::int64_t begin = env_.NowMonotonicNs();
    bool said = false;
    bool cancelled = false;
    while (true) {
      Act();
      if (deliveries.idle()) break;
      const std::int64_t passed = env_.NowMonotonicNs() - begin;
      if (!said && passed > kDeliveryQuietNs) {
        said = true;
        Say(fmt::format("luff: waiting for {}; Ctrl-C leaves {}\n",
                        Plural(deliveries.unfinished(), "delivery", "deliveries"),
                        deliveries.unfinished() == 1 ? "it" : "them"));
      }
      if (!cancelled && (interrupted_ || passed > kDeliveryNs)) {
        cancelled = true;
        deliveries.Cancel(env_.NowMonotonicNs(), interrupted_ ? "interrupted" : "the job has ended");
      }
      if (passed > kDeliveryNs + 2 * kGroupTermNs) break;
      Wait(100);
    }
  }

  // Outputs write what is missing, as long as it takes while they go on; Ctrl-C leaves it.
  void FinishOutputs() {
    const std::int64_t begin = env_.NowMonotonicNs();
    bool said = false;
    while (outputs_.living()) {
      if (interrupted_) {
        for (const std::string& line : outputs_.Kill()) Say(line);
        break;
      }
      if (!said && env_.NowMonotonicNs() - begin > kDeliveryQuietNs)
        Say("luff: waiting for the outputs; Ctrl-C leaves them\n");
      said = said || env_.NowMonotonicNs() - begin > kDeliveryQuietNs;
      Wait(100);
    }
  }

  void RemoveUnusedRun() const {
    if (options_.resume) return;
    std::error_code error;
    std::filesystem::remove(options_.run, error);  // only when it is empty
  }

  int Conclude() {
    ClearStatus();
    const std::string run = Escaped(options_.run);
    const std::string command = Escaped(options_.command.front());
    auto opened = query::Trial::Open(options_.run);
    const std::string how = exit_->signal != 0 ? fmt::format("was ended by signal {} ({})", exit_->signal,
                                                             strsignal(exit_->signal))
                                               : fmt::format("failed with exit code {}", exit_->code);
    if (!opened.ok()) {
      const bool nothing = !env_.Exists(options_.run + "/run.json");
      if (nothing) RemoveUnusedRun();
      const std::string why = nothing ? "nothing was recorded: Luff saw no training step. It attaches to "
                                        "Python as PyTorch, Keras, TensorFlow, JAX, MXNet, XGBoost, "
                                        "LightGBM or scikit-learn begin to train; `python -I`, `-E` or `-S`, "
                                        "an emptied environment, or a "
                                        "Python that cannot import luff hide it"
                                      : fmt::format("the run cannot be read: {}", opened.status().message());
      if (exit_->code != 0) fmt::print(stderr, "luff: {} {}\n", command, how);
      fmt::print(stderr, "luff: {}\n", Wrapped(why, 6, terminal_ ? TerminalWidth() : 100));
      return exit_->code;
    }
    query::Trial& trial = *opened.value();
    const Result<bool> news = trial.Refresh();
    static_cast<void>(news);
    bool left_by_stop = signalled_;
    for (const query::WorkerInfo& worker : trial.workers()) {
      left_by_stop = left_by_stop || (worker.ended && worker.reason == format::EndReason::kStopped);
    }
    const bool stopped = runner_.coordinator().stop_decided() && left_by_stop;
    const std::uint64_t steps = trial.Steps(query::Mode::kTrain).size();
    WriteOutcome(stopped, how);
    TellLostSteps(trial);
    const std::string watched = fmt::format("{}, {}", Plural(steps, "step", "steps"),
                                            Plural(options_.choices.size(), "rule", "rules"));
    const std::string seen = fmt::format("{}, {}", watched, FindingsInShort(findings_));
    std::string partly = rules_failed_ ? " (rules did not see all of it)" : "";
    if (!failed_rules_.empty())
      partly += fmt::format(" ({} did not judge all of it)",
                            Escaped(fmt::format("{}", fmt::join(failed_rules_, ", "))));
    if (stopped) {
      const std::string others =
          findings_.size() > 1 ? fmt::format(", {} in all", Plural(findings_.size(), "finding", "findings"))
                               : "";
      fmt::print(stderr, "luff: stopped by {} after {}{}{} — run: {}\n", NameOf(runner_.stop_finding()),
                 watched, others, partly, run);
      return kExitStopped;
    }
    if (exit_->code != 0) {
      fmt::print(stderr, "luff: {} {} after {}{} — run: {}\n", command, how, seen, partly, run);
    } else {
      fmt::print(stderr, "luff: {}: {}{} — run: {}\n", findings_.empty() ? "ok" : "done", seen, partly, run);
    }
    return exit_->code;
  }

  // Whole steps that the disk refused: "no findings" says nothing of them.
  static void TellLostSteps(const query::Trial& trial) {
    for (const query::GapInfo& gap : trial.Gaps()) {
      const bool whole = gap.tensor.empty() && gap.collection.empty() && gap.count > 0 && gap.last_step >= 0;
      if (!whole || (gap.reason != "disk full" && gap.reason != "input/output error")) continue;
      fmt::print(stderr, "luff: steps {} to {} are not in the run, and no rule saw them: {}\n",
                 std::max<std::int64_t>(gap.first_step, 0), gap.last_step, gap.reason);
    }
  }

  void WriteOutcome(bool stopped, const std::string& how) {
    Json body;
    body["state"] = stopped ? "stopped" : exit_->code == 0 ? "completed" : "failed";
    body["exit_code"] = exit_->code;
    body["signal"] = exit_->signal;
    body["why"] = stopped ? fmt::format("{}: {}", runner_.stop_finding().rule, runner_.stop_finding().what)
                  : exit_->code == 0 ? ""
                                     : "the command " + how;
    body["findings"] = findings_.size();
    if (stopped) {
      body["train_step"] = runner_.coordinator().committed_step();
      body["remark"] = runner_.coordinator().remark();
    }
    store::ControlRecord record;
    record.kind = "outcome";
    record.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
    record.finding = stopped ? runner_.stop_finding().id : "";
    record.author = "luff run";
    const Result<std::uint64_t> written = store::WriteControl(options_.run, record);
    if (!written.ok())
      fmt::print(stderr, "luff: the outcome cannot be written into the run: {}\n",
                 written.status().message());
  }

  // ---- the terminal
  // ----------------------------------------------------------------------------------------------------

  void Say(const std::string& text) {
    ClearStatus();
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }

  void ClearStatus() {
    if (!status_.empty()) std::fputs("\r\033[2K", stderr);
    status_.clear();
  }

  // The cursor goes back to the first column, so that what the training prints next takes the line's place.
  void ShowStatus() {
    if (!terminal_ || exit_) return;
    const std::int64_t now = env_.NowMonotonicNs();
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
  actions::Runner runner_;
  LiveOutputs outputs_;
  const bool terminal_, colour_;
  int signals_ = -1, rule_in_ = -1, rule_out_ = -1;
  pid_t training_ = -1, rule_worker_ = -1;
  int rule_worker_starts_ = 0;
  bool finishing_ = false, rules_done_ = false, rules_failed_ = false, signalled_ = false,
       interrupted_ = false, findings_file_failed_ = false;
  std::optional<actions::ExitState> exit_;
  std::string heard_, status_;
  std::int64_t heard_ns_ = 0, status_ns_ = 0;
  long long train_step_ = -1;
  std::uint64_t findings_read_ = 0;
  std::map<std::string, rules::Severity> before_;  // by id: findings of an earlier part of a resumed run
  std::vector<rules::Finding> findings_;
  std::set<std::string> failed_rules_;
  Teller teller_;
  std::unique_ptr<query::Trial> trial_;
};

}  // namespace

int Supervise(const SuperviseOptions& options) {
  Supervisor supervisor(options);
  return supervisor.Run();
}

}  // namespace luff::cli

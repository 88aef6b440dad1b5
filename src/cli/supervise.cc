#include "cli/supervise.h"

#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/process_tree.h"
#include "cli/job_signals.h"
#include "cli/json.h"
#include "cli/log_keeper.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "cli/verdict.h"
#include "cli/watch.h"
#include "luff/base/env.h"
#include "luff/base/process.h"
#include "luff/store/trainings.h"

namespace luff::cli {
namespace {

constexpr std::int64_t kGroupGraceNs = 500 * kNsPerMs, kGroupTermNs = 3'000 * kNsPerMs;
constexpr std::size_t kAnnounced = 3;  // trainings named as they begin; one more says that later ones are not

std::string NewJobId() {
  std::uint64_t id[2] = {static_cast<std::uint64_t>(getpid()),
                         static_cast<std::uint64_t>(Env::Real().NowUnixNs())};
  [[maybe_unused]] const ssize_t random = getrandom(id, sizeof(id), GRND_NONBLOCK);
  return fmt::format("{:016x}{:016x}", id[0], id[1]);
}

class Supervisor final : public Job {
 public:
  explicit Supervisor(const SuperviseOptions& options)
      : options_(options),
        job_id_(NewJobId()),
        terminal_(StderrIsTerminal()),
        colour_(StderrHasColour()) {
    watches_.push_back(std::make_unique<Watch>(*this, options));
    for (const store::Training& earlier : store::ReadTrainings(options_.run, 0)) listed_ = earlier.number;
  }

  Supervised Run() {
    BecomeReaper();
    // Children that our process had before it became luff (`exec luff run` in a script) are not the job's.
    for (const BelowProcess& one : ProcessesBelow(getpid(), [this](pid_t pid) { return IsOurs(pid); }))
      inherited_.insert(one.pid);
    if (const JobSignals::Asked asked = signals_.Take(); asked.leave) {
      RemoveUnusedRun(options_);
      return {128 + asked.number, {}};
    }
    const Result<pid_t> started = StartTraining();
    if (!started.ok()) {
      PrintError(started.status());
      RemoveUnusedRun(options_);
      return {started.status().code() == StatusCode::kNotFound ? 127 : 126, {}};
    }
    training_ = started.value();
    signals_.Started(training_);

    watches_.front()->Start();
    while (!exit_) Turn();
    WaitForWorkers();
    EndJob();
    EndLog();
    const std::vector<BelowProcess> left = Processes();
    LookForTrainings();
    for (const auto& watch : watches_) {
      if (!watch->ended()) watch->End();
    }
    while (FinishThoseThatEnded()) Wait(100);
    TellOfThoseLeft(left);
    ClearStatus();
    const int code = Sum();
    if (exit_->signal != 0 && code == exit_->code) signals_.DieAsCommand(exit_->signal);
    Supervised supervised{code, {}};
    for (const auto& watch : watches_) supervised.runs.push_back(watch->run());
    return supervised;
  }

  // ---- What the trainings have in common ----

  // Deadlines do not pass while the job is stopped (Ctrl-Z).
  std::int64_t Now() noexcept override { return signals_.RunningNs(); }

  void Say(const std::string& text) override { SayAsItIs(EscapedLines(text)); }

  void SayAsItIs(const std::string& text) override {
    ClearStatus();
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }

  bool Signal(int number, const std::vector<pid_t>& of_training) override {
    if (watches_.size() == 1) return SignalAll(number), true;
    bool reached = false;
    const std::vector<BelowProcess> job = Processes();
    for (const pid_t pid : of_training) {
      if (std::none_of(job.begin(), job.end(), [pid](const BelowProcess& one) { return one.pid == pid; }))
        continue;
      std::vector<BelowProcess> below = ProcessesBelow(pid);
      below.push_back({pid, true});
      Send(number, below);
      reached = true;
    }
    return reached;
  }

 private:
  // ---- Starting ----

  Result<pid_t> StartTraining() {
    Json session;
    session["run"] = options_.run;
    session["resume"] = options_.resume;
    session["config"] = TryParseOrderedJson(options_.capture_json);
    session["job"] = job_id_;
    session["supervisor_pid"] = getpid();
    if (!options_.trial_json.empty()) session["trial"] = TryParseOrderedJson(options_.trial_json);
    std::string python_path = options_.bootstrap;
    if (const char* before = std::getenv("PYTHONPATH"); before != nullptr && *before != 0)
      python_path += ":" + std::string(before);
    ProcessOptions process;
    process.argv = options_.command;
    process.environment = {{"LUFF_SESSION", JsonText(session)}, {"PYTHONPATH", python_path}};
    process.in_our_group = &signals_.at_start();
    Result<LogFiles> opened = options_.log_bytes > 0 ? OpenLog(options_.run) : Result<LogFiles>(LogFiles());
    const bool full = !opened.ok() && opened.status().code() == StatusCode::kResourceExhausted;
    if (!opened.ok() && !full) return opened.status();
    if (full) PrintError(opened.status().WithContext("--log: the job prints as without it"));
    const LogFiles log = full ? LogFiles() : std::move(*opened);
    if (log.out.valid()) {
      process.stdout_fd = log.out.get();
      process.stderr_fd = log.err.get();
      // Into a file, Python would write in blocks of 8 KiB: what it prints would be seen late.
      if (std::getenv("PYTHONUNBUFFERED") == nullptr)
        process.environment.emplace_back("PYTHONUNBUFFERED", "1");
    }
    const Result<pid_t> started = StartProcess(process);
    if (started.ok() && log.out.valid()) KeepLog(*started, log.begin);
    return started;
  }

  // Starts the process that shows what the job prints.
  void KeepLog(pid_t job, const server::LogPlace& begin) {
    if (const Status kept = keeper_.Start(options_.run, job, options_.log_bytes, begin); kept.ok())
      inherited_.insert(keeper_.pid());
    else
      PrintError(kept.WithContext("what the job prints is in " + options_.run + "/log, but not shown"));
  }

  // Waits until all that the job has printed is shown: a pipe that nobody empties holds us as it would the
  // job.
  void EndLog() {
    if (!inherited_.contains(keeper_.pid())) return;
    ClearStatus();
    keeper_.JobEnded();
    while (!interrupted_ && inherited_.contains(keeper_.pid())) Wait(20);
  }

  // The job's first training has the run that was named; each other one that begins gets a watch of its own.
  void LookForTrainings() {
    for (const store::Training& training : store::ReadTrainings(options_.run, listed_)) {
      listed_ = training.number;
      if (training.job != job_id_ || training.run == options_.run) continue;
      SuperviseOptions own = options_;
      own.run = training.run;
      own.training = watches_.size() + 1;
      Status mine = Env::Real().MakeDirectories(own.run);
      if (mine.ok()) mine = TakeRun(&own);
      if (!mine.ok()) {
        Say(fmt::format("luff: a training is not watched: {}\n", mine.message()));
        continue;
      }
      if (own.training <= kAnnounced + 1)
        Say(fmt::format("luff: training {} of the job has a run of its own: {}{}\n", own.training, own.run,
                        own.training <= kAnnounced ? "" : " (later ones are not announced)"));
      for (LiveOutput& output : own.outputs) {
        output.training = own.training;
        if (output.format != kOtlp && output.format != kSync)
          output.directory += fmt::format("-{}", own.training);
      }
      std::erase_if(own.outputs, [this](const LiveOutput& output) {
        if (output.format == kSync) return false;  // one place for all trainings
        const Status usable = CheckLiveOutput(output, options_.resume);
        if (!usable.ok()) Say(fmt::format("luff: {}\n", usable.message()));
        return !usable.ok();
      });
      watches_.push_back(std::make_unique<Watch>(*this, own));
      watches_.back()->Start();
    }
  }

  // ---- The loop ----

  void Turn() {
    const bool busy =
        std::any_of(watches_.begin(), watches_.end(), [](const auto& watch) { return watch->busy(); });
    Wait(busy ? 20 : terminal_ || !options_.keys.empty() ? 500 : 2000);
    LookAtAll(!exit_);
    ShowStatus();
  }

  void LookAtAll(bool job_lives) {
    LookForTrainings();
    for (const auto& watch : watches_) {
      if (watch->ended()) continue;
      watch->Look(job_lives);
      if (watches_.size() > 1 && job_lives && watch->TrainingEnded()) watch->End();
    }
    FinishThoseThatEnded();
  }

  // Prints verdicts in the order of the trainings. Returns whether any has not come to its end.
  bool FinishThoseThatEnded() {
    bool left = false;
    for (std::size_t i = 0; i < watches_.size(); ++i) {
      if (!watches_[i]->ended() || verdicts_.contains(i)) continue;
      const std::optional<ExitState> exit = watches_.size() > 1 ? std::nullopt : exit_;
      if (watches_[i]->Finish(interrupted_, !exit_ || waiting_, exit) && !left) {
        ClearStatus();
        verdicts_[i] = watches_[i]->Conclude(exit);
      } else {
        left = true;
      }
    }
    return left;
  }

  // Waits at most `wait_ms`. Takes signals, ended children and the rule workers' lines, nothing else.
  void Wait(int wait_ms) {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    for (const auto& watch : watches_) watch->AddTo(&fds);
    poll(fds.data(), fds.size(), wait_ms);
    for (const auto& watch : watches_) watch->Hear();
    TakeSignals();
  }

  void TakeSignals() {
    const JobSignals::Asked asked = signals_.Take();
    interrupted_ = asked.leave || interrupted_;
    // The command is gone, so a scheduler's signal is forwarded to the workers that are left.
    if (asked.alone != 0 && workers_left_) {
      for (const BelowProcess& one : Processes()) kill(one.pid, asked.alone);
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
      if (pid == keeper_.pid() && (keeper_.follows() || DecodeStatus(status).code != 0)) {
        Say(fmt::format(
            "luff: what the job prints is not shown any more, since the process that did has ended; "
            "it goes on into {}/log\n",
            options_.run));
      }
      if (signals_.IsWitness(pid)) signals_.WitnessEnded();
      for (const auto& watch : watches_) {
        if (watch->Owns(pid)) watch->ChildEnded(pid, DecodeStatus(status));
      }
    }
    signals_.StopWithCommand([this] { ClearStatus(); });
  }

  // All processes of the job: everything that the command started, wherever it is in the process tree now.
  std::vector<BelowProcess> Processes() const {
    return ProcessesBelow(getpid(), [this](pid_t pid) { return IsOurs(pid); });
  }

  static void Send(int number, const std::vector<BelowProcess>& to) {
    for (const BelowProcess& one : to) {
      kill(one.pid, number);
      if (one.stopped) kill(one.pid, SIGCONT);
    }
  }

  void SignalAll(int number) const { Send(number, Processes()); }

  bool IsOurs(pid_t pid) const {
    return inherited_.contains(pid) || signals_.IsWitness(pid) ||
           std::any_of(watches_.begin(), watches_.end(),
                       [pid](const auto& watch) { return watch->Owns(pid); });
  }

  // ---- The end ----

  // The command has ended, but it left processes that record into a run (a launcher's workers). The job
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
      waiting_ = true;
      Wait(500);
      LookAtAll(true);
    }
    waiting_ = false;
  }

  // Total steps of recording workers; -1: no process of the job is left, or none records.
  std::int64_t StepsOfTheLiving() {
    if (Processes().empty()) return -1;
    std::int64_t sum = -1;
    for (const auto& watch : watches_) {
      const std::int64_t steps = watch->ended() ? -1 : watch->StepsOfTheLiving();
      if (steps >= 0) sum = std::max<std::int64_t>(sum, 0) + steps;
    }
    return sum;
  }

  // Those that were there when the command had ended and still are: what cleans up behind a process, as
  // Python's resource tracker, is gone by now.
  void TellOfThoseLeft(const std::vector<BelowProcess>& left) {
    const std::vector<BelowProcess> now = left.empty() ? left : Processes();
    const auto count = std::count_if(left.begin(), left.end(), [&](const BelowProcess& one) {
      return std::any_of(now.begin(), now.end(),
                         [&](const BelowProcess& other) { return other.pid == one.pid; });
    });
    if (count > 0)
      Say(fmt::format("luff: the command has left {} behind; no rule sees what they record from now on\n",
                      Plural(static_cast<std::size_t>(count), "process", "processes")));
  }

  // Ends all processes of a job that was asked to stop; otherwise leaves them alone, as without Luff.
  void EndJob() {
    if (std::none_of(watches_.begin(), watches_.end(),
                     [](const auto& watch) { return !watch->ended() && watch->stopping(); }))
      return;
    const std::int64_t begin = Now();
    int sent = 0;
    while (!Processes().empty()) {
      const std::int64_t passed = Now() - begin;
      if (sent == 0 && passed > kGroupGraceNs) SignalAll(sent = SIGTERM);
      if (sent == SIGTERM && passed > kGroupGraceNs + kGroupTermNs) SignalAll(sent = SIGKILL);
      if (passed > kGroupGraceNs + 2 * kGroupTermNs) break;  // e.g. a process that hangs on a dead disk
      Wait(50);
    }
  }

  // Prints what the trainings' verdicts come to, if there are several. Returns luff's exit code.
  int Sum() {
    int code = exit_->code;
    std::map<Verdict::Kind, std::size_t> kinds;
    for (const auto& [index, verdict] : verdicts_) {
      ++kinds[verdict.kind];
      if (verdict.kind == Verdict::Kind::kStopped) code = kExitStopped;
    }
    if (verdicts_.size() < 2) return code;
    TellAside(options_.run);
    std::vector<std::string> parts;
    for (const auto& [kind, what] : {std::pair{Verdict::Kind::kOk, "ok"},
                                     {Verdict::Kind::kNotOk, "not ok"},
                                     {Verdict::Kind::kUnjudged, "not judged"},
                                     {Verdict::Kind::kStopped, "stopped"},
                                     {Verdict::Kind::kFailed, "failed"},
                                     {Verdict::Kind::kNothing, "without a recorded step"}}) {
      if (kinds[kind] > 0) parts.push_back(fmt::format("{} {}", kinds[kind], what));
    }
    std::string text = fmt::format("luff: {} trainings: {}", verdicts_.size(), fmt::join(parts, ", "));
    if (exit_->code != 0) text += fmt::format("; {} {}", options_.command.front(), HowItEnded(*exit_));
    Say(text + "\n");
    return code;
  }

  // ---- The terminal ----

  void ClearStatus() {
    if (!status_.empty()) std::fputs("\r\033[2K", stderr);
    status_.clear();
  }

  std::string StatusText() {
    const std::size_t done = verdicts_.size();
    Watch& newest = **std::find_if(watches_.rbegin(), std::prev(watches_.rend()),
                                   [](const auto& watch) { return !watch->ended(); });
    const Progress& progress = newest.progress();
    const std::size_t width = StatusWidth();
    StatusParts parts;
    for (const auto& watch : watches_) parts.findings += watch->findings();
    parts.rules = newest.has_rules();
    parts.stopping = newest.stopping();
    if (watches_.size() > 1)
      parts.before = fmt::format("{} trainings, {} of them ended, newest at ", watches_.size(), done);
    return StatusLine(progress, parts, Env::Real().NowUnixNs(), width);
  }

  // The cursor returns to the first column, so that the training's next output overwrites the line.
  void ShowStatus() {
    if (!terminal_ || exit_ || !JobSignals::InForeground(STDERR_FILENO)) return;
    const std::int64_t now = Now();
    if (now - status_ns_ < 500 * kNsPerMs) return;
    status_ns_ = now;
    const std::string text = StatusText();
    if (text == status_) return;
    ClearStatus();
    status_ = text;
    fmt::print(stderr, "{}{}{}\r", colour_ ? "\033[2m" : "", text, colour_ ? "\033[0m" : "");
    std::fflush(stderr);
  }

  const SuperviseOptions& options_;
  const std::string job_id_;
  const bool terminal_, colour_;
  JobSignals signals_;
  LogKeeper keeper_;
  std::vector<std::unique_ptr<Watch>> watches_;  // of the trainings, in their order; never empty
  std::map<std::size_t, Verdict> verdicts_;      // by place in watches_
  std::uint32_t listed_ = 0;                     // the last training of the run's list that was read
  pid_t training_ = -1;
  std::set<pid_t> inherited_;
  bool workers_left_ = false, waiting_ = false, interrupted_ = false;
  std::optional<ExitState> exit_;
  std::string status_;
  std::int64_t status_ns_ = 0;
};

}  // namespace

Status TakeRun(SuperviseOptions* options) {
  LUFF_RETURN_IF_ERROR(store::CheckOwner(options->run));
  LUFF_ASSIGN_OR_RETURN(options->lock, store::SupervisorLock::Take(options->run));
  return Status::Ok();
}

Supervised Supervise(const SuperviseOptions& options) {
  Supervisor supervisor(options);
  return supervisor.Run();
}

}  // namespace luff::cli

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/format.h"
#include "base/interrupted.h"
#include "catalog/walk.h"
#include "cli/reading.h"
#include "cli/supervise.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "cli/watch.h"
#include "cli/watch_base.h"
#include "luff/base/env.h"
#include "luff/query/trial.h"

/// `luff watch RUN`: rules beside a training that attached itself. It judges, prints, stops (by commands that
/// the training obeys; it sends no signals) and says how the training ended, as `luff run` does.
namespace luff::cli {
namespace {

struct WatchOptions {
  std::string run, rules_text, set_text = "luff", on_finding = "warn";
  pid_t while_pid = 0;
  bool detach = false;
};

volatile std::sig_atomic_t g_leave = 0;

void Leave(int) { g_leave = 1; }

class Beside final : public Job {
 public:
  std::int64_t Now() noexcept override { return Env::Real().NowMonotonicNs(); }
  void Say(const std::string& text) override { SayAsItIs(EscapedLines(text)); }
  void SayAsItIs(const std::string& text) override {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }
  bool Signal(int, const std::vector<pid_t>&) override { return false; }
};

void Turn(Watch* watch, int wait_ms) {
  std::vector<pollfd> fds;
  watch->AddTo(&fds);
  poll(fds.data(), fds.size(), wait_ms);
  watch->Hear();
  int status = 0;
  pid_t pid = 0;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
    if (watch->Owns(pid)) watch->ChildEnded(pid, DecodeStatus(status));
  }
}

// Of a training that had ended before: what `luff check` says.
int ExitCodeOf(const Verdict& verdict, bool ended) {
  if (ended && verdict.stop_found) return kExitStopFindings;
  switch (verdict.kind) {
    case Verdict::Kind::kOk:
    case Verdict::Kind::kUnjudged: return kExitOk;
    case Verdict::Kind::kStopped: return kExitStopFindings;
    case Verdict::Kind::kNothing: return kExitUsage;
    default: return kExitFindings;
  }
}

Result<SuperviseOptions> Prepare(const WatchOptions& wanted) {
  SuperviseOptions options;
  options.keys_of_run = true;
  LUFF_ASSIGN_OR_RETURN(options.set, rules::ParseParameterSet(wanted.set_text));
  LUFF_ASSIGN_OR_RETURN(options.choices, rules::ParseChoices(wanted.rules_text, options.set));
  if (wanted.on_finding != "warn" && wanted.on_finding != "stop") {
    return InvalidArgument(
        fmt::format("'{}' is no answer to a finding; there are warn and stop", wanted.on_finding));
  }
  options.stop_on_finding = wanted.on_finding == "stop";
  LUFF_ASSIGN_OR_RETURN(const auto trial, query::Trial::Open(wanted.run));
  if (!Env::Real().Exists(wanted.run + "/run.json"))
    return FailedPrecondition("rules can run beside Luff's own runs only: " + wanted.run);
  options.run = trial->path();
  options.job = "a training";
  options.resume = Env::Real().Exists(wanted.run + "/rules/luff/findings.jsonl");
  LUFF_RETURN_IF_ERROR(TakeRun(&options));
  const query::Trial::Outcome outcome = trial->outcome();
  options.ended = outcome.state != "running" && !trial->workers().empty();
  if (options.ended && wanted.while_pid == 0)
    fmt::print(stderr,
               "luff: the training has ended ({}{}{}); what rules have not seen of it is judged now\n",
               Escaped(outcome.state), outcome.why.empty() ? "" : ": ", Escaped(outcome.why));
  return options;
}

int WatchToTheEnd(const SuperviseOptions& options, pid_t while_pid) {
  struct sigaction leave{};
  leave.sa_handler = Leave;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &leave, nullptr);
  signal(SIGPIPE, SIG_IGN);
  const std::uint64_t began = while_pid > 0 ? ProcessStartTicks(static_cast<std::uint64_t>(while_pid)) : 0;
  const auto is_over = [&] {
    return while_pid > 0 && (began == 0 || ProcessStartTicks(static_cast<std::uint64_t>(while_pid)) != began);
  };
  Beside job;
  Watch watch(job, options);
  watch.Start();
  while (!options.ended && g_leave == 0 && !watch.TrainingEnded() && !is_over()) {
    Turn(&watch, watch.busy() ? 20 : 200);
    watch.Look(true);
  }
  watch.End();
  while (!watch.Finish(g_leave != 0, false, std::nullopt)) {
    Turn(&watch, 100);
    watch.Look(false);
  }
  return ExitCodeOf(watch.Conclude(std::nullopt), options.ended);
}

/// Goes on in a process of its own, which is nobody's child and in no one's session. Returns in both: true in
/// the new one.
bool Detached() {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child != 0) return false;
  setsid();
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO}) {
    if (nothing >= 0) dup2(nothing, fd);
  }
  return true;
}

int WatchRun(const WatchOptions& wanted) {
  // Before the options: the supervisor's lock belongs to the process that takes it.
  int ready[2] = {-1, -1};
  if (wanted.detach) {
    if (pipe2(ready, O_CLOEXEC) != 0) return PrintError(IoError("no pipe")), kExitUsage;
    if (!Detached()) {
      close(ready[1]);
      char code = kExitUsage;
      const ssize_t got = Uninterrupted([&] { return read(ready[0], &code, 1); });
      return got == 1 ? code : kExitUsage;
    }
    close(ready[0]);
  }
  const Result<SuperviseOptions> options = Prepare(wanted);
  if (!options.ok()) PrintError(options.status());
  if (wanted.detach) {
    const char code = options.ok() ? kExitOk : kExitUsage;
    [[maybe_unused]] const ssize_t told = write(ready[1], &code, 1);
    close(ready[1]);
  }
  return options.ok() ? WatchToTheEnd(*options, wanted.while_pid) : kExitUsage;
}

// The URL of a bucket, and not of one of its runs.
void ExitIfRun(const std::string& url) {
  const std::string last = url.substr(url.rfind('/') + 1);
  const bool id = last.size() == 32 && last.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (id || last.starts_with('@'))
    ExitWithError(InvalidArgument(
        "luff watch judges all runs of a bucket; give its URL without the run, or `luff check --follow` for "
        "one: " +
        url));
}

}  // namespace

void AddWatch(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "watch", "Rules beside a training that attached itself, until it ends; or beside all of a directory");
  auto options = std::make_shared<WatchOptions>();
  auto base = std::make_shared<WatchBaseOptions>();
  verb->add_option("RUN", options->run,
                   "The run: its directory, its name, or @1 for the newest (luff runs); or a directory of "
                   "runs, or the URL of a bucket, all of which are judged by this one process")
      ->required();
  verb->add_option("--rules", options->rules_text, "NAME[:parameter=value...],... or none; default: all");
  verb->add_option("--parameters", options->set_text, "Parameter set: luff (default) or original");
  verb->add_option("--on-finding", options->on_finding,
                   "warn (default), or stop: a finding of severity stop asks the training to end");
  verb->add_option("--while", options->while_pid, "Ends with the process of this number, too");
  verb->add_flag("--detach", options->detach, "Goes on in the background, and prints to stderr there");
  verb->footer(
      "Exit code: 0 ok, 1 findings or a failed training, 3 stopped by a finding, 2 not a run. Of a training "
      "that\n"
      "has ended, what rules have not seen is judged, its outcome stays as it is, and 3 means a finding of "
      "severity\n"
      "stop, as of luff check. Of a directory or a bucket: 0; 2 wrong usage, or the bucket refused;\n"
      "6 it did not answer when this began: run it again.");
  verb->add_option("--config", base->config, "DIR: configuration file, for its rules, [stop] and actions");
  verb->add_option(
      "--shard", base->shard,
      "DIR: I/N, judge only every N-th run, by its id: one of N processes, each with an I of its own");
  verb->add_option("--key", base->key,
                   "DIR: file of the key that signs the stops it asks other supervisors for");
  verb->add_option("--state", base->state,
                   "DIR: where to keep what was said and judged; default: DIR/.luff-watch");
  verb->add_option("--metrics", base->metrics, "DIR: answer /metrics and /ready at this ADDRESS:PORT");
  verb->add_option(
      "--metrics-token", base->metrics_token,
      "DIR: file with the token that they must send, made if absent; default: $LUFF_HOME/metrics.token");
  verb->add_flag(
      "--metrics-unencrypted", base->metrics_unencrypted,
      "DIR: --metrics may be an address that others reach, to which the token travels unencrypted");
  verb->add_flag("--earlier", base->earlier,
                 "DIR: also judge runs that had ended before it was watched first");
  verb->add_flag("--drain", base->drain, "DIR: leave when no run is live");
  verb->callback([verb, options, base] {
    base->bucket = IsUrl(options->run);
    if (base->bucket)
      ExitIfRun(options->run);
    else
      FindOwnRunOrExit(&options->run);
    std::error_code ignored;
    const bool many = base->bucket || (std::filesystem::is_directory(options->run, ignored) &&
                                       catalog::StampOf(options->run) == 0);
    if (!many) {
      for (const char* of_many : {"--config", "--shard", "--state", "--metrics", "--metrics-token",
                                  "--metrics-unencrypted", "--earlier", "--drain"}) {
        if (verb->count(of_many) > 0)
          ExitWithError(InvalidArgument(
              fmt::format("{} is for a directory of runs, and this is a run: {}", of_many, options->run)));
      }
    } else {
      if (options->detach || options->while_pid != 0)
        ExitWithError(InvalidArgument(
            "--detach and --while are for a run, and this is a directory of runs: " + options->run));
      base->base = options->run;
      base->rules_text = options->rules_text;
      if (verb->count("--parameters") > 0) base->set_text = options->set_text;
      if (verb->count("--on-finding") > 0) base->on_finding = options->on_finding;
      ExitWith(WatchBase(*base));
    }
    ExitWith(WatchRun(*options));
  });
}

}  // namespace luff::cli

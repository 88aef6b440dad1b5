#include "cli/live_outputs.h"

#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/format.h"
#include "base/python_child.h"
#include "cli/config_bucket.h"
#include "cli/terminal.h"
#include "keys/host_seal.h"
#include "luff/base/env.h"

namespace luff::cli {
namespace {

constexpr std::size_t kOwnerDigits = 16;

UploadEnds EndsOf(const LiveOutput& output) {
  UploadEnds ends;
  ends.url = output.directory;
  ends.config = output.config;
  ends.job = output.job;
  ends.training = static_cast<std::int64_t>(output.training);
  return ends;
}

std::string Again(const std::string& run, const LiveOutput& output) {
  if (output.format == kOtlp)
    return fmt::format("`luff metrics {} --otlp` pushes the last values", Escaped(run));
  if (output.format == kSync)
    return fmt::format("`{}` uploads what is missing", UploadByHand(run, EndsOf(output)));
  return fmt::format("`luff export {} --to {} {}` writes what is missing", Escaped(run), output.format,
                     Escaped(output.directory));
}

/// What else an upload that is away keeps from happening.
std::string_view Silence(const LiveOutput& output, bool job_lives) {
  if (!job_lives || output.job.empty()) return "";
  return "; until then this host and the others cannot agree upon anything";
}

// The upload asks this very command for the card of the run.
Variables ThisCommand() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || std::getenv("LUFF_EXECUTABLE") != nullptr) return {};
  return {{"LUFF_EXECUTABLE", path.string()}};
}

// What can be known of an upload without asking the network: the URL, and what is installed.
Status CheckUpload(const LiveOutput& output) {
  const std::string& url = output.directory;
  LUFF_RETURN_IF_ERROR(CheckEncryptionBy(output.environment, url));
  LUFF_ASSIGN_OR_RETURN(std::vector<std::string> command, PythonCommand("sync"));
  command.insert(command.end(), {"--try", "--", ".", url});
  ProcessOptions process;
  process.argv = std::move(command);
  process.environment = output.environment;
  LUFF_ASSIGN_OR_RETURN(const pid_t child, StartProcess(process));
  if (DecodeStatus(WaitFor(child)).code == 0) return Status::Ok();
  return InvalidArgument("--sync cannot be used, as said above: " + url);
}

}  // namespace

Status CheckLiveOutput(const LiveOutput& output, bool resume) {
  Env& env = Env::Real();
  if (output.format == kSync) return CheckUpload(output);
  if (output.format == kOtlp || !env.Exists(output.directory)) return Status::Ok();
  const auto names = env.List(output.directory);
  if (!names.ok())
    return names.status().WithContext("--" + output.format + " names something that is no directory");
  if (names->empty() || (resume && env.Exists(output.directory + "/luff-export.json"))) return Status::Ok();
  return FailedPrecondition("--" + output.format +
                            " names a directory that is not empty; give another one: " + output.directory);
}

Status LiveOutputs::Launch(Child* child, std::int64_t now_ns) {
  const LiveOutput& output = child->output;
  ProcessOptions process;
  process.argv = {"/proc/self/exe", "export", "--to", output.format,   "--follow",
                  "--until-closed", "--",     run_,   output.directory};
  if (output.format == kOtlp)
    process.argv = {"/proc/self/exe", "metrics", "--otlp", "--beside-job", "--", run_};
  if (output.format == kSync) {
    LUFF_ASSIGN_OR_RETURN(process.argv, PythonCommand("sync"));
    if (output.keep_local) process.argv.push_back(fmt::format("--keep-local={}", *output.keep_local));
    if (!output.job.empty()) process.argv.push_back("--job=" + keys::JobIdOf(output.job, output.training));
    process.argv.push_back("--owner=" + child->owner);
    if (child->ends.ends > 0) process.argv.emplace_back("--again");
    process.argv.insert(process.argv.end(),
                        {"--until-closed", "--config=" + output.config, "--", run_, output.directory});
    process.environment = ThisCommand();
    process.environment.insert(process.environment.end(), output.environment.begin(),
                               output.environment.end());
  }
  int to[2];
  if (pipe2(to, O_CLOEXEC) != 0) return Status(StatusCode::kIo, "no pipe can be made");
  process.new_session = true;  // Ctrl-C is meant for the training
  process.stdin_fd = to[0];
  const Result<pid_t> started = StartProcess(process);
  close(to[0]);
  if (!started.ok()) {
    close(to[1]);
    return started.status();
  }
  if (child->to >= 0) close(child->to);  // of the one before
  child->pid = *started;
  child->to = to[1];
  child->begun_ns = now_ns;
  return Status::Ok();
}

std::vector<std::string> LiveOutputs::Start(const std::string& run, const std::vector<LiveOutput>& wanted,
                                            std::int64_t now_ns) {
  std::vector<std::string> sayings;
  run_ = run;
  for (const LiveOutput& output : wanted) {
    Child child;
    child.output = output;
    if (output.format == kSync) {
      ForgetUploadEnds(run);
      child.owner = keys::NewInstance().substr(0, kOwnerDigits);
      child.ends = EndsOf(output);
    }
    if (const Status started = Launch(&child, now_ns); started.ok()) {
      children_.push_back(std::move(child));
    } else {
      sayings.push_back(fmt::format("luff: the {} output cannot be started: {}; {}\n", output.format,
                                    started.message(), Again(run, output)));
    }
  }
  return sayings;
}

// A directory with anything in it, but a run, is one that a training refuses to record into.
void LiveOutputs::Note(Child* child) {
  if (child->noted || !Env::Real().Exists(run_ + "/run.json")) return;
  child->noted = true;
  static_cast<void>(WriteUploadEnds(run_, child->ends));  // of a full disk others tell
}

std::vector<std::string> LiveOutputs::Look(std::int64_t now_ns) {
  std::vector<std::string> sayings;
  for (Child& child : children_) {
    Note(&child);
    if (!child.again_ns || now_ns < *child.again_ns) continue;
    child.again_ns.reset();
    const Status started = Launch(&child, now_ns);
    if (started.ok()) continue;
    child.begun_ns = now_ns;
    if (std::string said = TryLater(&child, std::string(started.message()), now_ns); !said.empty())
      sayings.push_back(std::move(said));
  }
  return sayings;
}

bool LiveOutputs::Owns(pid_t pid) const noexcept {
  return std::any_of(children_.begin(), children_.end(),
                     [&](const Child& child) { return child.pid == pid; });
}

bool LiveOutputs::living() const noexcept {
  return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.pid > 0; });
}

bool LiveOutputs::uploading() const noexcept {
  return std::any_of(children_.begin(), children_.end(), [](const Child& child) {
    return child.output.format == kSync && (child.pid > 0 || child.again_ns);
  });
}

std::int64_t LiveOutputs::cpu_ns() const noexcept {
  std::int64_t sum = 0;
  for (const Child& child : children_) {
    clockid_t clock = 0;
    timespec used{};
    if (child.pid <= 0 || clock_getcpuclockid(child.pid, &clock) != 0 || clock_gettime(clock, &used) != 0)
      continue;
    sum += used.tv_sec * 1'000'000'000LL + used.tv_nsec;
  }
  return sum;
}

std::string LiveOutputs::Ended(pid_t pid, const ExitState& state, std::int64_t now_ns) {
  for (Child& child : children_) {
    if (child.pid != pid) continue;
    child.pid = -1;
    if (child.output.format == kSync && child.to >= 0 && MayBeginAgain(state))
      return TryLater(&child, EndText(state), now_ns);
    // It was told to end while the run went on, and has not noticed that the run has ended meanwhile.
    if (child.output.format == kSync && state.signal == 0 && state.code == kUploadToldToEnd &&
        !std::exchange(child.rest, true)) {
      ++child.ends.ends;  // so that it knows of those before
      const bool begun = Launch(&child, now_ns).ok();
      Close(true);
      if (begun) return "";
    }
    if (state.code == 0 && state.signal == 0) return "";
    if (state.code != kUploadTakenOver) IsOver(&child, EndText(state));
    return fmt::format("luff: the {} output has ended ({}); {}{}\n", child.output.format, EndText(state),
                       Again(run_, child.output), Silence(child.output, child.to >= 0));
  }
  return "";
}

std::string LiveOutputs::TryLater(Child* child, const std::string& how, std::int64_t now_ns) {
  const auto pause = child->tries.After(now_ns - child->begun_ns);
  if (pause) child->again_ns = now_ns + *pause;
  ++child->ends.ends;
  child->ends.last = how;
  child->ends.unix_ns = Env::Real().NowUnixNs();
  child->ends.again = pause.has_value();
  child->noted = false;
  Note(child);
  if (!pause)
    return fmt::format(
        "luff: the {} output has ended {} times, the last time so: {}; it is not begun again: {}{}\n",
        child->output.format, child->ends.ends, how, Again(run_, child->output),
        Silence(child->output, true));
  if (!child->tries.first()) return "";
  return fmt::format("luff: the {} output has ended ({}) and is begun again\n", child->output.format, how);
}

void LiveOutputs::IsOver(Child* child, const std::string& how) {
  if (child->output.format != kSync || child->ends.ends == 0) return;
  child->ends.last = how;
  child->ends.unix_ns = Env::Real().NowUnixNs();
  child->ends.again = false;
  child->noted = false;
  Note(child);
}

void LiveOutputs::Close(bool uploads) noexcept {
  for (Child& child : children_) {
    if ((child.output.format == kSync) != uploads) continue;
    if (child.to >= 0) close(child.to);
    child.to = -1;
  }
}

void LiveOutputs::JobEnded() noexcept { Close(false); }

std::vector<std::string> LiveOutputs::RunEnded(std::int64_t now_ns) {
  for (Child& child : children_)
    if (child.again_ns) child.again_ns = now_ns;
  std::vector<std::string> sayings = Look(now_ns);
  for (Child& child : children_) {
    if (!child.again_ns) continue;
    child.again_ns.reset();
    IsOver(&child, child.ends.last);
    sayings.push_back(fmt::format("luff: the {} output is not complete; {}\n", child.output.format,
                                  Again(run_, child.output)));
  }
  Close(true);
  return sayings;
}

std::vector<std::string> LiveOutputs::Kill() {
  std::vector<std::string> sayings;
  for (Child& child : children_) {
    if (child.pid <= 0) continue;
    kill(child.pid, SIGKILL);
    IsOver(&child, fmt::format("signal {}", SIGKILL));
    sayings.push_back(fmt::format("luff: the {} output is not complete; {}\n", child.output.format,
                                  Again(run_, child.output)));
  }
  return sayings;
}

}  // namespace luff::cli

#include "cli/live_outputs.h"

#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/format.h"
#include "base/python_child.h"
#include "cli/config_bucket.h"
#include "cli/terminal.h"
#include "keys/host_seal.h"
#include "luff/base/env.h"

namespace luff::cli {
namespace {

std::string Again(const std::string& run, const LiveOutput& output) {
  if (output.format == kOtlp)
    return fmt::format("`luff metrics {} --otlp` pushes the last values", Escaped(run));
  if (output.format == kSync)
    return fmt::format(
        "`luff sync {} {}{}{}{}` uploads what is missing", Escaped(run), Escaped(output.directory),
        output.config.empty() ? "" : " --config " + Escaped(output.config),
        output.job.empty() ? "" : " --job '" + Escaped(output.job) + "'",
        output.job.empty() || output.training == 1 ? "" : fmt::format(" --training {}", output.training));
  return fmt::format("`luff export {} --to {} {}` writes what is missing", Escaped(run), output.format,
                     Escaped(output.directory));
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

std::vector<std::string> LiveOutputs::Start(const std::string& run, const std::vector<LiveOutput>& wanted) {
  std::vector<std::string> sayings;
  run_ = run;
  for (const LiveOutput& output : wanted) {
    int to[2];
    if (pipe2(to, O_CLOEXEC) != 0) continue;
    ProcessOptions process;
    process.argv = {"/proc/self/exe", "export", "--to", output.format,   "--follow",
                    "--until-closed", "--",     run,    output.directory};
    if (output.format == kOtlp)
      process.argv = {"/proc/self/exe", "metrics", "--otlp", "--beside-job", "--", run};
    if (output.format == kSync) {
      auto command = PythonCommand("sync");
      if (!command.ok()) {
        close(to[0]);
        close(to[1]);
        sayings.push_back(fmt::format("luff: the run is not uploaded: {}\n", command.status().message()));
        continue;
      }
      process.argv = std::move(command).value();
      if (output.keep_local) process.argv.push_back(fmt::format("--keep-local={}", *output.keep_local));
      if (!output.job.empty()) process.argv.push_back("--job=" + keys::JobIdOf(output.job, output.training));
      process.argv.insert(process.argv.end(),
                          {"--until-closed", "--config=" + output.config, "--", run, output.directory});
      process.environment = ThisCommand();
      process.environment.insert(process.environment.end(), output.environment.begin(),
                                 output.environment.end());
    }
    process.new_session = true;  // Ctrl-C is meant for the training
    process.stdin_fd = to[0];
    const Result<pid_t> started = StartProcess(process);
    close(to[0]);
    if (!started.ok()) {
      close(to[1]);
      sayings.push_back(fmt::format("luff: the {} output cannot be started: {}; {}\n", output.format,
                                    started.status().message(), Again(run, output)));
      continue;
    }
    children_.push_back({output, *started, to[1]});
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
  return std::any_of(children_.begin(), children_.end(),
                     [](const Child& child) { return child.pid > 0 && child.output.format == kSync; });
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

std::string LiveOutputs::Ended(pid_t pid, const ExitState& state) {
  for (Child& child : children_) {
    if (child.pid != pid) continue;
    child.pid = -1;
    if (state.code == 0) return "";
    const bool silent = child.to >= 0 && !child.output.job.empty();
    return fmt::format(
        "luff: the {} output has ended ({}); {}{}\n", child.output.format,
        state.signal != 0 ? fmt::format("signal {}", state.signal) : fmt::format("exit code {}", state.code),
        Again(run_, child.output),
        silent ? "; until then this host and the others cannot agree upon anything" : "");
  }
  return "";
}

void LiveOutputs::Close(bool uploads) noexcept {
  for (Child& child : children_) {
    if ((child.output.format == kSync) != uploads) continue;
    if (child.to >= 0) close(child.to);
    child.to = -1;
  }
}

void LiveOutputs::JobEnded() noexcept { Close(false); }

void LiveOutputs::RunEnded() noexcept { Close(true); }

std::vector<std::string> LiveOutputs::Kill() {
  std::vector<std::string> sayings;
  for (const Child& child : children_) {
    if (child.pid <= 0) continue;
    kill(child.pid, SIGKILL);
    sayings.push_back(fmt::format("luff: the {} output is not complete; {}\n", child.output.format,
                                  Again(run_, child.output)));
  }
  return sayings;
}

}  // namespace luff::cli

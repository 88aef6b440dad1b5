#include "cli/watch_base.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "base/format.h"
#include "base/python_child.h"
#include "base/text_escape.h"
#include "cli/config_file.h"
#include "cli/metrics_token.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/serve.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/base/env.h"
#include "luff/base/process.h"
#include "rules/own/own_child.h"
#include "rules/own/own_spec.h"
#include "server/net.h"
#include "watch/answers.h"
#include "watch/door.h"
#include "watch/fleet.h"

namespace luff::cli {
namespace {

constexpr double kLeaveSeconds = 7;  // of the ten that a signal leaves

volatile std::sig_atomic_t g_ends = 0;

void End(int) { g_ends = g_ends + 1; }

void SayLine(const std::string& line) {
  fmt::print(stderr, "{}{}", EscapedLines(line), line.ends_with('\n') ? "" : "\n");
  std::fflush(stderr);
}

// Each run has a handful of open files.
void RaiseFileLimit() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= files.rlim_max) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

Status ParseShard(const std::string& text, watch::FleetOptions* options) {
  if (text.empty()) return Status::Ok();
  const std::size_t slash = text.find('/');
  const auto number = [](std::string_view digits) -> std::uint32_t {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() && !digits.empty() ? value
                                                                                           : UINT32_MAX;
  };
  if (slash != std::string::npos) {
    options->shard = number(std::string_view(text).substr(0, slash));
    options->shards = number(std::string_view(text).substr(slash + 1));
  }
  if (slash == std::string::npos || options->shards == 0 || options->shards > 16 ||
      options->shard >= options->shards)
    return InvalidArgument(
        fmt::format("--shard is '{}', expected I/N, N from 1 to 16 and I below N: 0/4", Escaped(text)));
  return Status::Ok();
}

/// Which rules judge, with which parameters, in whatever order and from whatever folder: a text for each.
std::vector<std::string> RuleTexts(const std::vector<rules::Choice>& choices) {
  constexpr std::size_t kMost = 4 << 10;  // all together are a command line
  std::vector<std::string> texts;
  for (const rules::Choice& choice : choices) {
    const rules::RuleSpec& spec = *choice.spec;
    const std::string& source = spec.source.empty() ? spec.name : spec.source;
    std::string text = fmt::format("{} {}", source.substr(source.rfind('/') + 1), spec.version);
    for (const auto& [name, value] : choice.parameters) text += fmt::format(" {}={}", name, value);
    texts.push_back(text.substr(0, kMost));
  }
  std::ranges::sort(texts);
  return texts;
}

// Runs of a bucket are judged as copies of them, which a process of its own makes.
Status OpenDoor(const WatchBaseOptions& wanted, watch::FleetOptions* options) {
  if (options->runs.stop_on_finding && options->runs.key == nullptr)
    return InvalidArgument(
        "a job is stopped through its bucket by a signed request: --on-finding stop needs --key FILE "
        "(docs/security.md)");
  auto command = PythonCommand("judge");
  if (!command.ok()) return command.status().WithContext("a bucket is read by Luff's Python package");
  command->push_back(fmt::format("--shard={}/{}", options->shard, options->shards));
  if (!wanted.state.empty())
    command->push_back("--state=" + std::filesystem::absolute(wanted.state).lexically_normal().string());
  if (wanted.earlier) command->emplace_back("--earlier");
  if (wanted.drain) command->emplace_back("--drain");
  if (options->runs.stop_on_finding) command->emplace_back("--stops");
  for (const std::string& text : RuleTexts(options->runs.choices)) command->push_back("--rule=" + text);
  command->emplace_back("--");
  command->push_back(wanted.base);
  RaiseFileLimit();
  LUFF_ASSIGN_OR_RETURN(auto opened, watch::BucketDoor::Open(std::move(command).value()));
  const std::shared_ptr<watch::BucketDoor> door = std::move(opened);
  options->base = door->base();
  options->state = door->state();
  options->earlier = true;  // which runs are judged the door knows
  options->door = door;
  options->runs.ask = [door](const std::string& run_id, const std::string& object) {
    return door->Request(run_id, object);
  };
  return Status::Ok();
}

Result<watch::FleetOptions> OptionsOf(const WatchBaseOptions& wanted) {
  watch::FleetOptions options;
  FileConfig file;
  if (!wanted.config.empty()) {
    LUFF_ASSIGN_OR_RETURN(file, ReadConfigFile(wanted.config));
  }
  const std::string set_text = !wanted.set_text.empty() ? wanted.set_text : file.parameters.value_or("luff");
  LUFF_ASSIGN_OR_RETURN(const rules::ParameterSet set, rules::ParseParameterSet(set_text));
  rules::ShareProcessesOfOwnRules(true);
  LUFF_ASSIGN_OR_RETURN(
      options.runs.choices,
      rules::ParseChoices(!wanted.rules_text.empty() ? wanted.rules_text : file.rules.value_or(""), set));
  const std::string on_finding =
      !wanted.on_finding.empty() ? wanted.on_finding : file.on_finding.value_or("warn");
  if (on_finding != "warn" && on_finding != "stop")
    return InvalidArgument(
        fmt::format("'{}' is no answer to a finding; there are warn and stop", Escaped(on_finding)));
  options.runs.stop_on_finding = on_finding == "stop";
  options.runs.stop = file.stop;
  options.runs.actions = file.actions;
  options.runs.keys = file.keys;
  if (!wanted.key.empty()) {
    LUFF_ASSIGN_OR_RETURN(keys::SecretKey key, keys::SecretKey::Read(wanted.key));
    options.runs.key = std::make_shared<const keys::SecretKey>(std::move(key));
  }
  if (std::ranges::any_of(file.actions, [](const auto& spec) { return actions::OnlyTells(spec.kind); })) {
    LUFF_ASSIGN_OR_RETURN(options.runs.notifier, FindNotifier());
  }
  LUFF_RETURN_IF_ERROR(ParseShard(wanted.shard, &options));
  if (wanted.bucket) return options;  // the door says where copies and state are
  options.base = std::filesystem::absolute(wanted.base).lexically_normal().string();
  while (options.base.size() > 1 && options.base.back() == '/') options.base.pop_back();
  const std::string part =
      options.shards > 1 ? fmt::format("{}-of-{}", options.shard, options.shards) : "all";
  options.state = wanted.state.empty() ? options.base + "/.luff-watch/" + part
                                       : std::filesystem::absolute(wanted.state).lexically_normal().string();
  options.earlier = wanted.earlier;
  return options;
}

/// A bucket that does not answer is no wrong usage: who keeps this process is to start it again.
int CodeOfDoor(const Status& status) {
  const bool away =
      status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded;
  return away ? kExitAgain : kExitUsage;
}

void Reap(watch::Fleet* fleet) {
  fleet->ReapChildren();
  // What others have left to us.
  int status = 0;
  siginfo_t one{};
  // Who has ended is looked at first: the process of a rule is waited for by that rule, when it is asked
  // next.
  while (waitid(P_ALL, 0, &one, WEXITED | WNOHANG | WNOWAIT) == 0 && one.si_pid > 0 &&
         !rules::IsProcessOfOwnRule(one.si_pid)) {
    const pid_t pid = waitpid(one.si_pid, &status, WNOHANG);
    if (pid > 0) fleet->ChildEnded(pid, DecodeStatus(status));
    one = {};
  }
}

}  // namespace

int WatchBase(const WatchBaseOptions& wanted) {
  if (wanted.metrics_unencrypted && wanted.metrics.empty())
    return PrintError(
               InvalidArgument("--metrics-unencrypted is about --metrics; give --metrics ADDRESS:PORT, too")),
           kExitUsage;
  auto options = OptionsOf(wanted);
  if (!options.ok()) return PrintError(options.status()), kExitUsage;
  if (wanted.bucket) {
    if (const Status opened = OpenDoor(wanted, &*options); !opened.ok())
      return PrintError(opened), CodeOfDoor(opened);
  }
  server::ListenAt at;
  std::string token;
  if (!wanted.metrics.empty()) {  // before anything is written
    at = ListenAtOrExit(wanted.metrics, "--metrics");
    if (!at.path.empty())
      return PrintError(InvalidArgument("--metrics takes ADDRESS:PORT here, no Unix socket")), kExitUsage;
    if (at.address == "localhost") at.address = "127.0.0.1";
    at.others = wanted.metrics_unencrypted;
    if (const Status good = server::CheckAddress(at); !good.ok()) {
      const bool others = good.code() == StatusCode::kFailedPrecondition;
      const char* remedy = others ? ", or, in a network that you trust, give --metrics-unencrypted" : "";
      return PrintError(Status(good.code(), fmt::format("--metrics: {}{}", good.message(), remedy))),
             kExitUsage;
    }
    token = MetricsTokenOrExit(wanted.metrics_token);
  }
  RaiseFileLimit();
  const bool colour = StderrHasColour();
  const std::size_t width = StderrIsTerminal() ? TerminalWidth() : 100;
  watch::Voice voice;
  voice.say = SayLine;
  voice.found = [&](const std::string& run, const rules::Finding& finding, const std::string& event) {
    if (event == "healed" || finding.healed)
      return SayLine(fmt::format("luff: {}: healed: {}", run, NameOf(finding)));
    if (!finding.leader.empty())
      return SayLine(fmt::format("luff: {}: {}, which follows from another finding", run, NameOf(finding)));
    fmt::print(stderr, "luff: in {}:\n{}", Escaped(run), FindingText(finding, colour, width));
    std::fflush(stderr);
  };
  const std::string state = options->state;
  auto fleet = watch::Fleet::Open(std::move(*options), std::move(voice));
  if (!fleet.ok()) return PrintError(fleet.status()), kExitUsage;
  std::unique_ptr<watch::Answers> answers;
  if (!wanted.metrics.empty()) {
    auto opened = watch::Answers::Open(at.address, at.port, std::move(token));
    if (!opened.ok()) return PrintError(opened.status().WithContext("--metrics")), kExitUsage;
    answers = std::move(*opened);
    SayLine(fmt::format("luff: metrics: {}/metrics, {}/ready", OriginOf(at, answers->port()),
                        OriginOf(at, answers->port())));
  }
  struct sigaction end{};
  end.sa_handler = End;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &end, nullptr);
  signal(SIGPIPE, SIG_IGN);
  SayLine(fmt::format("luff: judging the runs of {}; findings: {}/findings.jsonl", wanted.base, state));
  bool drained = false;
  while (g_ends == 0 && !drained) {
    const int wait_ms = (*fleet)->Turn();
    std::vector<pollfd> fds;
    (*fleet)->AddTo(&fds);
    if (answers != nullptr) answers->AddTo(&fds);
    poll(fds.data(), fds.size(), wait_ms);
    if (answers != nullptr) answers->Look((*fleet)->numbers(), Env::Real().NowMonotonicNs());
    Reap(fleet->get());
    drained = wanted.drain && (*fleet)->idle();
  }
  if (!drained) SayLine("luff: leaving; the next one goes on from here");
  (*fleet)->Leave(kLeaveSeconds);
  Reap(fleet->get());
  return kExitOk;
}

}  // namespace luff::cli

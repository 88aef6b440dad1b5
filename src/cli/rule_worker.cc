#include "cli/rule_worker.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "cli/coverage.h"
#include "cli/json.h"
#include "cli/supervise.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace luff::cli {
namespace {

constexpr int kStarts = 4;  // the first and three more
constexpr std::size_t kMaxLineBytes = 64 << 10;

}  // namespace

RuleWorker::~RuleWorker() {
  if (in_ >= 0) close(in_);
  if (out_ >= 0) close(out_);
}

void RuleWorker::Start(const std::vector<rules::Choice>& choices, rules::ParameterSet set) {
  if (choices.empty()) return;
  command_ = {"/proc/self/exe",
              "_evaluate",
              run_,
              "--name",
              kEvaluator,
              "--rules",
              rules::ChoicesToText(choices),
              "--parameters",
              std::string(rules::ParameterSetName(set))};
  if (StderrIsTerminal()) command_.emplace_back("--status");
  StartAgain();
}

void RuleWorker::StartAgain() {
  if (starts_ >= kStarts) return;
  ++starts_;
  int to[2];
  int from[2];
  if (pipe2(to, O_CLOEXEC) != 0) return CannotStart(std::strerror(errno));
  if (pipe2(from, O_CLOEXEC) != 0) {
    const int error = errno;
    close(to[0]);
    close(to[1]);
    return CannotStart(std::strerror(error));
  }
  ProcessOptions process;
  process.argv = command_;
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
    return CannotStart(started.status().message());
  }
  pid_ = started.value();
  in_ = to[1];
  out_ = from[0];
  fcntl(out_, F_SETFL, O_NONBLOCK);
  if (finishing_) TellFinish();
}

void RuleWorker::CannotStart(std::string_view why) {
  say_(fmt::format("luff: the rule worker cannot be started: {}\n", why));
  starts_ = kStarts;
  failed_ = true;
}

void RuleWorker::Hear(std::int64_t now_ns) {
  if (out_ < 0) return;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = read(out_, buffer, sizeof(buffer))) > 0) {
    heard_.append(buffer, static_cast<std::size_t>(got));
    heard_ns_ = now_ns;
  }
  std::size_t end = 0;
  while ((end = heard_.find('\n')) != std::string::npos) {
    const std::string line = heard_.substr(0, end);
    heard_.erase(0, end + 1);
    long long steps = 0;
    long long train_step = 0;
    if (std::sscanf(line.c_str(), "progress %lld %lld", &steps, &train_step) == 2 && train_step >= 0)
      train_step_ = train_step;
    TakeProgressLine(line, &progress_);
    if (line == "done") done_ = true;
    TakeCoverageLine(line, &coverage_);
    if (line.starts_with("note ")) HearNote(line.substr(5));
  }
  if (heard_.size() > kMaxLineBytes) heard_.clear();
}

// Reports a rule's note about itself.
void RuleWorker::HearNote(const std::string& text) {
  try {
    const Json json = ParseOrderedJson(text);
    const auto rule = json.at("rule").get<std::string>();
    if (json.at("failed").get<bool>()) failed_rules_.insert(rule);
    if (!notes_.insert(text).second) return;  // a restarted rule worker repeats it
    const std::string said = Escaped(json.at("text").get<std::string>());
    say_(fmt::format("luff: rule {}: {}\n", Escaped(rule),
                     Wrapped(said, 6, StderrIsTerminal() ? TerminalWidth() : 100)));
  } catch (const std::exception&) {  // not a line of our rule worker
  }
}

void RuleWorker::Ended(const ExitState& state, std::int64_t now_ns) {
  Hear(now_ns);
  close(in_);
  close(out_);
  in_ = out_ = -1;
  pid_ = -1;
  if (done_ || (finishing_ && state.code == 0)) return;
  if (state.code != kExitUsage && starts_ < kStarts) return StartAgain();
  failed_ = true;
  say_(fmt::format(
      "luff: the rule worker ended ({}) and is not started again: rules are off, the training "
      "goes on. `luff check {}` runs them later\n",
      state.signal != 0 ? fmt::format("signal {}", state.signal) : fmt::format("exit code {}", state.code),
      Escaped(run_)));
}

void RuleWorker::TellFinish() const {
  const ssize_t written = write(in_, "finish\n", 7);
  static_cast<void>(written);  // Ended handles a dead worker
}

void RuleWorker::Finish(std::int64_t now_ns) {
  finishing_ = true;
  heard_ns_ = now_ns;
  if (living()) TellFinish();
}

void RuleWorker::KillIfIdle(std::int64_t now_ns, std::int64_t idle_ns) {
  if (!living() || now_ns - heard_ns_ <= idle_ns) return;
  say_("luff: the rule worker does not come to an end and was killed\n");
  failed_ = true;
  starts_ = kStarts;
  kill(pid_, SIGKILL);
  heard_ns_ = now_ns;
}

}  // namespace luff::cli

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/interrupted.h"
#include "base/json.h"
#include "cli/coverage.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/query/trial.h"
#include "luff/rules/evaluator.h"

/// The rule worker of `luff run`, a separate process. Stdin: a line "finish" when the job has ended; end of
/// file without it means that the supervisor is gone. Stdout: one line "progress STEPS TRAIN_STEP" at most
/// every 100 ms, "status JSON" (ProgressLine) at most twice a second where a status line is shown, "finding"
/// when findings.jsonl has new lines, "note JSON" for a rule's note about itself, and at the end which rules
/// judged (CoverageLines) and "done".
namespace luff::cli {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

enum class Told { kNothing, kFinish, kGone };

Told Listen(milliseconds wait) {
  pollfd fd{STDIN_FILENO, POLLIN, 0};
  if (poll(&fd, 1, static_cast<int>(wait.count())) <= 0) return Told::kNothing;
  char buffer[64];
  const ssize_t got = Uninterrupted([&] { return read(STDIN_FILENO, buffer, sizeof(buffer)); });
  if (got > 0) return Told::kFinish;
  return got == 0 ? Told::kGone : Told::kNothing;
}

void Say(const std::string& line);

void SayNote(const rules::RuleNote& note) {
  const nlohmann::json json = {{"rule", note.rule}, {"text", note.text}, {"failed", note.failed}};
  Say("note " + JsonText(json));
}

void Say(const std::string& line) {
  static_cast<void>(WriteAll(STDOUT_FILENO, line + "\n"));  // stdin shows when the supervisor is gone
}

int Evaluate(const std::string& run, const std::string& name, const std::string& rules_text,
             const std::string& set_text, bool shown) {
  const Result<rules::ParameterSet> set = rules::ParseParameterSet(set_text);
  if (!set.ok()) return PrintError(set.status()), kExitUsage;
  Result<std::vector<rules::Choice>> choices = rules::ParseChoices(rules_text, set.value());
  if (!choices.ok()) return PrintError(choices.status()), kExitUsage;

  signal(SIGPIPE, SIG_IGN);
  Told told = Told::kNothing;
  Result<std::unique_ptr<query::Trial>> opened = query::Trial::Open(run);
  while (!opened.ok()) {  // no worker has begun yet
    if (told != Told::kNothing) return kExitOk;
    told = Listen(milliseconds(50));
    opened = query::Trial::Open(run);
    if (!opened.ok() && opened.status().code() == StatusCode::kUnsupportedVersion)
      return PrintError(opened.status()), kExitUsage;
  }
  query::Trial& trial = *opened.value();

  rules::EvaluatorOptions options;
  options.folder = run + "/rules/" + name;
  options.choices = std::move(choices).value();
  options.on_note = SayNote;
  bool found = false;
  Result<std::unique_ptr<rules::Evaluator>> evaluator =
      rules::Evaluator::Open(options, [&found](const rules::Finding&, const std::string&) { found = true; });
  if (!evaluator.ok()) return PrintError(evaluator.status()), kExitUsage;

  auto last_said = Clock::now() - milliseconds(1000), last_status = last_said;
  ProgressReader progress;
  while (true) {
    const Result<bool> news = trial.Refresh();
    Result<std::size_t> done = evaluator.value()->Advance(trial, 1000);
    if (!done.ok()) return PrintError(done.status()), 1;
    if (std::exchange(found, false)) Say("finding");  // once for all findings of this pass
    const auto now = Clock::now();
    if (done.value() > 0 && now - last_said > milliseconds(100)) {
      std::int64_t train_step = -1;
      for (const query::WorkerInfo& worker : trial.workers())
        train_step = std::max(train_step, worker.last_train_step);
      Say(fmt::format("progress {} {}", evaluator.value()->steps_done(), train_step));
      last_said = now;
    }
    if (shown && done.value() > 0 && now - last_status > milliseconds(450)) {
      progress.Look(trial);
      Say(ProgressLine(progress.progress()));
      last_status = now;
    }
    if (done.value() > 0 && told == Told::kNothing) {
      told = Listen(milliseconds(5));  // lets steps gather: one pass over many is cheaper than many passes
      continue;
    }
    if (done.value() > 0) continue;
    // The user's own rules judge at their own pace; progress lines show that this process is alive.
    const bool behind = evaluator.value()->behind() > 0;
    if (behind && told == Told::kFinish && now - last_said > milliseconds(500)) {
      Say(fmt::format("progress {} -1", evaluator.value()->steps_done()));
      last_said = now;
    }
    if (behind && told == Told::kFinish) continue;
    if (told == Told::kFinish && (!news.ok() || !news.value())) {
      // RefreshAll misses nothing, e.g. the worker of a short resumed training.
      const Result<bool> more = trial.RefreshAll();
      if (!more.ok() || !more.value()) break;
    }
    if (told == Told::kGone) return evaluator.value()->Checkpoint().ok() ? kExitOk : 1;
    if (told == Told::kNothing) told = Listen(milliseconds(behind ? 2 : 20));
  }
  if (const Status status = evaluator.value()->Finish(trial); !status.ok()) return PrintError(status), 1;
  Say(fmt::format("progress {} {}", evaluator.value()->steps_done(),
                  trial.Steps(query::Mode::kTrain).size()));
  Say(CoverageLines(rules::Summarize(evaluator.value()->coverage())) + "done");
  return kExitOk;
}

}  // namespace

void AddEvaluate(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("_evaluate", "The rule worker of luff run");
  verb->group("");  // hidden
  static std::string run, name = "luff", rules_text, set_text = "luff";
  static bool shown = false;
  verb->add_option("RUN", run)->required();
  verb->add_option("--name", name);
  verb->add_option("--rules", rules_text);
  verb->add_option("--parameters", set_text);
  verb->add_flag("--status", shown);
  verb->callback([] { ExitWith(Evaluate(run, name, rules_text, set_text, shown)); });
}

}  // namespace luff::cli

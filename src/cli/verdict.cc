#include "cli/verdict.h"
#include "cli/json.h"

#include <string.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/json.h"
#include "cli/coverage.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/base/env.h"
#include "luff/query/trial.h"
#include "luff/store/after_stop.h"
#include "luff/store/control.h"
#include "luff/store/trainings.h"

namespace luff::cli {
namespace {

constexpr std::uint64_t kMaxAsideBytes = 1 << 16;
constexpr std::size_t kShownAside = 4;
constexpr const char* kStillAtWork = "the training has not ended";

void Tell(const std::string& text) {
  fmt::print(stderr, "luff: {}\n", Wrapped(text, 6, StderrIsTerminal() ? TerminalWidth() : 100));
}

// Reports whole steps missing from the run, which "no findings" does not cover. True if there are any.
bool TellLostSteps(const query::Trial& trial) {
  bool lost = false;
  std::uint64_t after_stop = 0;
  for (const query::GapInfo& gap : trial.Gaps()) {
    if (gap.reason == store::kTrainedAfterStop) after_stop = std::max(after_stop, gap.count);
  }
  if (after_stop > 0)
    Tell(fmt::format("{} after the stop {} not in the run: the script swallowed StopTraining",
                     Plural(after_stop, "update", "updates"), after_stop == 1 ? "is" : "are"));
  for (const query::GapInfo& gap : trial.Gaps()) {
    if (!IsOfWholeSteps(gap)) continue;
    lost = true;
    const auto first = std::max<std::int64_t>(gap.first_step, 0);
    const auto between = static_cast<std::uint64_t>(gap.last_step - first) + 1;
    if (between == 1) {
      fmt::print(stderr, "luff: step {} is not in the run, and no rule saw it: {}\n", first, gap.reason);
      continue;
    }
    fmt::print(stderr, "luff: {}steps {} to {} are not in the run, and no rule saw them: {}\n",
               gap.count < between ? fmt::format("{} of the ", gap.count) : "", first, gap.last_step,
               gap.reason);
  }
  return lost;
}

// How the training failed; "" if it completed. Where the command has started several trainings, its exit code
// is none of theirs, and the workers know.
std::string Failure(const Ending& ending, const query::Trial::Outcome& outcome) {
  if (!ending.exit && outcome.state == "running") return kStillAtWork;
  if (!ending.exit) return outcome.state == "failed" ? outcome.why : "";
  if (ending.exit->code == 0) return "";
  return fmt::format("{} {}", ending.options.command.front(), HowItEnded(*ending.exit));
}

std::string WhyStopped(const actions::Runner& runner) {
  if (runner.stop_finding().id.empty()) return runner.stop_asked();
  return fmt::format("{}: {}", runner.stop_finding().rule, runner.stop_finding().what);
}

void WriteOutcome(const Ending& ending, bool stopped, const std::string& failure) {
  const actions::Runner& runner = ending.runner;
  Json body;
  body["state"] = stopped ? "stopped" : failure.empty() ? "completed" : "failed";
  if (ending.exit) {
    body["exit_code"] = ending.exit->code;
    body["signal"] = ending.exit->signal;
  }
  body["why"] = stopped                           ? WhyStopped(runner)
                : !failure.empty() && ending.exit ? "the command " + HowItEnded(*ending.exit)
                                                  : failure;
  body["findings"] = ending.findings.size();
  if (stopped) {
    body["train_step"] = runner.coordinator().committed_step();
    body["remark"] = runner.coordinator().remark();
  }
  store::ControlRecord record;
  record.kind = "outcome";
  record.body = JsonText(body);
  record.finding = stopped ? runner.stop_finding().id : "";
  record.author = "luff run";
  const Result<std::uint64_t> written = store::WriteControl(ending.place.path(), record);
  if (!written.ok())
    fmt::print(stderr, "luff: the outcome cannot be written into the run: {}\n",
               Escaped(written.status().message()));
}

std::string AtAboutStep(std::int64_t step) { return step >= 0 ? fmt::format(" at about step {}", step) : ""; }

// Explains why no run could be read.
std::string WhyNoRun(const Ending& ending, const Status& error) {
  const RunPlace& place = ending.place;
  const std::string when = AtAboutStep(place.last_step());
  switch (place.state()) {
    case RunPlace::State::kRemoved:
      return fmt::format("the run's directory was removed{} while the job ran: {}", when,
                         Escaped(ending.options.run));
    case RunPlace::State::kReplaced:
      return fmt::format(
          "the run's directory is gone (moved, or its file system unmounted){}, while the job "
          "ran: {}",
          when, Escaped(ending.options.run));
    case RunPlace::State::kMoved:
    case RunPlace::State::kHere: break;
  }
  if (Env::Real().Exists(place.path() + "/run.json"))
    return fmt::format("the run cannot be read: {}", Escaped(error.message()));
  if (place.began() || ending.train_step >= 0)
    return fmt::format("the run's files were removed while the job ran; it had come to step {}: {}",
                       ending.train_step, Escaped(place.path()));
  // How it ended is told before. One that a signal ended may have trained unseen for long.
  if (ending.exit && ending.exit->code != 0 && ending.exit->code < 128)
    return "nothing was recorded: it ended before Luff saw a training step";
  return "nothing was recorded: Luff saw no training step. It attaches to Python as PyTorch, Keras, "
         "TensorFlow, JAX, MXNet, XGBoost, LightGBM or scikit-learn begin to train; `python -I`, `-E` or "
         "`-S`, an emptied environment, or a Python that cannot import luff hide it";
}

Verdict ConcludeWithoutRun(const Ending& ending, const std::string& aside, const Status& error) {
  const bool lost = ending.place.state() != RunPlace::State::kHere || ending.place.began();
  std::string why = aside.empty() || lost ? WhyNoRun(ending, error) : "nothing was recorded";
  if (!ending.findings.empty()) why += fmt::format(" ({})", FindingsInShort(ending.findings));
  if (!lost) RemoveUnusedRun(ending.options);
  if (ending.exit && ending.exit->code != 0)
    fmt::print(stderr, "luff: {} {}\n", Escaped(ending.options.command.front()), HowItEnded(*ending.exit));
  Tell(why);
  return {Verdict::Kind::kNothing};
}

// Reports damage, and returns true if there is any: the run holds less than was recorded.
bool TellDamage(const Ending& ending, const query::Trial& trial, std::uint64_t steps) {
  if (ending.place.state() == RunPlace::State::kMoved)
    Tell(fmt::format("the run's directory was moved{} while the job ran; what came later may be missing: {}",
                     AtAboutStep(ending.place.last_step()), Escaped(ending.place.path())));
  const std::vector<std::string> problems = trial.Problems();
  if (!problems.empty())
    Tell(fmt::format("the run is damaged: {}{} (`luff verify` says all)", Escaped(problems.front()),
                     problems.size() > 1 ? fmt::format(", and {} more", problems.size() - 1) : ""));
  const std::vector<query::GapInfo> gaps = trial.Gaps();
  const bool told = std::any_of(gaps.begin(), gaps.end(), [](const auto& gap) {
    return gap.count > 0 && gap.reason != store::kTrainedAfterStop;
  });
  const bool shorter = !told && static_cast<std::int64_t>(steps) < ending.train_step;
  if (shorter)
    Tell(fmt::format("the run was truncated while the job ran: it had come to step {}, {} left in it",
                     ending.train_step, steps == 1 ? "1 step is" : fmt::format("{} steps are", steps)));
  return shorter || !problems.empty() || ending.place.state() != RunPlace::State::kHere;
}

// Says what would make the training faster, by the finding whose cause costs most. Nothing without such
// findings.
void TellTime(const std::vector<rules::Finding>& findings) {
  const rules::Finding* most = nullptr;
  for (const rules::Finding& finding : findings) {
    if (!finding.saving || finding.healed || !finding.leader.empty()) continue;
    if (most == nullptr || finding.saving->seconds_a_step > most->saving->seconds_a_step) most = &finding;
  }
  if (most != nullptr)
    Tell(fmt::format("{} (at step {}; `luff profile` tells of the whole run)", Escaped(most->what),
                     most->step));
}

// True if the job left because it was asked to.
bool WasStopped(const Ending& ending, const query::Trial& trial) {
  bool left_by_stop = ending.signalled;
  for (const query::WorkerInfo& worker : trial.workers())
    left_by_stop = left_by_stop || (worker.ended && worker.reason == format::EndReason::kStopped);
  return ending.runner.coordinator().stop_decided() && left_by_stop;
}

// Rules that did not judge the whole run: those that failed, and the user's own whose data never came. Of a
// rule that is built in, it is no mistake of anybody that a model has no embeddings.
std::set<std::string> NotJudged(const Ending& ending) {
  std::set<std::string> names = ending.failed_rules;
  for (const auto& [what, lacking] : ending.coverage.lacks) {
    for (const rules::Choice& choice : ending.options.choices) {
      if (!choice.spec->source.empty() && std::ranges::find(lacking, choice.spec->name) != lacking.end())
        names.insert(choice.spec->name);
    }
  }
  return names;
}

HowEnded HowItWent(const Ending& ending, const query::Trial& trial) {
  return {WasStopped(ending, trial), Failure(ending, trial.outcome())};
}

}  // namespace

std::string TellAside(const std::string& run) {
  const Result<std::string> text = ReadRegular(run + "/aside.jsonl", kMaxAsideBytes, 1);
  if (!text.ok()) return "";
  std::string first;
  std::size_t told = 0;
  std::size_t from = 0;
  for (std::size_t end = 0; (end = text->find('\n', from)) != std::string::npos; from = end + 1) {
    const Json json = TryParseOrderedJson(std::string_view(*text).substr(from, end - from));
    if (!json.is_object() || !json.contains("pid") || !json.contains("error")) continue;
    if (!json["pid"].is_number_integer() || !json["error"].is_string()) continue;
    if (told++ >= kShownAside) continue;
    const std::string line = fmt::format("process {} was not watched: {}", json["pid"].get<std::int64_t>(),
                                         Escaped(json["error"].get<std::string>()));
    Tell(line);
    if (first.empty()) first = line;
  }
  if (told > kShownAside) Tell(fmt::format("so were {} more", told - kShownAside));
  return first;
}

void RemoveUnusedRun(const SuperviseOptions& options) {
  if (options.resume) return;
  std::error_code error;
  if (std::filesystem::exists(options.run + "/run.json", error)) return;
  std::filesystem::remove(options.run + "/aside.jsonl", error);
  // What the job has printed stays, even if it recorded nothing.
  const auto is_empty = [&](const char* name) {
    return std::filesystem::file_size(options.run + name, error) == 0 || error;
  };
  if (options.log_bytes > 0 && is_empty("/log/stdout") && is_empty("/log/stderr"))
    std::filesystem::remove_all(options.run + "/log", error);
  if (store::ReadTrainings(options.run, 1).empty())
    std::filesystem::remove_all(options.run + "/trainings", error);
  if (options.lock != nullptr) options.lock->Remove();
  std::filesystem::remove(options.run, error);  // fails unless it is empty
}

std::string HowItEnded(const ExitState& exit) {
  return exit.signal != 0 ? fmt::format("was ended by signal {} ({})", exit.signal, strsignal(exit.signal))
                          : fmt::format("failed with exit code {}", exit.code);
}

std::optional<HowEnded> RecordOutcome(const Ending& ending) {
  const auto opened = query::Trial::Open(ending.place.path());
  if (!opened.ok() || ending.place.state() == RunPlace::State::kReplaced) return std::nullopt;
  const Result<bool> news = opened.value()->Refresh();
  static_cast<void>(news);
  HowEnded how = HowItWent(ending, *opened.value());
  if (how.failure == kStillAtWork || ending.options.ended) return std::nullopt;
  WriteOutcome(ending, how.stopped, how.failure);
  return how;
}

Verdict Conclude(const Ending& ending) {
  const std::vector<rules::Finding>& findings = ending.findings;
  const bool stop_found = std::ranges::any_of(findings, [](const rules::Finding& finding) {
    return !finding.healed && finding.severity == rules::Severity::kStop;
  });
  // Later trainings of a job leave their notes in its first run, too: they are told at its end.
  const bool later = !ending.exit && ending.options.training == 1;
  const std::string aside = later ? "" : TellAside(ending.place.path());
  const auto opened = query::Trial::Open(ending.place.path());
  const bool another = ending.place.state() == RunPlace::State::kReplaced;
  if (!opened.ok() || another) return ConcludeWithoutRun(ending, aside, opened.status());
  query::Trial& trial = *opened.value();
  const Result<bool> news = trial.Refresh();
  static_cast<void>(news);
  const HowEnded how = ending.recorded ? *ending.recorded : HowItWent(ending, trial);
  const auto& [stopped, failure] = how;
  if (!ending.recorded && failure != kStillAtWork && !ending.options.ended)
    WriteOutcome(ending, stopped, failure);
  const bool lost = TellLostSteps(trial);
  const std::uint64_t steps = trial.Steps(query::Mode::kTrain).size();
  const bool damaged = TellDamage(ending, trial, steps);
  // For a job that completed, `why` holds the hooks' notes on workers that ended before the training.
  if (!stopped && failure.empty()) {
    if (const std::string why = trial.outcome().why; !why.empty()) Tell(Escaped(why));
  }
  const bool first = ending.options.training == 1;  // those of the job's others lack much the same
  if (const std::string lacks = LacksText(ending.coverage); first && !lacks.empty() && steps > 0)
    fmt::print(stderr, "luff: {} (`luff show` names them)\n", lacks);
  if (const std::string lacks = rules::NotRecordedText(ending.coverage); first && !lacks.empty() && steps > 0)
    fmt::print(stderr, "luff: {} (`luff show` names them)\n", lacks);
  TellTime(findings);
  const std::string run = Escaped(ending.place.path());
  const bool nobody = ending.options.choices.empty();  // judges it here
  const std::string judged = nobody ? ending.options.recorded_for > 0
                                          ? fmt::format("recorded for {}, not judged yet (`luff check`)",
                                                        Plural(ending.options.recorded_for, "rule", "rules"))
                                          : "no rules"
                             : ending.coverage.rules > 0
                                 ? JudgedText(ending.coverage)
                                 : Plural(ending.options.choices.size(), "rule", "rules");
  const std::string watched = fmt::format("{}, {}", Plural(steps, "step", "steps"), judged);
  const std::string seen =
      nobody && findings.empty() ? watched : fmt::format("{}, {}", watched, FindingsInShort(findings));
  std::string partly = ending.rules_failed ? " (rules did not see all of it)" : "";
  partly += NotJudgedText(NotJudged(ending));
  if (stopped) {
    const std::string others =
        findings.size() > 1 ? fmt::format(", {} in all", Plural(findings.size(), "finding", "findings")) : "";
    if (ending.runner.stop_finding().id.empty()) {
      fmt::print(stderr, "luff: stopped, {}, after {}{} — run: {}\n", Escaped(ending.runner.stop_asked()),
                 seen, partly, run);
    } else {
      fmt::print(stderr, "luff: stopped by {} after {}{}{} — run: {}\n", NameOf(ending.runner.stop_finding()),
                 watched, others, partly, run);
    }
    return {Verdict::Kind::kStopped, stop_found};
  }
  if (!failure.empty()) {
    fmt::print(stderr, "luff: {} after {}{} — run: {}\n", Escaped(failure), seen, partly, run);
    return {Verdict::Kind::kFailed, stop_found};
  }
  const bool stands =
      std::ranges::any_of(findings, [](const rules::Finding& finding) { return !finding.healed; });
  const bool well = !stands && !damaged && !lost && steps > 0 && partly.empty();
  const bool ok = well && !nobody;
  fmt::print(stderr, "luff: {}: {}{} — run: {}\n", ok ? "ok" : "done", seen, partly, run);
  return {ok ? Verdict::Kind::kOk : well ? Verdict::Kind::kUnjudged : Verdict::Kind::kNotOk, stop_found};
}

}  // namespace luff::cli

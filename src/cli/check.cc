#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>
#include <string>

#include "base/format.h"
#include "cli/config_file.h"
#include "cli/coverage.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/query/trial.h"
#include "luff/rules/evaluator.h"
#include "luff/store/mirror.h"
#include "luff/store/verify.h"
#include "rules/own/own_spec.h"

namespace luff::cli {
namespace {

struct CheckOptions {
  std::string run, other, rules_text, set_text, config;
  bool json = false, follow = false;
};

// What is wrong with the files that rules read. Of a run of Luff each byte is checked but those of raw
// values.
std::vector<std::string> DamageOf(const query::Trial& trial) {
  std::vector<std::string> found = trial.Problems();
  const auto report = store::VerifyRun(trial.path(), {.values = false});
  if (!report.ok()) return found;  // of smdebug
  for (const store::Damage& one : report->damage)
    found.push_back(fmt::format("{} at byte {}: {}", one.file, one.offset, one.what));
  return found;
}

// The rules of SageMaker's profiler, which Luff's Python package evaluates, over its folders and over runs.
constexpr std::string_view kProfilerRules[] = {"BatchSize",
                                               "CPUBottleneck",
                                               "Dataloader",
                                               "GPUMemoryIncrease",
                                               "IOBottleneck",
                                               "LoadBalancing",
                                               "LowGPUUtilization",
                                               "MaxInitializationTime",
                                               "StepOutlier",
                                               "OverallSystemUsage",
                                               "OverallFrameworkMetrics",
                                               "ProfilerReport"};

/// True if each name is one of them.
bool NamesProfilerRules(std::string_view text) {
  while (true) {
    const auto comma = text.find(',');
    std::string_view name = text.substr(0, std::min(comma, text.find(':')));
    while (name.starts_with(' ')) name.remove_prefix(1);
    if (std::find(std::begin(kProfilerRules), std::end(kProfilerRules), name) == std::end(kProfilerRules))
      return false;
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

[[noreturn]] void CheckProfile(const CheckOptions& wanted) {
  if (wanted.follow || !wanted.config.empty() || !wanted.other.empty() || wanted.set_text == "luff")
    ExitWithError(InvalidArgument(
        "rules of SageMaker's profiler go without --follow, --config, --other and --parameters luff"));
  std::vector<std::string> words = {"check", wanted.run, "--rules=" + wanted.rules_text};
  if (wanted.json) words.emplace_back("--json");
  BecomePython("profiler", std::move(words),
               "the rules of SageMaker's profiler are in Luff's Python package");
}

int Check(const CheckOptions& wanted) {
  rules::ShowOutputOfOwnRules(true);  // users who try out a rule want to see what it prints
  Result<FileConfig> file = wanted.config.empty() ? FileConfig{} : ReadConfigFile(wanted.config);
  if (!file.ok()) return PrintError(file.status()), kExitUsage;
  const Result<rules::ParameterSet> set = rules::ParseParameterSet(
      !wanted.set_text.empty() ? wanted.set_text : file.value().parameters.value_or("luff"));
  if (!set.ok()) return PrintError(set.status()), kExitUsage;
  Result<std::vector<rules::Choice>> choices = rules::ParseChoices(
      !wanted.rules_text.empty() ? wanted.rules_text : file.value().rules.value_or(""), set.value());
  if (!choices.ok()) return PrintError(choices.status()), kExitUsage;
  if (!wanted.other.empty()) {
    const auto compares =
        std::find_if(choices.value().begin(), choices.value().end(),
                     [](const rules::Choice& choice) { return choice.spec->name == "SimilarAcrossRuns"; });
    if (compares == choices.value().end()) {
      PrintError(InvalidArgument(
          "--other names a run that SimilarAcrossRuns compares with, and --rules leaves it out"));
      return kExitUsage;
    }
    compares->parameters["other_trials"] = wanted.other;
  }
  Result<std::unique_ptr<query::Trial>> opened = query::Trial::Open(wanted.run);
  if (!opened.ok()) return PrintError(opened.status()), kExitUsage;
  query::Trial& trial = *opened.value();

  rules::EvaluatorOptions options;  // no folder: a check writes nothing into the run
  options.choices = std::move(choices).value();
  std::set<std::string> own;
  for (const rules::Choice& choice : options.choices) {
    if (!choice.spec->source.empty()) own.insert(choice.spec->name);
  }
  options.on_note = [](const rules::RuleNote& note) { PrintNote(note.rule, note.text); };
  const bool colour = isatty(STDOUT_FILENO) != 0 && StderrHasColour();
  Teller teller(colour, TerminalWidth());
  std::vector<FindingEvent> events;
  const auto tell = [&] {
    fmt::print("{}", teller.Tell(events));
    events.clear();
    if (wanted.follow) std::fflush(stdout);
  };
  Result<std::unique_ptr<rules::Evaluator>> made =
      rules::Evaluator::Open(options, [&](const rules::Finding& finding, const std::string& event) {
        if (wanted.json) {
          fmt::print("{}\n", JsonEscaped(rules::ToJson(finding, event)));
          if (wanted.follow) std::fflush(stdout);
        } else {
          events.emplace_back(finding, event);
        }
      });
  if (!made.ok()) return PrintError(made.status()), kExitUsage;
  rules::Evaluator& evaluator = *made.value();
  while (true) {
    const Result<bool> news =
        wanted.follow ? trial.WaitForNews(std::chrono::milliseconds(evaluator.behind() > 0 ? 2 : 200))
                      : trial.Refresh();
    const Result<std::size_t> done = evaluator.Advance(trial, 100000);
    if (!done.ok()) return PrintError(done.status()), 1;
    tell();
    if (done.value() > 0 || (news.ok() && news.value()) || evaluator.behind() > 0) continue;
    if (evaluator.steps_done() < trial.step_count()) {  // held: the values of the next step are on their way
      (void)trial.WaitForNews(std::chrono::milliseconds(500));
      continue;
    }
    if (!wanted.follow || trial.loaded_all_steps()) break;
  }
  const bool over = trial.loaded_all_steps();
  if (over) {
    if (const Status status = evaluator.Finish(trial); !status.ok()) return PrintError(status), 1;
    tell();
  }
  bool stands = false;  // what has healed does not
  bool stop = false;
  for (const rules::Finding& finding : evaluator.findings()) {
    if (finding.healed) continue;
    stands = true;
    stop = stop || finding.severity == rules::Severity::kStop;
  }
  const std::vector<std::string> damage = DamageOf(trial);
  const bool empty = trial.step_count() == 0;
  const bool pruned = trial.MirrorNote().find(store::kPrunedNote) != std::string::npos;
  if (pruned)
    fmt::print(wanted.json ? stderr : stdout,
               "luff: the values of this run were pruned from the bucket: what rules look for in them cannot "
               "be found any more\n");
  if (!damage.empty())
    fmt::print(wanted.json ? stderr : stdout, "luff: the run is damaged: {}{} (`luff verify` says all)\n",
               Escaped(damage.front()),
               damage.size() > 1 ? fmt::format(", and {} more", damage.size() - 1) : "");
  std::set<std::string> partly;  // rules that did not judge the whole run
  for (const rules::RuleNote& note : evaluator.notes()) {
    if (note.failed) partly.insert(note.rule);
  }
  for (const rules::RuleCoverage& one : evaluator.coverage()) {
    if (own.contains(one.rule) && !one.lacks.empty()) partly.insert(one.rule);
  }
  if (!wanted.json) {
    const rules::CoverageSummary coverage = rules::Summarize(evaluator.coverage());
    if (const std::string lacks = LacksText(coverage); !lacks.empty()) fmt::print("luff: {}\n", lacks);
    if (const std::string lacks = rules::NotRecordedText(coverage); !lacks.empty() && !empty)
      fmt::print("luff: {}\n", lacks);
    if (evaluator.unreadable_steps() > 0) {
      fmt::print("luff: {} could not be read, or not all of their values, so rules did not judge all\n",
                 Plural(evaluator.unreadable_steps(), "step", "steps"));
    }
    const char* verdict = stop                                                   ? "stop"
                          : stands                                               ? "warn"
                          : empty                                                ? "nothing recorded"
                          : !damage.empty()                                      ? "damaged"
                          : !partly.empty() || pruned || options.choices.empty() ? "done"
                                                                                 : "ok";
    fmt::print("luff: {}: {}, {}, {}{}{}\n", verdict,
               Plural(trial.Steps(query::Mode::kTrain).size(), "step", "steps"), JudgedText(coverage),
               FindingsInShort(evaluator.findings()), NotJudgedText(partly),
               over ? "" : " (the run is not over)");
  }
  const bool failed =
      empty || pruned || !damage.empty() || !partly.empty() || evaluator.unreadable_steps() > 0;
  return stop ? kExitStopFindings : !stands && !failed ? kExitOk : kExitFindings;
}

}  // namespace

void AddCheck(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("check", "Run rules over a finished or a live run");
  static CheckOptions wanted;
  verb->add_option("RUN", wanted.run, kRunHelp)->required();
  verb->add_option("--rules", wanted.rules_text, "NAME[:parameter=value...],... or none; default: all");
  verb->add_option("--config", wanted.config, "Configuration file (TOML): its rules");
  verb->add_option("--parameters", wanted.set_text, "Parameter set: luff or original");
  verb->add_option("--other", wanted.other, "The run to compare with (rule SimilarAcrossRuns)");
  verb->add_flag("--json", wanted.json, "Findings as JSON lines");
  verb->add_flag("--follow", wanted.follow, "Until the run ends");
  verb->footer(
      "Exit code: 0 no findings; 1 findings, a rule that did not judge the whole run, or a run that is "
      "damaged or\n"
      "empty; 3 a finding of severity stop; 2 wrong usage or no run there.");
  verb->callback([] {
    FindRunOrExit(&wanted.run);
    FindRunOrExit(&wanted.other);
    if (IsProfilerFolder(wanted.run) || NamesProfilerRules(wanted.rules_text)) CheckProfile(wanted);
    ExitWith(Check(wanted));
  });
}

}  // namespace luff::cli

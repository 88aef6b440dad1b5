#include <algorithm>
#include <map>

#include "base/format.h"
#include "cli/profile_machine.h"
#include "cli/profile_stacks.h"
#include "cli/profile_traces.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/profile/input.h"
#include "luff/profile/phase_table.h"
#include "luff/query/run_pieces.h"
#include "luff/rules/kept_findings.h"

namespace luff::cli {
namespace {

using profile::TimeText;

constexpr std::int64_t kFirst = 20;  // steps that no verdict counts, as in InputBound
constexpr double kLeastShare = 0.1, kLeastWaitS = 2e-3;

struct ProfileOptions : ReadOptions {
  std::string steps;
  double price_per_hour = 0;
};

/// What a verdict needs beyond the table.
struct TimeVerdict {
  std::string text;
  std::optional<profile::InputCause> cause;
  profile::Means means;
  double saving_s = 0;
};

std::string WhyNone(const query::Trial& trial) {
  const std::string framework =
      trial.Document("environment").find("\"torch\"") == std::string::npos ? "" : "torch";
  if (trial.step_count() == 0) return "it has no step yet";
  if (framework.empty())
    return "no phase of this framework's training was seen (docs/profiling.md has a table)";
  return "it was written by Luff before run format 1.1, or with profile = \"off\"";
}

TimeVerdict Judge(const query::Trial& trial, const profile::PhaseTable& table, const profile::Scope& scope) {
  std::vector<profile::StepTime> steps;
  profile::Waits waits;
  std::int64_t seen = 0;
  double judged = 0;
  const Status status =
      query::VisitPhases(trial, [&](const query::StepInfo& step, const query::StepPhases& phases) {
        if (step.mode != query::Mode::kTrain || phases.worker != table.worker) return;
        seen += phases.head.steps;
        if (seen <= kFirst || step.mode_step < scope.from || step.mode_step > scope.to) return;
        judged += phases.head.steps;
        // The first batch of an epoch is none that says how long the others take, as in InputBound.
        if (phases.begins[static_cast<std::size_t>(format::Phase::kDataStart)] != 0) return;
        steps.push_back(profile::TimeOf(phases));
        waits.Add(phases);
      });
  if (!status.ok()) ExitWithError(status);
  TimeVerdict verdict;
  if (steps.empty()) {
    verdict.text = fmt::format("too few steps to judge: the first {} are left out", kFirst);
    return verdict;
  }
  verdict.means = profile::MeansOf(std::move(steps));
  const profile::Means& means = verdict.means;
  if (means.wait_s < kLeastShare * means.step_s || means.wait_s < kLeastWaitS) {
    verdict.text = "nothing found that would make it faster";
    if (means.wait_s > 0)
      verdict.text +=
          fmt::format(": waiting for data takes {:.1f} % of a step", 100 * means.wait_s / means.step_s);
    return verdict;
  }
  verdict.cause = profile::CauseOf(means, waits, trial.Document("loaders"), trial.Document("environment"));
  const profile::InputCause& cause = *verdict.cause;
  if (cause.estimate.saving_s <= 0) {
    verdict.text =
        profile::WaitText(means, cause.loader) + "; more workers would not help, cheaper samples would";
    return verdict;
  }
  verdict.saving_s = cause.estimate.saving_s * judged;
  verdict.text = fmt::format("{} would save about {} of {}", cause.what, TimeText(verdict.saving_s),
                             TimeText(table.wall_s + table.other_s));
  return verdict;
}

std::vector<std::string> NotSeen(const profile::PhaseTable& table, const MachineView& machines) {
  std::vector<std::string> lines;
  const bool waits = std::ranges::any_of(
      table.lines, [](const auto& line) { return line.phase == format::Phase::kDataWait; });
  if (!waits)
    lines.emplace_back(
        "waits for data: no DataLoader and no luff.wait() was used here, so they are part of other or "
        "compute");
  if (table.timed_s <= 0)
    lines.emplace_back("CPU time of the training thread: /proc/self/task/*/schedstat was not read");
  lines.emplace_back(
      "devices: the times are those of the host, which waits for a GPU where it asks for a result");
  lines.insert(lines.end(), machines.not_seen().begin(), machines.not_seen().end());
  return lines;
}

/// Findings about time that stand, the dearest cause first. One that says what the verdict says is left out.
std::vector<rules::Finding> TimeFindings(const query::Trial& trial, const TimeVerdict& verdict) {
  std::vector<rules::Finding> found;
  for (rules::Finding& finding : rules::FindingsOfRun(trial.path()).findings) {
    const bool about_time = finding.saving || finding.rule == "DebugLeftOn";
    const bool said = finding.rule == "InputBound" && verdict.cause;
    if (about_time && !finding.healed && !said) found.push_back(std::move(finding));
  }
  const auto cost = [](const rules::Finding& one) { return one.saving ? one.saving->seconds_a_step : 0; };
  std::ranges::stable_sort(found, std::greater<>(), cost);
  return found;
}

/// One loader in the TRAIN steps of the table.
struct LoaderLine {
  profile::Loader loader;
  double waited_s = 0;
  std::uint64_t batches = 0, ready = 0;       // batches that came within kReadyS
  std::map<std::uint32_t, double> by_worker;  // seconds
};

constexpr double kReadyS = 2e-4;

std::vector<LoaderLine> LoaderLines(const query::Trial& trial, const profile::PhaseTable& table,
                                    const profile::Scope& scope) {
  std::map<std::uint32_t, LoaderLine> lines;
  const Status status =
      query::VisitPhases(trial, [&](const query::StepInfo& step, const query::StepPhases& phases) {
        if (step.mode != query::Mode::kTrain || phases.worker != table.worker) return;
        if (step.mode_step < scope.from || step.mode_step > scope.to) return;
        for (const query::StepPhases::Wait& wait : phases.waits) {
          if (wait.of.loader == format::WaitSubject::kNoLoader) continue;
          LoaderLine& line = lines[wait.of.loader];
          const double seconds = static_cast<double>(wait.ns) * 1e-9;
          line.waited_s += seconds;
          line.batches += wait.count;
          if (seconds < kReadyS * wait.count) line.ready += wait.count;
          if (wait.of.worker != format::WaitSubject::kNoWorker) line.by_worker[wait.of.worker] += seconds;
        }
      });
  if (!status.ok()) ExitWithError(status);
  std::vector<LoaderLine> all;
  for (const profile::Loader& loader : profile::LoadersOf(trial.Document("loaders"))) {
    const auto at = lines.find(static_cast<std::uint32_t>(loader.number));
    if (loader.number < 0 || at == lines.end()) continue;
    all.push_back(at->second);
    all.back().loader = loader;
  }
  return all;
}

Json Described(const profile::PhaseTable& table, const TimeVerdict& verdict,
               const std::vector<LoaderLine>& loaders, const std::vector<rules::Finding>& findings,
               const MachineView& machines, const StacksView& stacks, const TracesView& traces) {
  Json json{{"worker", table.worker}, {"workers", table.workers}, {"verdict", verdict.text}};
  json["steps"] = table.steps;
  json["seconds"] = table.wall_s;
  json["step"] = {{"median", table.median_s}, {"p95", table.p95_s}};
  json["evaluation"] = {{"steps", table.other_steps}, {"seconds", table.other_s}};
  json["phases"] = Json::array();
  for (const profile::PhaseLine& line : table.lines) {
    json["phases"].push_back({{"phase", format::PhaseName(static_cast<std::uint8_t>(line.phase))},
                              {"steps", line.steps},
                              {"seconds", line.total_s},
                              {"share", line.share},
                              {"median", line.median_s},
                              {"p95", line.p95_s}});
  }
  json["thread"] = nullptr;
  if (table.timed_s > 0) {
    json["thread"] = {{"seconds", table.timed_s}, {"cpu", table.cpu_s}, {"run_queue", table.run_queue_s}};
  }
  json["saving"] = nullptr;
  json["cause"] = nullptr;
  if (verdict.cause && verdict.cause->estimate.saving_s > 0) {
    const profile::Estimate& estimate = verdict.cause->estimate;
    json["cause"] = verdict.cause->cause;
    json["saving"] = {{"seconds", verdict.saving_s},
                      {"seconds_a_step", estimate.saving_s},
                      {"share", estimate.saving_s / verdict.means.step_s},
                      {"low", estimate.low_s},
                      {"high", estimate.high_s},
                      {"method", estimate.method}};
  }
  json["loaders"] = Json::array();
  for (const LoaderLine& line : loaders) {
    Json workers = Json::object();
    for (const auto& [worker, seconds] : line.by_worker) workers[std::to_string(worker)] = seconds;
    json["loaders"].push_back({{"number", line.loader.number},
                               {"type", line.loader.type},
                               {"workers", line.loader.workers},
                               {"asked", line.batches},
                               {"ready", line.ready},
                               {"waited", line.waited_s},
                               {"waited_by_worker", std::move(workers)}});
  }
  json["findings"] = Json::array();
  for (const rules::Finding& finding : findings)
    json["findings"].push_back({{"rule", finding.rule},
                                {"cause", finding.cause},
                                {"what", finding.what},
                                {"remedy", finding.remedy}});
  json["stalls"] = stacks.Stalls();
  json["lines"] = stacks.Lines();
  json["traces"] = traces.Described();
  json["machines"] = machines.Described();
  json["not_seen"] = NotSeen(table, machines);
  return json;
}

void Print(const profile::PhaseTable& table, const TimeVerdict& verdict,
           const std::vector<LoaderLine>& loaders, const std::vector<rules::Finding>& findings,
           const MachineView& machines, const StacksView& stacks, const TracesView& traces) {
  stacks.PrintStalls();
  // Where a rule has found something and waits are no trouble, the rule has the first word.
  if (findings.empty() || verdict.cause) fmt::print("{}\n", Wrapped(Escaped(verdict.text), 0, 100));
  for (const rules::Finding& finding : findings) {
    fmt::print("{}\n", Wrapped(fmt::format("{}: {}", finding.rule, Escaped(finding.what)), 2, 100));
    fmt::print("    {}\n", Wrapped(Escaped(finding.remedy), 4, 100));
  }
  fmt::print("\n");
  fmt::print("  {} in {}; a step takes {} (median), {} (95 of 100 take less)\n\n",
             Plural(table.steps, "TRAIN step", "TRAIN steps"), TimeText(table.wall_s),
             TimeText(table.median_s), TimeText(table.p95_s));
  fmt::print("  {:<12} {:>7} {:>9} {:>9} {:>9}  {}\n", "phase", "share", "median", "p95", "all", "in steps");
  for (const profile::PhaseLine& line : table.lines) {
    fmt::print("  {:<12} {:>5.1f} % {:>9} {:>9} {:>9}  {}\n",
               format::PhaseName(static_cast<std::uint8_t>(line.phase)), 100 * line.share,
               TimeText(line.median_s), TimeText(line.p95_s), TimeText(line.total_s),
               line.steps == table.steps ? "all" : std::to_string(line.steps));
  }
  fmt::print("\n");
  if (table.other_steps != 0)
    fmt::print("  between them: {} of evaluation, {}\n", Plural(table.other_steps, "step", "steps"),
               TimeText(table.other_s));
  if (table.timed_s > 0) {
    // What the kernel counts begins and ends between steps, so a thread that never sleeps can seem to run
    // longer.
    const double cpu = std::min(1.0, table.cpu_s / table.timed_s);
    const double queue = std::min(1 - cpu, table.run_queue_s / table.timed_s);
    fmt::print(
        "  the training thread ran {:.0f} % of the time, waited {:.0f} % for a core, and slept {:.0f} %\n",
        100 * cpu, 100 * queue, 100 * (1 - cpu - queue));
  }
  for (const LoaderLine& line : loaders) {
    // Each pass over a loader asks once more than it has batches.
    fmt::print("  {} {} with {}: asked {}, the batch was there {}\n",
               line.loader.type.empty() ? "loader" : Escaped(line.loader.type), line.loader.number,
               Plural(static_cast<std::uint64_t>(line.loader.workers), "worker", "workers"),
               Plural(line.batches, "time", "times"), Plural(line.ready, "time", "times"));
  }
  stacks.PrintLines();
  if (table.workers.size() > 1)
    fmt::print("  this is worker {} of {} that recorded phases; --rank names another\n", table.worker,
               table.workers.size());
  traces.Print();
  machines.Print();
  fmt::print("\n  not seen\n");
  for (const std::string& line : NotSeen(table, machines)) fmt::print("    {}\n", Wrapped(line, 4, 100));
}

void Show(const ProfileOptions& options) {
  profile::Scope scope;
  scope.worker = options.worker;
  const StepRange range = StepRangeOrExit(options.steps);
  scope.from = range.from;
  scope.to = range.to;
  const auto trial = OpenOrExit(options);
  const MachineView machines(options.run, options.price_per_hour);
  const profile::PhaseTable table = ValueOrExit(profile::TableOf(*trial, scope));
  if (table.steps == 0) {
    const std::string why = table.workers.empty() ? "this run has no phases: " + WhyNone(*trial)
                                                  : "no TRAIN step among these has phases";
    const StacksView stacks(*trial, options.worker.value_or(0));
    if (!options.json)
      stacks.PrintStalls(), fmt::print("{}\n", why), machines.Print();
    else
      PrintJson(
          {{"steps", 0}, {"why", why}, {"stalls", stacks.Stalls()}, {"machines", machines.Described()}});
    ExitWith(kExitOk);
  }
  const TimeVerdict verdict = Judge(*trial, table, scope);
  const std::vector<rules::Finding> findings = TimeFindings(*trial, verdict);
  const std::vector<LoaderLine> loaders = LoaderLines(*trial, table, scope);
  const StacksView stacks(*trial, table.worker);
  const TracesView traces(*trial, table.worker);
  if (options.json)
    PrintJson(Described(table, verdict, loaders, findings, machines, stacks, traces));
  else
    Print(table, verdict, loaders, findings, machines, stacks, traces);
  ExitWith(kExitOk);
}

}  // namespace

void AddProfile(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("profile", "Where the time went, and what would make the training faster");
  auto options = std::make_shared<ProfileOptions>();
  AddRunOption(verb, options.get());
  verb->add_option("--steps", options->steps, "Only these TRAIN steps: FROM:TO, both included");
  verb->add_option("--rank", options->worker,
                   "Of this worker; by default the first one that recorded phases");
  verb->add_option("--price-per-hour", options->price_per_hour, "Of a machine: adds what the run has cost")
      ->check(CLI::NonNegativeNumber);
  verb->callback([options] {
    FindRunOrExit(&options->run);
    if (IsProfilerFolder(options->run)) {
      if (!options->steps.empty() || options->worker)
        ExitWithError(InvalidArgument(
            "--steps and --rank go with a run of Luff; this is a folder of SageMaker's profiler: " +
            options->run));
      std::vector<std::string> words = {"profile", options->run};
      if (options->json) words.emplace_back("--json");
      BecomePython("profiler", std::move(words),
                   "folders of SageMaker's profiler are read by Luff's Python package");
    }
    Show(*options);
  });
}

}  // namespace luff::cli

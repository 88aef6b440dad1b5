#include <algorithm>

#include "base/format.h"
#include "cli/profile_machine.h"
#include "cli/profile_stacks.h"
#include "cli/profile_traces.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/profile/time_report.h"
#include "luff/rules/kept_findings.h"
#include "server/time_json.h"

namespace luff::cli {
namespace {

using profile::TimeText;

struct ProfileOptions : ReadOptions {
  std::string steps;
  double price_per_hour = 0;
};

void PrintRanks(const std::vector<profile::RankTimes>& ranks) {
  const std::string skew = profile::SkewOf(ranks);
  if (!skew.empty()) fmt::print("  {}\n", Wrapped(skew, 2, 100));
}

std::string TimeOrDash(const std::optional<double>& seconds, double steps) {
  return seconds ? TimeText(*seconds / steps) : "-";
}

void PrintModules(const profile::ModuleTable& table) {
  if (table.steps == 0) return;
  constexpr std::size_t kMost = 10;
  const auto steps = static_cast<double>(table.steps);
  fmt::print("\n  modules by their own time, {} a step in {}\n", TimeText(table.own_s / steps),
             Plural(table.steps, "timed step", "timed steps"));
  fmt::print("    {:<44} {:>7} {:>9} {:>9} {:>9}  {}\n", "", "share", "forward", "backward", "all",
             "calls a step");
  for (std::size_t i = 0; i < std::min(table.lines.size(), kMost); ++i) {
    const profile::ModuleLine& line = table.lines[i];
    std::optional<double> all = line.forward_s;
    if (all && line.backward_s) *all += *line.backward_s;
    std::string name = Escaped(line.name.empty() ? "all others" : line.name);
    if (!line.type.empty()) name += " " + Escaped(line.type);
    constexpr std::size_t kWidth = 42;
    if (name.size() > kWidth) {
      std::size_t from = name.size() - kWidth + 3;
      while (from < name.size() && (static_cast<unsigned char>(name[from]) & 0xC0) == 0x80) ++from;
      name = "..." + name.substr(from);
    }
    fmt::print("      {:<42} {:>5.1f} % {:>9} {:>9} {:>9}  {:.4g}\n", name, 100 * line.share,
               TimeText(line.forward_own_s / steps), TimeOrDash(line.backward_own_s, steps),
               TimeOrDash(all, steps), static_cast<double>(line.calls) / steps);
  }
  fmt::print("    {}`all` is with the modules that a module calls\n",
             table.modules > kMost ? "of " + Plural(table.modules, "module", "modules") + "; " : "");
}

void PrintNotSeen(const std::vector<std::string>& lines) {
  if (!lines.empty()) fmt::print("\n  not seen\n");
  for (const std::string& line : lines) fmt::print("    {}\n", Wrapped(Escaped(line), 4, 100));
}

void Print(const query::Trial& trial, const profile::TimeReport& report,
           const std::vector<rules::Finding>& findings, const profile::Machines& machines,
           double price_per_hour, const profile::StackReport& stacks, const profile::TraceReport& traces) {
  const profile::PhaseTable& table = report.table;
  PrintStalls(stacks);
  // Where a rule has found something and waits are no trouble, the rule has the first word.
  if (findings.empty() || report.verdict.cause)
    fmt::print("{}\n", Wrapped(Escaped(report.verdict.text), 0, 100));
  const auto traced = profile::TracesByFinding(trial);
  for (const rules::Finding& finding : findings) {
    fmt::print("{}\n", Wrapped(fmt::format("{}, since {} step {}: {}", finding.rule, Escaped(finding.mode),
                                           finding.since_step, Escaped(finding.what)),
                               2, 100));
    fmt::print("    {}\n", Wrapped(Escaped(finding.remedy), 4, 100));
    if (const auto files = traced.find(finding.id); files != traced.end()) PrintTraced(files->second, 4);
  }
  fmt::print("\n");
  fmt::print("  {} in {}; a step takes {} (median), {} (95 of 100 take less)\n\n",
             Plural(table.steps, "TRAIN step", "TRAIN steps"), TimeText(table.wall_s),
             TimeText(table.median_s), TimeText(table.p95_s));
  const bool device = table.device_steps != 0;
  fmt::print("  {:<12} {:>7} {:>9} {:>9} {:>9}  {}{}\n", "phase", "share", "median", "p95", "all",
             device ? fmt::format("{:>9}  ", "device") : "", "in steps");
  for (const profile::PhaseLine& line : table.lines) {
    // The mean of a step, as the device's borders are fewer than the host's.
    const std::string of_device =
        line.device_steps == 0 ? "-" : TimeText(line.device_s / static_cast<double>(line.device_steps));
    fmt::print("  {:<12} {:>5.1f} % {:>9} {:>9} {:>9}  {}{}\n",
               format::PhaseName(static_cast<std::uint8_t>(line.phase)), 100 * line.share,
               TimeText(line.median_s), TimeText(line.p95_s), TimeText(line.total_s),
               device ? fmt::format("{:>9}  ", of_device) : "",
               line.steps == table.steps ? "all" : std::to_string(line.steps));
  }
  fmt::print("\n");
  if (table.traced_steps != 0)
    fmt::print("  left out: {} in which operators were traced, {}\n",
               Plural(table.traced_steps, "TRAIN step", "TRAIN steps"), TimeText(table.traced_s));
  if (table.other_steps != 0)
    fmt::print("  between them: {} of evaluation, {}\n", Plural(table.other_steps, "step", "steps"),
               TimeText(table.other_s));
  if (table.timed_s > 0) {
    const auto [cpu, queue] = profile::ThreadSharesOf(table);
    fmt::print(
        "  the training thread ran {:.0f} % of the time, waited {:.0f} % for a core, and slept {:.0f} %\n",
        100 * cpu, 100 * queue, 100 * (1 - cpu - queue));
  }
  if (device) fmt::print("  {}\n", Wrapped(profile::DeviceText(table), 2, 100));
  for (const profile::LoaderUse& use : report.loaders) {
    // Each pass over a loader asks once more than it has batches.
    const std::string type = use.loader.type.empty() ? "loader" : Escaped(use.loader.type);
    const std::string name =
        use.loaders == 1 ? fmt::format("{} {}", type, use.loader.number)
                         : fmt::format("{} of type {}", Plural(use.loaders, "loader", "loaders"), type);
    if (use.loader.workers == 0) {  // nothing is there before it is asked for
      fmt::print("  {} without workers: asked {}\n", name, Plural(use.batches, "time", "times"));
      continue;
    }
    fmt::print("  {} with {}: asked {}, the batch was there {}\n", name,
               Plural(static_cast<std::uint64_t>(use.loader.workers), "worker", "workers"),
               Plural(use.batches, "time", "times"), Plural(use.ready, "time", "times"));
  }
  PrintLines(stacks);
  PrintRanks(table.ranks);
  if (table.workers.size() > 1)
    fmt::print("  this is worker {} of {} that recorded phases; --rank names another\n", table.worker,
               table.workers.size());
  PrintModules(report.modules);
  PrintTraces(traces, trial.path());
  PrintMachines(machines, price_per_hour);
  std::vector<std::string> not_seen = profile::NotSeen(trial, report);
  not_seen.insert(not_seen.end(), machines.not_seen.begin(), machines.not_seen.end());
  PrintNotSeen(not_seen);
}

void Show(const ProfileOptions& options) {
  profile::Scope scope;
  scope.worker = options.worker;
  const StepRange range = StepRangeOrExit(options.steps);
  scope.from = range.from;
  scope.to = range.to;
  const auto trial = OpenOrExit(options);
  const profile::TimeReport report = ValueOrExit(profile::TimeReportOf(*trial, scope));
  const profile::Machines machines = profile::MachinesOf(*trial);
  const std::vector<rules::Finding> findings =
      rules::TimeFindings(rules::FindingsOfRun(options.run).findings, !report.verdict.cause);
  const bool none = report.table.steps == 0;
  const std::uint32_t worker = none ? options.worker.value_or(0) : report.table.worker;
  const profile::StackReport stacks = profile::StackReportOf(*trial, worker);
  const profile::TraceReport traces = profile::TraceReportOf(*trial, worker);
  if (options.json) {
    PrintJson(server::DescribeTime({*trial, report, findings, machines, stacks, traces},
                                   {.price_per_hour = options.price_per_hour, .run = trial->path() + "/"}));
  } else if (none) {
    PrintStalls(stacks);
    fmt::print("{}\n", profile::WhyNoSteps(*trial, report.table));
    PrintTraces(traces, trial->path());
    PrintMachines(machines, options.price_per_hour);
    PrintNotSeen(machines.not_seen);
  } else {
    Print(*trial, report, findings, machines, options.price_per_hour, stacks, traces);
  }
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

#include <algorithm>

#include "base/format.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/profile/input.h"
#include "luff/profile/phase_table.h"
#include "luff/query/run_pieces.h"

namespace luff::cli {
namespace {

using profile::TimeText;

constexpr std::int64_t kFirst = 20;  // steps that no verdict counts, as in InputBound
constexpr double kLeastShare = 0.1, kLeastWaitS = 2e-3;

struct ProfileOptions : ReadOptions {
  std::string steps;
};

/// What a verdict needs beyond the table.
struct TimeVerdict {
  std::string text;
  std::optional<profile::Estimate> estimate;
  profile::Means means;
  double saving_s = 0;
};

std::string WhyNone(const query::Trial& trial) {
  const std::string framework =
      trial.Document("environment").find("\"torch\"") == std::string::npos ? "" : "torch";
  if (trial.step_count() == 0) return "it has no step yet";
  if (framework.empty()) return "phases are recorded of PyTorch trainings only, so far";
  return "it was written by Luff before run format 1.1, or with profile = \"off\"";
}

TimeVerdict Judge(const query::Trial& trial, const profile::PhaseTable& table, const profile::Scope& scope) {
  std::vector<profile::StepTime> steps;
  std::int64_t seen = 0;
  double judged = 0;
  const Status status =
      query::VisitPhases(trial, [&](const query::StepInfo& step, const query::StepPhases& phases) {
        if (step.mode != query::Mode::kTrain || phases.worker != table.worker) return;
        seen += phases.head.steps;
        if (seen <= kFirst || step.mode_step < scope.from || step.mode_step > scope.to) return;
        steps.push_back(profile::TimeOf(phases));
        judged += phases.head.steps;
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
  const auto loader = profile::TrainingLoader(trial.Document("loaders"));
  verdict.text = profile::WaitText(means, loader);
  verdict.estimate = profile::EstimateWorkers(means, loader ? loader->workers : 0,
                                              profile::CoresOf(trial.Document("environment")));
  if (verdict.estimate->saving_s <= 0) {
    verdict.text += "; more workers would not help, cheaper samples would";
    return verdict;
  }
  verdict.saving_s = verdict.estimate->saving_s * judged;
  verdict.text += fmt::format("; num_workers={} would save about {} of {}", verdict.estimate->workers,
                              TimeText(verdict.saving_s), TimeText(table.wall_s + table.other_s));
  return verdict;
}

std::vector<std::string> NotSeen(const profile::PhaseTable& table) {
  std::vector<std::string> lines;
  const bool waits = std::ranges::any_of(
      table.lines, [](const auto& line) { return line.phase == format::Phase::kDataWait; });
  if (!waits)
    lines.emplace_back("waits for data: no loader of PyTorch was used here, so they are part of other");
  if (table.timed_s <= 0)
    lines.emplace_back("CPU time of the training thread: /proc/self/task/*/schedstat was not read");
  lines.emplace_back(
      "devices: the times are those of the host, which waits for a GPU where it asks for a result");
  return lines;
}

Json Described(const profile::PhaseTable& table, const TimeVerdict& verdict) {
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
  if (verdict.estimate && verdict.estimate->saving_s > 0) {
    json["saving"] = {{"seconds", verdict.saving_s},
                      {"seconds_a_step", verdict.estimate->saving_s},
                      {"share", verdict.estimate->saving_s / verdict.means.step_s},
                      {"low", verdict.estimate->low_s},
                      {"high", verdict.estimate->high_s},
                      {"method", verdict.estimate->method}};
  }
  json["not_seen"] = NotSeen(table);
  return json;
}

void Print(const profile::PhaseTable& table, const TimeVerdict& verdict) {
  fmt::print("{}\n\n", Wrapped(Escaped(verdict.text), 0, 100));
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
  if (table.workers.size() > 1)
    fmt::print("  this is worker {} of {} that recorded phases; --rank names another\n", table.worker,
               table.workers.size());
  fmt::print("\n  not seen\n");
  for (const std::string& line : NotSeen(table)) fmt::print("    {}\n", Wrapped(line, 4, 100));
}

void Show(const ProfileOptions& options) {
  profile::Scope scope;
  scope.worker = options.worker;
  const StepRange range = StepRangeOrExit(options.steps);
  scope.from = range.from;
  scope.to = range.to;
  const auto trial = OpenOrExit(options);
  const profile::PhaseTable table = ValueOrExit(profile::TableOf(*trial, scope));
  if (table.steps == 0) {
    const std::string why = table.workers.empty() ? "this run has no phases: " + WhyNone(*trial)
                                                  : "no TRAIN step among these has phases";
    if (!options.json)
      fmt::print("{}\n", why);
    else
      PrintJson({{"steps", 0}, {"why", why}});
    ExitWith(kExitOk);
  }
  const TimeVerdict verdict = Judge(*trial, table, scope);
  if (options.json)
    PrintJson(Described(table, verdict));
  else
    Print(table, verdict);
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

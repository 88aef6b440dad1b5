#include "luff/profile/time_report.h"

#include <algorithm>

#include "base/format.h"
#include "profile/step_times.h"

namespace luff::profile {
namespace {

constexpr std::int64_t kFirst = 20;  // steps that no verdict counts, as in InputBound
constexpr double kLeastShare = 0.1, kLeastWaitS = 2e-3;
constexpr double kReadyS = 2e-4;
constexpr double kManifestShare = 0.1;  // of the time without a core that is worth a word

/// What is collected beside the table.
class Collector {
 public:
  explicit Collector(const Scope& scope) : scope_(scope) {}
  /// A TRAIN step of the table's worker, in or before the scope.
  void Add(const query::StepInfo& step, const query::StepPhases& phases) {
    seen_ += phases.head.steps;
    if (!scope_.Has(step)) return;
    for (const query::StepPhases::Wait& wait : phases.waits) AddWait(wait);
    if (seen_ <= kFirst) return;
    judged_ += phases.head.steps;
    // The first batch of an epoch is none that says how long the others take, as in InputBound.
    if (phases.begins[static_cast<std::size_t>(format::Phase::kDataStart)] != 0) return;
    steps_.Add(TimeOf(phases));
    waits_.Add(phases);
  }
  [[nodiscard]] TimeVerdict Judge(const query::Trial& trial, const PhaseTable& table);
  [[nodiscard]] std::vector<LoaderUse> Loaders(const query::Trial& trial) const;

 private:
  void AddWait(const query::StepPhases::Wait& wait) {
    if (wait.of.loader == format::WaitSubject::kNoLoader) return;
    LoaderUse& use = loaders_[wait.of.loader];
    const double seconds = static_cast<double>(wait.ns) * 1e-9;
    use.waited_s += seconds;
    use.batches += wait.count;
    if (seconds < kReadyS * wait.count) use.ready += wait.count;
    if (wait.of.worker != format::WaitSubject::kNoWorker) use.by_worker[wait.of.worker] += seconds;
  }

  const Scope& scope_;
  StepTimes steps_;
  Waits waits_;
  std::map<std::uint32_t, LoaderUse> loaders_;
  std::int64_t seen_ = 0;
  double judged_ = 0;
};

/// Waits for data in the table: what the first line says of them is what the table says.
PhaseLine WaitsIn(const PhaseTable& table) {
  const auto at = std::ranges::find(table.lines, format::Phase::kDataWait, &PhaseLine::phase);
  return at == table.lines.end() ? PhaseLine{.phase = format::Phase::kDataWait} : *at;
}

bool IsLong(const Means& means) noexcept {
  return means.wait_s >= kLeastShare * means.step_s && means.wait_s >= kLeastWaitS;
}

/// Processes below the table's worker that could have run and had no core, in the mean; 0 if it is not known.
double WithoutCore(const query::Trial& trial, const PhaseTable& table) {
  const Machines machines = MachinesOf(trial, {table.begin_unix_ns, table.end_unix_ns});
  for (const MachineUse& use : machines.all) {
    for (const RankUse& rank : use.ranks) {
      if (rank.worker == table.worker) return rank.children_run_queue.value_or(0);
    }
  }
  return 0;
}

/// What takes so much of the run that it shows without a rule: evaluations, or the script's own work in no
/// phase.
std::string PlainText(const PhaseTable& table) {
  constexpr double kPlainShare = 0.5;
  const double all = table.wall_s + table.other_s;
  if (all > 0 && table.other_s >= kPlainShare * all)
    return fmt::format("evaluations take {:.0f} % of the run", 100 * table.other_s / all);
  for (const PhaseLine& line : table.lines) {
    if (line.phase == format::Phase::kOther && line.share >= kPlainShare)
      return fmt::format(
          "{:.0f} % of a step lie in no phase (other): the script's own work, as making batches",
          100 * line.share);
  }
  return "";
}

/// Where nothing is to be mended: what plainly takes long, and what is waited for data.
std::string NothingText(const PhaseTable& table, const Means& means) {
  const std::string plain = PlainText(table);
  std::string text =
      plain.empty() ? "nothing found that would make it faster" : "nothing that a rule is sure of: " + plain;
  const PhaseLine waits = WaitsIn(table);
  if (waits.total_s <= 0) return text;
  text += fmt::format("{} waiting for data takes {:.1f} % of the time", plain.empty() ? ":" : ";",
                      100 * waits.share);
  const double usual = means.step_s > 0 ? means.wait_s / means.step_s : 0;
  if (usual >= kLeastShare)  // of very short steps: what it costs to ask a loader at all
    text += fmt::format(", in a usual step {}, which is too short to judge", TimeText(means.wait_s));
  else if (waits.share >= kLeastShare && usual < waits.share / 2)
    text +=
        fmt::format(", most of it in the first {} steps, for first batches, or in few long steps", kFirst);
  return text;
}

TimeVerdict Collector::Judge(const query::Trial& trial, const PhaseTable& table) {
  TimeVerdict verdict;
  if (steps_.empty()) {
    verdict.text = fmt::format("too few steps to judge: the first {} are left out", kFirst);
    return verdict;
  }
  verdict.means = steps_.Take();
  const Means means = verdict.means;
  if (!IsLong(means)) {
    verdict.text = NothingText(table, means);
    return verdict;
  }
  // More workers would not help those that have no core.
  if (const auto loader = WaitedLoader(waits_, trial.Document("loaders")); loader && loader->workers > 0) {
    verdict.means = WithCoresForWorkers(means, loader, WithoutCore(trial, table));
  }
  if (!IsLong(verdict.means)) {
    verdict.text = "nothing found that would make it faster: the loader's workers lack cores";
    return verdict;
  }
  verdict.cause = CauseOf(verdict.means, waits_, trial.Document("loaders"), trial.Document("environment"));
  const InputCause& cause = *verdict.cause;
  Means waited;  // of all steps of the table together
  waited.step_s = table.wall_s;
  waited.wait_s = WaitsIn(table).total_s;
  const std::string waits = WaitText(waited, cause.loader);
  if (cause.estimate.saving_s <= 0) {
    verdict.text =
        waits + "; " +
        (cause.cause == "pipeline" ? cause.remedy : "more workers would not help, cheaper samples would");
    return verdict;
  }
  verdict.saving_s = cause.estimate.saving_s * judged_;
  verdict.text = fmt::format("{}; {} would save about {} of {}", waits, cause.what,
                             TimeText(verdict.saving_s), TimeText(table.wall_s + table.other_s));
  // Why it is less than the wait.
  if (const double queue = ThreadSharesOf(table).queue; queue >= kManifestShare)
    verdict.text +=
        fmt::format(", not counting the {:.0f} % of the time in which its thread had no core", 100 * queue);
  else if (verdict.means.step_s < (1 - kManifestShare) * means.step_s)
    verdict.text += ", not counting the time in which the loader's workers had no core";
  return verdict;
}

std::vector<LoaderUse> Collector::Loaders(const query::Trial& trial) const {
  std::vector<LoaderUse> all;
  for (const Loader& loader : LoadersOf(trial.Document("loaders"))) {
    const auto at = loaders_.find(static_cast<std::uint32_t>(loader.number));
    if (loader.number < 0 || at == loaders_.end()) continue;
    const auto alike = std::ranges::find_if(all, [&](const LoaderUse& one) {
      return one.loader.type == loader.type && one.loader.dataset == loader.dataset &&
             one.loader.workers == loader.workers;
    });
    if (alike == all.end()) {
      all.push_back(at->second);
      all.back().loader = loader;
      continue;
    }
    ++alike->loaders;
    alike->waited_s += at->second.waited_s;
    alike->batches += at->second.batches;
    alike->ready += at->second.ready;
    for (const auto& [worker, seconds] : at->second.by_worker) alike->by_worker[worker] += seconds;
  }
  return all;
}

}  // namespace

namespace {
bool IsOfTorch(const query::Trial& trial) {
  return trial.Document("environment").find("\"torch\"") != std::string::npos;
}
}  // namespace

Result<TimeReport> TimeReportOf(const query::Trial& trial, const Scope& scope) {
  Collector collector(scope);
  LUFF_ASSIGN_OR_RETURN(
      PhaseTable table,
      TableOf(trial, scope, [&](const query::StepInfo& step, const query::StepPhases& phases) {
        collector.Add(step, phases);
      }));
  TimeReport report;
  report.table = std::move(table);
  report.loaders = collector.Loaders(trial);
  report.verdict = collector.Judge(trial, report.table);
  Scope of_worker = scope;
  of_worker.worker = report.table.worker;
  LUFF_ASSIGN_OR_RETURN(report.modules, ModulesOf(trial, of_worker));
  return report;
}

ThreadShares ThreadSharesOf(const PhaseTable& table) noexcept {
  if (table.timed_s <= 0) return {};
  const double cpu = std::min(1.0, table.cpu_s / table.timed_s);
  return {cpu, std::min(1 - cpu, table.run_queue_s / table.timed_s)};
}

std::string WhyNoSteps(const query::Trial& trial, const PhaseTable& table) {
  if (table.traced_steps != 0)
    return "operators were traced in all of these steps, which count for nothing else";
  if (!table.workers.empty()) return "no TRAIN step among these has phases";
  const std::string none = "this run has no phases: ";
  if (trial.step_count() == 0) return none + "it has no step yet";
  if (!IsOfTorch(trial))
    return none + "no phase of this framework's training was seen (docs/profiling.md has a table)";
  return none + "it was written by Luff before run format 1.1, or with profile = \"off\"";
}

std::vector<std::string> NotSeen(const query::Trial& trial, const TimeReport& report) {
  const PhaseTable& table = report.table;
  std::vector<std::string> lines;
  const bool waits = std::ranges::any_of(
      table.lines, [](const auto& line) { return line.phase == format::Phase::kDataWait; });
  if (!waits)
    lines.emplace_back(
        "waits for data: no DataLoader and no luff.wait() was used here, so they are part of other or "
        "compute");
  if (table.timed_s <= 0)
    lines.emplace_back("CPU time of the training thread: /proc/self/task/*/schedstat was not read");
  if (table.device_steps == 0)
    lines.emplace_back(
        "devices: the times are those of the host, which waits for a GPU where it asks for a result");
  for (std::string& line : NotSeen(report.modules)) lines.push_back(std::move(line));
  if (report.modules.steps == 0 && IsOfTorch(trial))
    lines.emplace_back("how long each module takes: profile = \"full\" times them, in one step of 67");
  return lines;
}

namespace {

/// A sampler writes every five seconds; what is later than this does not come any more.
constexpr double kSamplesLateS = 15;

/// How long TRAIN and other steps went on after the last sample of a machine whose sampler has not ended with
/// its job, within the span; 0 where its samples may still come.
double Unsampled(const query::Trial& trial, const query::TimeSpan& span, const query::HostSamples& host) {
  const std::size_t steps = trial.step_count();
  if (host.ended() || steps == 0) return 0;
  // One that died within its first seconds has left no sample.
  const std::int64_t since = host.last_unix_ns() > 0 ? host.last_unix_ns() : trial.step_at(0).wall_unix_ns;
  const std::int64_t last = std::min(trial.step_at(steps - 1).wall_unix_ns, span.to_unix_ns);
  const double seconds = (static_cast<double>(last) - static_cast<double>(since)) * 1e-9;
  return seconds > kSamplesLateS ? seconds : 0;
}

}  // namespace

Machines MachinesOf(const query::Trial& trial, const query::TimeSpan& span) {
  Machines machines;
  const auto samples = query::Samples::Open(trial.path());
  if (!samples.ok() || (*samples)->hosts().empty()) {
    machines.not_seen.emplace_back(
        "the machine: no sampler has measured it (`luff run` and attach() start one, unless profile is off)");
    return machines;
  }
  for (const query::HostSamples& host : (*samples)->hosts()) {
    auto use = UseOf(host, span);
    if (!use.ok()) {
      machines.not_seen.push_back("a machine: " + use.status().ToString());
      continue;
    }
    for (std::string& line : NotMeasured(host)) {
      if (std::ranges::find(machines.not_seen, line) == machines.not_seen.end())
        machines.not_seen.push_back(std::move(line));
    }
    const std::string name = use->name.empty() ? fmt::format("machine {}", use->host) : use->name;
    if (use->lives > 1)
      machines.not_seen.push_back(
          fmt::format("parts of the time of {}: its sampler was started {} times", name, use->lives));
    const double unsampled_s = Unsampled(trial, span, host);
    if (unsampled_s > 0)
      machines.not_seen.push_back(fmt::format(
          "the last {} of {}: its sampler has ended before the training, and was not started again",
          TimeText(unsampled_s), name));
    machines.unsampled_s.push_back(unsampled_s);
    machines.all.push_back(std::move(use).value());
  }
  return machines;
}

}  // namespace luff::profile

#include "luff/profile/phase_table.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "base/format.h"
#include "luff/profile/input.h"
#include "profile/step_times.h"

namespace luff::profile {
namespace {

constexpr double kNs = 1e-9;

struct Collected {
  PhaseTable table;
  TimeQuantiles steps;
  std::array<PhaseLine, format::kPhaseCount> lines;
  std::array<TimeQuantiles, format::kPhaseCount> times;
};

/// Adds to what a table and the times of a rank have in common.
template <typename To>
void AddTimes(const format::PhasesHead& head, To* to) {
  const double wall = static_cast<double>(head.wall_ns) * kNs;
  to->steps += head.steps;
  to->wall_s += wall;
  if (head.cpu_ns < 0 || head.run_queue_ns < 0) return;
  to->timed_s += wall;
  to->cpu_s += static_cast<double>(head.cpu_ns) * kNs;
  to->run_queue_s += static_cast<double>(head.run_queue_ns) * kNs;
}

void AddRank(const query::StepPhases& phases, RankTimes* to) {
  AddTimes(phases.head, to);
  for (std::size_t i = 0; i < format::kPhaseCount; ++i)
    to->seconds[i] += static_cast<double>(phases.ns[i]) * kNs;
}

void AddTrain(const query::StepPhases& phases, Collected* to) {
  const std::uint32_t count = phases.head.steps;
  if (to->table.steps == 0) to->table.begin_unix_ns = phases.ended_unix_ns - phases.head.wall_ns;
  to->table.end_unix_ns = phases.ended_unix_ns;
  AddTimes(phases.head, &to->table);
  to->steps.Add(static_cast<double>(phases.head.wall_ns) * kNs / count, count);
  if (phases.has_device()) {
    to->table.device_steps += count;
    to->table.idle_steps += phases.idle_steps;
    to->table.device_wall_s += static_cast<double>(phases.head.wall_ns) * kNs;
    to->table.device_s += static_cast<double>(phases.head.device_ns) * kNs;
  }
  for (std::size_t i = 0; i < format::kPhaseCount; ++i) {
    if (phases.ns[i] == 0 && phases.begins[i] == 0) continue;
    const double took = static_cast<double>(phases.ns[i]) * kNs;
    to->lines[i].steps += count;
    to->lines[i].total_s += took;
    if (phases.device_ns[i] >= 0) {
      to->lines[i].device_steps += count;
      to->lines[i].device_s += static_cast<double>(phases.device_ns[i]) * kNs;
    }
    to->times[i].Add(took / count, count);
  }
}

constexpr double kApart = 0.1;  // of a step: what a rank must take longer than the median to be named

struct Apart {
  std::size_t rank = 0, phase = 0;
  double most = 0, median = 0;
  [[nodiscard]] double by() const noexcept { return most - median; }
};

/// The ranks' seconds a step of one measure, compared.
Apart Compared(const std::vector<const RankTimes*>& ranks, std::size_t phase, auto seconds) {
  std::vector<double> all;
  Apart apart;
  apart.phase = phase;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    all.push_back(seconds(*ranks[i]) / static_cast<double>(ranks[i]->steps));
    if (all.back() > apart.most) apart.most = all.back(), apart.rank = i;
  }
  std::ranges::sort(all);
  apart.median = all[(all.size() - 1) / 2];  // the lower one of two
  return apart;
}

}  // namespace

std::string SkewOf(const std::vector<RankTimes>& ranks) {
  std::vector<const RankTimes*> there;
  for (const RankTimes& rank : ranks) {
    if (rank.steps > 0) there.push_back(&rank);
  }
  if (there.size() < 2) return "";
  const Apart step = Compared(there, 0, [](const RankTimes& rank) { return rank.wall_s; });
  Apart worst, backward;
  for (std::size_t i = 0; i < format::kPhaseCount; ++i) {
    const Apart one = Compared(there, i, [&](const RankTimes& rank) { return rank.seconds[i]; });
    // Ranks wait for each other in the backward pass: who is long there is the victim.
    if (i == static_cast<std::size_t>(format::Phase::kBackward))
      backward = one;
    else if (one.by() > worst.by())
      worst = one;
  }
  const double least = kApart * step.median;
  if (worst.by() < least && backward.by() < least)
    return fmt::format("{} ranks take as long as each other in every phase, to a tenth of a step",
                       there.size());
  const auto name = [](const Apart& one) { return format::PhaseName(static_cast<std::uint8_t>(one.phase)); };
  if (worst.by() < least)
    return fmt::format(
        "rank {} takes {} a step in backward, where ranks wait for each other; the median of {} ranks is {}",
        there[backward.rank]->worker, TimeText(backward.most), there.size(), TimeText(backward.median));
  std::string text =
      fmt::format("rank {} takes {} a step in {}; the median of {} ranks is {}", there[worst.rank]->worker,
                  TimeText(worst.most), name(worst), there.size(), TimeText(worst.median));
  if (backward.by() >= least && backward.rank != worst.rank)
    text += fmt::format(". Rank {} waits for it in backward: {}, the median is {}",
                        there[backward.rank]->worker, TimeText(backward.most), TimeText(backward.median));
  return text;
}

std::string DeviceText(const PhaseTable& table) {
  if (table.device_steps == 0) return "";
  const double idle = static_cast<double>(table.idle_steps) / static_cast<double>(table.device_steps);
  return fmt::format("the device had done all of the step before when {:.0f} % of the steps began",
                     100 * idle);
}

Result<PhaseTable> TableOf(const query::Trial& trial, const Scope& scope, const query::PhasesVisitor& also) {
  Collected all;
  std::map<std::uint32_t, RankTimes> workers;
  std::optional<std::uint32_t> worker = scope.worker;
  // Evaluations count once a TRAIN step in the scope comes before and after them.
  std::uint64_t waiting_steps = 0;
  double waiting_s = 0;
  LUFF_RETURN_IF_ERROR(
      query::VisitPhases(trial, [&](const query::StepInfo& step, const query::StepPhases& phases) {
        RankTimes& rank = workers[phases.worker];
        const bool traced = (phases.head.flags & format::kStepTraced) != 0;
        const bool in_scope = step.mode == query::Mode::kTrain && scope.Has(step) && !traced;
        if (in_scope) AddRank(phases, &rank);
        if (!worker) worker = phases.worker;
        if (phases.worker != *worker) return;
        if (traced) {
          if (step.mode == query::Mode::kTrain && scope.Has(step)) {
            all.table.traced_steps += phases.head.steps;
            all.table.traced_s += static_cast<double>(phases.head.wall_ns) * kNs;
          }
          return;
        }
        if (step.mode != query::Mode::kTrain) {
          waiting_steps += phases.head.steps;
          waiting_s += static_cast<double>(phases.head.wall_ns) * kNs;
          return;
        }
        if (also) also(step, phases);
        if (in_scope) {
          if (all.table.steps != 0) {
            all.table.other_steps += waiting_steps;
            all.table.other_s += waiting_s;
          }
          AddTrain(phases, &all);
        }
        waiting_steps = 0;
        waiting_s = 0;
      }));
  if (scope.worker && !workers.empty() && !workers.contains(*scope.worker)) {
    std::string known;
    for (const auto& [one, times] : workers) known += (known.empty() ? "" : ", ") + std::to_string(one);
    return NotFound("worker " + std::to_string(*scope.worker) + " recorded no phases; these did: " + known);
  }
  PhaseTable table = std::move(all.table);
  table.worker = worker.value_or(0);
  for (auto& [number, times] : workers) {
    times.worker = number;
    table.workers.push_back(number);
    table.ranks.push_back(times);
  }
  table.median_s = all.steps.At(0.5);
  table.p95_s = all.steps.At(0.95);
  for (std::size_t i = 0; i < format::kPhaseCount; ++i) {
    PhaseLine& line = all.lines[i];
    if (line.steps == 0) continue;
    line.phase = static_cast<format::Phase>(i);
    line.share = table.wall_s > 0 ? line.total_s / table.wall_s : 0;
    line.median_s = all.times[i].At(0.5);
    line.p95_s = all.times[i].At(0.95);
    table.lines.push_back(line);
  }
  std::ranges::sort(table.lines, std::greater<>(), &PhaseLine::total_s);
  return table;
}

}  // namespace luff::profile

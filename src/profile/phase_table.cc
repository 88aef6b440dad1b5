#include "luff/profile/phase_table.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "luff/query/run_pieces.h"

namespace luff::profile {
namespace {

constexpr double kNs = 1e-9;

/// Times of single steps. A merged row stands for as many steps of the same length.
class Times {
 public:
  void Add(double seconds, std::uint32_t steps) {
    for (std::uint32_t i = 0; i < std::min(steps, kMostOfOne); ++i)
      all_.push_back(static_cast<float>(seconds));
  }
  [[nodiscard]] double At(double share) {
    if (all_.empty()) return 0;
    const auto place = static_cast<std::ptrdiff_t>(share * static_cast<double>(all_.size() - 1));
    std::nth_element(all_.begin(), all_.begin() + place, all_.end());
    return all_[static_cast<std::size_t>(place)];
  }

 private:
  static constexpr std::uint32_t kMostOfOne = 10'000;  // a row merged four times
  std::vector<float> all_;
};

struct Collected {
  PhaseTable table;
  Times steps;
  std::array<PhaseLine, format::kPhaseCount> lines;
  std::array<Times, format::kPhaseCount> times;
};

void AddTrain(const query::StepPhases& phases, Collected* to) {
  const std::uint32_t count = phases.head.steps;
  const double wall = static_cast<double>(phases.head.wall_ns) * kNs;
  to->table.steps += count;
  to->table.wall_s += wall;
  to->steps.Add(wall / count, count);
  if (phases.head.cpu_ns >= 0 && phases.head.run_queue_ns >= 0) {
    to->table.timed_s += wall;
    to->table.cpu_s += static_cast<double>(phases.head.cpu_ns) * kNs;
    to->table.run_queue_s += static_cast<double>(phases.head.run_queue_ns) * kNs;
  }
  for (std::size_t i = 0; i < format::kPhaseCount; ++i) {
    if (phases.ns[i] == 0 && phases.begins[i] == 0) continue;
    const double took = static_cast<double>(phases.ns[i]) * kNs;
    to->lines[i].steps += count;
    to->lines[i].total_s += took;
    to->times[i].Add(took / count, count);
  }
}

}  // namespace

Result<PhaseTable> TableOf(const query::Trial& trial, const Scope& scope) {
  Collected all;
  std::set<std::uint32_t> workers;
  std::optional<std::uint32_t> worker = scope.worker;
  // Evaluations count once a TRAIN step in the scope comes before and after them.
  std::uint64_t waiting_steps = 0;
  double waiting_s = 0;
  LUFF_RETURN_IF_ERROR(
      query::VisitPhases(trial, [&](const query::StepInfo& step, const query::StepPhases& phases) {
        workers.insert(phases.worker);
        if (!worker) worker = phases.worker;
        if (phases.worker != *worker) return;
        if (step.mode != query::Mode::kTrain) {
          waiting_steps += phases.head.steps;
          waiting_s += static_cast<double>(phases.head.wall_ns) * kNs;
          return;
        }
        if (step.mode_step >= scope.from && step.mode_step <= scope.to) {
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
    for (const std::uint32_t one : workers) known += (known.empty() ? "" : ", ") + std::to_string(one);
    return NotFound("worker " + std::to_string(*scope.worker) + " recorded no phases; these did: " + known);
  }
  PhaseTable table = std::move(all.table);
  table.worker = worker.value_or(0);
  table.workers.assign(workers.begin(), workers.end());
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

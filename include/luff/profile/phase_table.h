#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "luff/query/run_pieces.h"

/// Where the time of a run went, by phase.
namespace luff::profile {

/// What a table covers.
struct Scope {
  std::optional<std::uint32_t> worker;  // none: the first that recorded phases
  std::int64_t from = 0;                // TRAIN steps, both included
  std::int64_t to = INT64_MAX;
  bool global = false;  // from and to are global steps
  [[nodiscard]] bool Has(const query::StepInfo& step) const noexcept {
    const std::int64_t number = global ? step.global_step : step.mode_step;
    return number >= from && number <= to;
  }
};

/// One phase in the TRAIN steps in which it occurred.
struct PhaseLine {
  format::Phase phase = format::Phase::kOther;
  std::uint64_t steps = 0;         // that have it
  double total_s = 0;              // in all of them
  double share = 0;                // of the time of all TRAIN steps
  double median_s = 0, p95_s = 0;  // of a step that has it
  std::uint64_t device_steps = 0;  // in which a device's time of it is known
  double device_s = 0;             // of the device in these
};

/// One worker in the TRAIN steps of a table: sums over all of them.
struct RankTimes {
  std::uint32_t worker = 0;
  std::uint64_t steps = 0;
  double wall_s = 0, timed_s = 0, cpu_s = 0, run_queue_s = 0;  // as in PhaseTable
  std::array<double, format::kPhaseCount> seconds{};           // by phase
};
/// What sets the ranks apart, as a sentence: the phase in which one of them takes longest, beyond the median
/// of all, and who waits for it. "" for one rank, or none.
[[nodiscard]] std::string SkewOf(const std::vector<RankTimes>& ranks);

struct PhaseTable {
  std::uint32_t worker = 0;
  std::uint64_t steps = 0;  // TRAIN steps with phases; a merged one counts as all that it stands for
  double wall_s = 0;        // of these
  double median_s = 0, p95_s = 0;
  std::uint64_t traced_steps = 0;  // TRAIN steps in which operators were traced: they count for nothing else
  double traced_s = 0;
  std::uint64_t other_steps = 0;  // evaluations and predictions between the first and the last of them
  double other_s = 0;
  // Of the training thread in TRAIN steps, over those for which they are known.
  double timed_s = 0, cpu_s = 0, run_queue_s = 0;
  // Of a device, over the TRAIN steps for which it is known: their time on the host, and from border to
  // border on the device, which worked or waited; steps at whose begin it had nothing left to do.
  std::uint64_t device_steps = 0, idle_steps = 0;
  double device_wall_s = 0, device_s = 0;
  std::vector<PhaseLine> lines;                     // the longest first
  std::vector<std::uint32_t> workers;               // that recorded phases
  std::vector<RankTimes> ranks;                     // each of them, with steps or without
  std::int64_t begin_unix_ns = 0, end_unix_ns = 0;  // of its TRAIN steps, by the worker's clock
};

/// What the times of the device say, as a sentence; "" where they are not known.
[[nodiscard]] std::string DeviceText(const PhaseTable& table);

/// `also` is called for each TRAIN step of the table's worker, in the scope or not. Errors: those of reading;
/// kNotFound for a worker without phases, if others have some.
[[nodiscard]] Result<PhaseTable> TableOf(const query::Trial& trial, const Scope& scope,
                                         const query::PhasesVisitor& also = {});

}  // namespace luff::profile

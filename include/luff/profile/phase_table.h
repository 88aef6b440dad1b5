#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "luff/query/trial.h"

/// Where the time of a run went, by phase.
namespace luff::profile {

/// What a table covers.
struct Scope {
  std::optional<std::uint32_t> worker;  // none: the first that recorded phases
  std::int64_t from = 0;                // TRAIN steps, both included
  std::int64_t to = INT64_MAX;
};

/// One phase in the TRAIN steps in which it occurred.
struct PhaseLine {
  format::Phase phase = format::Phase::kOther;
  std::uint64_t steps = 0;         // that have it
  double total_s = 0;              // in all of them
  double share = 0;                // of the time of all TRAIN steps
  double median_s = 0, p95_s = 0;  // of a step that has it
};

struct PhaseTable {
  std::uint32_t worker = 0;
  std::uint64_t steps = 0;  // TRAIN steps with phases; a merged one counts as all that it stands for
  double wall_s = 0;        // of these
  double median_s = 0, p95_s = 0;
  std::uint64_t other_steps = 0;  // evaluations and predictions between the first and the last of them
  double other_s = 0;
  // Of the training thread in TRAIN steps, over those for which they are known.
  double timed_s = 0, cpu_s = 0, run_queue_s = 0;
  std::vector<PhaseLine> lines;        // the longest first
  std::vector<std::uint32_t> workers;  // that recorded phases
};

/// Errors: those of reading; kNotFound for a worker without phases, if others have some.
[[nodiscard]] Result<PhaseTable> TableOf(const query::Trial& trial, const Scope& scope);

}  // namespace luff::profile

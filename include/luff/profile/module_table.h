#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "luff/profile/phase_table.h"

/// How long the modules of a model take, in the steps in which their calls were timed.
namespace luff::profile {

/// One module over all timed steps. `whole` is with the modules that it calls, `own` without.
struct ModuleLine {
  std::string name, type;  // name "": all modules without a line of their own
  std::int64_t number = -1;
  std::uint64_t calls = 0;
  std::optional<double> forward_s;  // whole; none for the line without a name
  double forward_own_s = 0;
  std::optional<double> backward_s, backward_own_s;  // none: not seen
  double share = 0;                                  // of the own time of all modules, forward and backward
  [[nodiscard]] double own_s() const noexcept { return forward_own_s + backward_own_s.value_or(0); }
};

struct ModuleTable {
  std::uint32_t worker = 0;
  std::uint64_t steps = 0;        // that were timed
  std::uint64_t modules = 0;      // most that were called in one of them
  double own_s = 0;               // of all modules
  std::vector<ModuleLine> lines;  // the dearest by its own time first
  bool hidden = false;            // some ran inside compiled or scripted graphs
  bool recomputed = false;        // the backward pass computes activations again: it is left out
  bool too_many = false;          // a step had more calls than are timed
};

/// Of the scope's worker; without one, of the first that timed some. Without steps: nothing was timed.
/// Errors: those of reading.
[[nodiscard]] Result<ModuleTable> ModulesOf(const query::Trial& trial, const Scope& scope);

/// What of the modules was not seen, as sentences.
[[nodiscard]] std::vector<std::string> NotSeen(const ModuleTable& table);

}  // namespace luff::profile

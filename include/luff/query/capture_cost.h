#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "luff/query/trial.h"

namespace luff::query {

/// What recording has taken of a training so far, as its writer says (document "cost" of the run format).
struct CaptureCost {
  std::uint64_t steps = 0;
  double spent_s = 0;  // on the training thread: passes over tensors, handing steps over
  double time_s = 0;   // of these steps, from the end of one to the end of the next
  [[nodiscard]] double share() const noexcept { return spent_s / time_s; }
};

/// nullopt for anything but a document that has a time. What is spent is at most that.
[[nodiscard]] std::optional<CaptureCost> ParseCaptureCostUntrusted(std::string_view document);
/// Of the first worker that says it.
[[nodiscard]] std::optional<CaptureCost> CaptureCostOf(const Trial& trial);

}  // namespace luff::query

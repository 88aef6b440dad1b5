#pragma once
#include <span>
#include <string>

#include "luff/rules/finding.h"

/// Findings of one cause belong together: the first fault leads, what follows from it stands beneath it.
namespace luff::rules {

/// How close to the cause a rule looks: 0 a mistake in the program, the data or the settings; 1 what it does
/// to values inside the model; 2 what it does to the loss and the outputs; 3 a rule that explains nothing and
/// is explained by nothing (a user's own, one that compares, one that speaks of itself alone).
[[nodiscard]] int TierOf(const std::string& rule) noexcept;

/// Id of the finding that explains a new one, or "": an open finding whose rule makes learning fail in the
/// way that the new one tells (or of which it is a certain consequence), seen at the same step or before, no
/// further from the cause, and a leader itself. Of several the one closest to the cause, then the earliest.
[[nodiscard]] std::string LeaderOf(const Finding& finding, std::span<const Finding> known);

/// Whether a new finding takes over one that was told before: it is closer to the cause, and its trouble
/// began no later.
[[nodiscard]] bool TakesOver(const Finding& leader, const Finding& earlier);

}  // namespace luff::rules

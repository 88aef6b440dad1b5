#pragma once
#include <span>
#include <string>

#include "luff/rules/finding.h"

/// Groups findings of one cause: the original fault leads, and its consequences follow it.
namespace luff::rules {

/// How close to the cause a rule looks. 0: a mistake in the program, the data or the settings. 1: its effect
/// on values inside the model. 2: its effect on the loss and the outputs. 3: all other rules (a user's own
/// rules, comparisons, findings that stand alone); apart from a few certain consequences they explain nothing
/// and are not explained.
[[nodiscard]] int TierOf(const std::string& rule) noexcept;

/// Id of the finding that explains a new one, or "". It must be open, not a forecast, a leader itself, seen
/// at the same step or before, and no further from the cause; and its rule must make learning fail in the way
/// that the new one reports, unless the new one is a certain consequence of it. Of several, returns the one
/// closest to the cause, then the earliest.
[[nodiscard]] std::string LeaderOf(const Finding& finding, std::span<const Finding> known);

/// Whether a new finding `leader` becomes the leader of one that was reported before: it explains it, is
/// closer to the cause, and its trouble began no later.
[[nodiscard]] bool TakesOver(const Finding& leader, const Finding& earlier);

}  // namespace luff::rules

#pragma once
#include "rules/facts/loss_call.h"

namespace luff::rules {

/// Whether a dropout of `p` has worked on scores last: so many are exactly 0, and what is left has both
/// signs. Scores that a script masks are other ones: whole rows that pad, columns, or as many as have no
/// label.
[[nodiscard]] bool Dropped(const SampleValues& output, double p);

/// Whether targets are missing where predictions are 0: all are 0, not finite, or one value, or they are more
/// often 0 or not finite than elsewhere, beyond three standard errors. A mask has made the zeros then, of
/// both.
[[nodiscard]] bool AreMasked(const SampleValues& output, const SampleValues& target);

}  // namespace luff::rules

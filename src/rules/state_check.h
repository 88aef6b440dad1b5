#pragma once
#include <string_view>

#include "luff/base/status.h"

namespace luff::rules {

/// Whether the saved state of a rule, or a checkpoint, holds only numbers that a rule may calculate with:
/// up to +-2^53, so that no conversion and no sum of some of them overflows. Texts within are not looked
/// into. A rule whose state holds larger ones begins at the first step. Errors: kCorruption, also for what is
/// no JSON.
[[nodiscard]] Status CheckStateUntrusted(std::string_view json);

}  // namespace luff::rules

#pragma once
#include <string_view>

#include "luff/base/status.h"

namespace luff::rules {

/// Whether a checkpoint holds only numbers that may be calculated with: up to +-2^53, so that no conversion
/// and no sum of some of them overflows. Texts within are not looked into. Errors: kCorruption, also for what
/// is no JSON.
[[nodiscard]] Status CheckStateUntrusted(std::string_view json);

}  // namespace luff::rules

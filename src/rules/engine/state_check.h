#pragma once
#include <string_view>

#include "luff/base/status.h"

namespace luff::rules {

/// Checks that all numbers of a checkpoint are within +-2^53, so that no conversion and no sum of a few of
/// them overflows. Does not look into texts, such as the states of rules. Errors: kCorruption, also for text
/// that is not JSON or nested too deeply.
[[nodiscard]] Status CheckStateUntrusted(std::string_view json);

}  // namespace luff::rules

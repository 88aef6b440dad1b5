#pragma once
#include <functional>
#include <memory>
#include <string_view>

#include "luff/base/result.h"
#include "luff/rules/rule.h"

namespace luff::rules {

/// Whether a checkpoint holds only numbers that may be calculated with: up to +-2^53, so that no conversion
/// and no sum of some of them overflows. Texts within are not looked into. Errors: kCorruption, also for what
/// is no JSON.
[[nodiscard]] Status CheckStateUntrusted(std::string_view json);

/// The same for the saved state of a rule, in which a real number may be larger where the rule reads a real
/// number: sums of squares of a loss that explodes are. Where that is, a second rule from `make` tells, which
/// loads the state with 0.5 in all those places: where it saves an integer, or nothing, it would have
/// converted. A rule whose state is refused begins at the first step.
[[nodiscard]] Status CheckRuleStateUntrusted(std::string_view json,
                                             const std::function<Result<std::unique_ptr<Rule>>()>& make);

}  // namespace luff::rules

#pragma once
#include "luff/base/result.h"
#include "luff/rules/rule.h"

namespace luff::rules {

inline constexpr const char* kOwnRulesPage = "docs/own-rules.md";

/// The rule of a condition: parameters name, when, and severity ("warn" or "stop"), message, for (steps in a
/// row), mode. Errors: kInvalidArgument; a mistake in the condition is shown with its place.
[[nodiscard]] Result<RuleSpec> ExpressionSpec(const Parameters& given);

}  // namespace luff::rules

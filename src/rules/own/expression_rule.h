#pragma once
#include "luff/base/result.h"
#include "luff/rules/rule.h"

namespace luff::rules {

inline constexpr const char* kOwnRulesPage = "docs/own-rules.md";

/// The spec of a rule that checks a condition. Required parameters: name, when. Optional: severity ("warn" or
/// "stop"), message, for (steps in a row), mode. Errors: kInvalidArgument; for a mistake in the condition the
/// message shows its position.
[[nodiscard]] Result<RuleSpec> ExpressionSpec(const Parameters& given);

}  // namespace luff::rules

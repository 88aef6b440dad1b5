#pragma once
#include <string>
#include <string_view>

#include "luff/base/result.h"
#include "luff/rules/rule.h"

/// Rules of the user's by the text that names them (docs/own-rules.md):
///   path/to/file.py:MyRule   a class in a Python file
///   path/to/libmine.so:Name  a rule of a shared library
///   NAME                     an entry point of the group luff.rules, when no built-in rule has the name
///   expression               a condition; its parameters are name, when, severity, message, for
namespace luff::rules {

/// Whether the text names a rule of the user's by its form; an entry point is not told from it.
[[nodiscard]] bool NamesOwnRule(std::string_view name) noexcept;

/// What the rule is; lives as long as the process. For Python and shared libraries a child is asked, once for
/// the same text and parameters. Errors: kNotFound, kInvalidArgument with what is wrong, kDeadlineExceeded.
[[nodiscard]] Result<const RuleSpec*> OwnRuleSpec(const std::string& name, const Parameters& given);

/// Values of parameters in the text of choices: "%2C", "%3A" and "%25" stand for ',', ':' and '%'.
[[nodiscard]] std::string EncodeValue(std::string_view value);
[[nodiscard]] std::string DecodeValue(std::string_view text);

/// What rules of the user's print goes to standard error; otherwise only their last line is told when they
/// die.
void ShowOutputOfOwnRules(bool show) noexcept;

}  // namespace luff::rules

#pragma once
#include <string>
#include <string_view>

#include "luff/base/result.h"
#include "luff/rules/rule.h"

/// The user's own rules, by the text that selects them (docs/own-rules.md):
///   path/to/file.py:MyRule   a class in a Python file
///   path/to/libmine.so:Name  a rule of a shared library
///   NAME                     an entry point of the group luff.rules, if no built-in rule has this name
///   expression               a condition; its parameters are name, when, severity, message, for, mode
namespace luff::rules {

/// Whether the text has the form of an own rule. False for an entry point, which looks like the name of a
/// built-in rule.
[[nodiscard]] bool NamesOwnRule(std::string_view name) noexcept;

/// The spec of the rule; lives as long as the process. Rules in Python and shared libraries are described by
/// a child process, once for the same text and parameters. Errors: kNotFound, kInvalidArgument with what is
/// wrong, kDeadlineExceeded.
[[nodiscard]] Result<const RuleSpec*> OwnRuleSpec(const std::string& name, const Parameters& given);

/// Values of parameters in the text of choices: "%2C", "%3A" and "%25" stand for ',', ':' and '%'.
[[nodiscard]] std::string EncodeValue(std::string_view value);
[[nodiscard]] std::string DecodeValue(std::string_view text);

/// With `show`, what own rules print goes to standard error; otherwise only their last line is reported when
/// they die. For rules whose spec is made afterwards.
void ShowOutputOfOwnRules(bool show) noexcept;
/// Whether rules that are chosen from now on have one process for all runs. Errors of OwnRuleSpec then:
/// kInvalidArgument for a shared library, which has one for each run.
void ShareProcessesOfOwnRules(bool share) noexcept;

}  // namespace luff::rules

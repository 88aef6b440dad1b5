#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"
#include "luff/rules/rule.h"

/// Which rules to run, with which parameters, and what to capture for them.
namespace luff::rules {

/// One rule with all its parameters.
struct Choice {
  const RuleSpec* spec = nullptr;
  Parameters parameters;
};

/// Parses "NAME[:param=value…],NAME…"; "" and "all" name all built-in rules ("all" also beside others),
/// "none" names none. FILE.py:NAME, FILE.so:NAME and entry points name the user's own rules; a child process
/// describes them. "%2C", "%3A" and "%25" in their values stand for ',', ':' and '%'. A value may hold ':' (a
/// new parameter begins only at ":word="); lists inside a value are written with ';'. Errors: kNotFound for a
/// rule, kInvalidArgument for a parameter, both with the nearest names; a rule named twice.
[[nodiscard]] Result<std::vector<Choice>> ParseChoices(std::string_view text, ParameterSet set);
/// The text that parses to the same choices with the same set.
[[nodiscard]] std::string ChoicesToText(std::span<const Choice> choices);
/// "luff" or "original". Errors: kInvalidArgument.
[[nodiscard]] Result<ParameterSet> ParseParameterSet(std::string_view text);
[[nodiscard]] std::string_view ParameterSetName(ParameterSet set) noexcept;

/// The capture configuration (JSON): what Luff records by default, plus the union of the rules' needs.
/// `extra` (JSON object text or "") is merged over it: its members replace ours, its collections are
/// appended, a collection of the same name replaces ours. Errors: kInvalidArgument when `extra` is no JSON
/// object. Source: docs/spec/capture-config.md; read by the capture room.
[[nodiscard]] Result<std::string> CaptureConfigFor(std::span<const Choice> choices,
                                                   std::string_view extra = {});

}  // namespace luff::rules

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

/// Parses "NAME[:param=value…],NAME…". "" and "all" select all built-in rules ("all" may be combined with
/// other names), "none" selects none. The word "later" among them says who judges, not what: it is passed
/// over (TakeLater). FILE.py:NAME, FILE.so:NAME and entry points select the user's own rules, which a child
/// process describes; in their values "%2C", "%3A" and "%25" stand for ',', ':' and '%'. A value may contain
/// ':' (a new parameter begins only at ":word="); lists inside a value are separated by
/// ';'. Errors: kNotFound for an unknown rule and kInvalidArgument for a bad parameter, both with the nearest
/// names; kInvalidArgument for a rule named twice.
[[nodiscard]] Result<std::vector<Choice>> ParseChoices(std::string_view text, ParameterSet set);
/// Removes the word "later" from such a text: the rules are judged later or elsewhere, and what they look at
/// is recorded. False, and nothing removed, without it.
[[nodiscard]] bool TakeLater(std::string* text);
/// Returns text that ParseChoices turns into the same choices, given the same set.
[[nodiscard]] std::string ChoicesToText(std::span<const Choice> choices);
/// "luff" or "original". Errors: kInvalidArgument.
[[nodiscard]] Result<ParameterSet> ParseParameterSet(std::string_view text);
[[nodiscard]] std::string_view ParameterSetName(ParameterSet set) noexcept;

/// The capture configuration (JSON): what Luff records by default, plus the union of the rules' needs.
/// `extra` (JSON object text or "") is merged over it: its members replace ours, its collections are
/// appended, a collection of the same name replaces ours. Errors: kInvalidArgument when `extra` is not a JSON
/// object or its collections are malformed. Format: docs/capture.md.
[[nodiscard]] Result<std::string> CaptureConfigFor(std::span<const Choice> choices,
                                                   std::string_view extra = {});

}  // namespace luff::rules

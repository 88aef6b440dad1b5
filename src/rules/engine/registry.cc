#include <algorithm>
#include <array>
#include <string>

#include "base/format.h"
#include "base/nearest_names.h"
#include "luff/rules/rule.h"

namespace luff::rules {

#define LUFF_RULE(name)          \
  namespace name {               \
  [[nodiscard]] RuleSpec Spec(); \
  }
#include "rules/builtin_rules.inc"  // made by src/rules/CMakeLists.txt
#undef LUFF_RULE

namespace {

std::string Nearest(std::string_view name, const std::vector<std::string>& known) {
  return fmt::format("{}", fmt::join(NearestNames(name, known), ", "));
}

}  // namespace

std::span<const RuleSpec> BuiltinRules() {
  static const auto kRules = [] {
    std::array rules = {
#define LUFF_RULE(name) name::Spec(),
#include "rules/builtin_rules.inc"
#undef LUFF_RULE
    };
    std::sort(rules.begin(), rules.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return rules;
  }();
  return kRules;
}

Result<const RuleSpec*> FindRule(std::string_view name) {
  std::vector<std::string> known;
  for (const RuleSpec& rule : BuiltinRules()) {
    if (rule.name == name || std::find(rule.aliases.begin(), rule.aliases.end(), name) != rule.aliases.end())
      return &rule;
    known.push_back(rule.name);
    known.insert(known.end(), rule.aliases.begin(), rule.aliases.end());
  }
  return NotFound(
      fmt::format("there is no rule '{}'; nearest: {}; see `luff rules`", name, Nearest(name, known)));
}

Result<Parameters> CompleteParameters(const RuleSpec& rule, ParameterSet set, const Parameters& given) {
  Parameters complete;
  std::vector<std::string> known;
  for (const Parameter& parameter : rule.parameters) {
    complete[parameter.name] =
        set == ParameterSet::kLuff ? parameter.luff_default : parameter.original_default;
    known.push_back(parameter.name);
  }
  complete["parameters"] = set == ParameterSet::kLuff ? "luff" : "original";
  for (const auto& [name, value] : given) {
    if (name == "parameters") continue;
    if (!complete.contains(name)) {
      return InvalidArgument(
          fmt::format("rule {} has no parameter '{}'; nearest: {}; see `luff rules explain {}`", rule.name,
                      name, Nearest(name, known), rule.name));
    }
    complete[name] = value;
  }
  // Values are parsed where they are used; making the rule once tells a bad one now.
  const Result<std::unique_ptr<Rule>> made = rule.make(complete);
  if (made.ok()) return complete;
  for (const auto& [name, value] : given) {  // which one is it?
    if (!complete.contains(name) || name == "parameters") continue;
    Parameters alone = complete;
    for (const Parameter& parameter : rule.parameters) {
      if (parameter.name != name)
        alone[parameter.name] =
            set == ParameterSet::kLuff ? parameter.luff_default : parameter.original_default;
    }
    const Result<std::unique_ptr<Rule>> tried = rule.make(alone);
    if (!tried.ok())
      return tried.status().WithContext(fmt::format("parameter '{}' of rule {}", name, rule.name));
  }
  return made.status().WithContext("rule " + rule.name);
}

}  // namespace luff::rules

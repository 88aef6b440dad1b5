#include "luff/rules/choice.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

namespace luff::rules {
namespace {

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Position of the next ':' that begins "word=", or npos.
std::size_t NextParameter(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ':') continue;
    std::size_t j = i + 1;
    while (j < text.size() && IsWord(text[j])) ++j;
    if (j > i + 1 && j < text.size() && text[j] == '=') return i;
  }
  return std::string_view::npos;
}

Result<Choice> ParseChoice(std::string_view text, ParameterSet set) {
  std::size_t cut = NextParameter(text);
  const std::string_view name = text.substr(0, cut);
  LUFF_ASSIGN_OR_RETURN(const RuleSpec* spec, FindRule(name));
  Parameters given;
  while (cut != std::string_view::npos) {
    text.remove_prefix(cut + 1);
    cut = NextParameter(text);
    const std::string_view one = text.substr(0, cut);
    const std::size_t equals = one.find('=');
    given[std::string(one.substr(0, equals))] = std::string(one.substr(equals + 1));
  }
  LUFF_ASSIGN_OR_RETURN(Parameters complete, CompleteParameters(*spec, set, given));
  return Choice{spec, std::move(complete)};
}

}  // namespace

Result<ParameterSet> ParseParameterSet(std::string_view text) {
  if (text == "luff") return ParameterSet::kLuff;
  if (text == "original") return ParameterSet::kOriginal;
  return InvalidArgument(fmt::format("'{}' is no parameter set; there are luff and original", text));
}

std::string_view ParameterSetName(ParameterSet set) noexcept {
  return set == ParameterSet::kLuff ? "luff" : "original";
}

Result<std::vector<Choice>> ParseChoices(std::string_view text, ParameterSet set) {
  std::vector<Choice> choices;
  if (text == "none") return choices;
  if (text.empty() || text == "all") {
    for (const RuleSpec& spec : BuiltinRules()) {
      LUFF_ASSIGN_OR_RETURN(Parameters complete, CompleteParameters(spec, set, {}));
      choices.push_back({&spec, std::move(complete)});
    }
    return choices;
  }
  while (true) {
    const std::size_t cut = text.find(',');
    LUFF_ASSIGN_OR_RETURN(Choice choice, ParseChoice(text.substr(0, cut), set));
    if (std::any_of(choices.begin(), choices.end(), [&](const Choice& c) { return c.spec == choice.spec; })) {
      return InvalidArgument(
          fmt::format("rule {} is named twice; name it once with all its parameters", choice.spec->name));
    }
    choices.push_back(std::move(choice));
    if (cut == std::string_view::npos) return choices;
    text.remove_prefix(cut + 1);
  }
}

std::string ChoicesToText(std::span<const Choice> choices) {
  if (choices.empty()) return "none";
  std::string text;
  for (const Choice& choice : choices) {
    if (!text.empty()) text += ',';
    text += choice.spec->name;
    for (const auto& [name, value] : choice.parameters) {
      if (name == "parameters") continue;
      std::string list = value;
      std::replace(list.begin(), list.end(), ',', ';');
      text += fmt::format(":{}={}", name, list);
    }
  }
  return text;
}

}  // namespace luff::rules

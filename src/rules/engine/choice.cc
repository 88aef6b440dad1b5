#include "luff/rules/choice.h"

#include <algorithm>
#include <cctype>

#include "base/format.h"
#include "rules/own/own_spec.h"

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
  const std::string name(text.substr(0, cut));
  Parameters given;
  while (cut != std::string_view::npos) {
    text.remove_prefix(cut + 1);
    cut = NextParameter(text);
    const std::string_view one = text.substr(0, cut);
    const std::size_t equals = one.find('=');
    given[std::string(one.substr(0, equals))] = std::string(one.substr(equals + 1));
  }
  const Result<const RuleSpec*> built_in =
      NamesOwnRule(name) ? Result<const RuleSpec*>(NotFound("")) : FindRule(name);
  if (!built_in.ok()) {
    for (auto& [parameter, value] : given) value = DecodeValue(value);
    const Result<const RuleSpec*> own = OwnRuleSpec(name, given);
    if (own.ok()) return Choice{own.value(), std::move(given)};
    // It is neither a built-in nor an own rule: the nearest built-in names help more than Python's message.
    return NamesOwnRule(name) || own.status().code() != StatusCode::kNotFound ? own.status()
                                                                              : built_in.status();
  }
  const RuleSpec* spec = built_in.value();
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

bool TakeLater(std::string* text) {
  constexpr std::string_view kLater = "later";
  bool found = false;
  std::string left;
  for (std::size_t from = 0; from <= text->size();) {
    const std::size_t cut = std::min(text->find(',', from), text->size());
    const std::string_view one = std::string_view(*text).substr(from, cut - from);
    from = cut + 1;
    if (one == kLater) {
      found = true;
      continue;
    }
    if (!left.empty()) left += ',';
    left += one;
  }
  if (found) *text = std::move(left);
  return found;
}

Result<std::vector<Choice>> ParseChoices(std::string_view given, ParameterSet set) {
  std::string judged(given);
  (void)TakeLater(&judged);
  std::string_view text = judged;
  std::vector<Choice> choices;
  if (text == "none") return choices;
  if (text.empty()) text = "all";
  bool all = false;
  while (true) {
    const std::size_t cut = text.find(',');
    if (text.substr(0, cut) == "all") {
      all = true;
      if (cut == std::string_view::npos) break;
      text.remove_prefix(cut + 1);
      continue;
    }
    LUFF_ASSIGN_OR_RETURN(Choice choice, ParseChoice(text.substr(0, cut), set));
    if (std::any_of(choices.begin(), choices.end(),
                    [&](const Choice& c) { return c.spec->name == choice.spec->name; })) {
      return InvalidArgument(
          fmt::format("rule {} is named twice; name it once with all its parameters", choice.spec->name));
    }
    choices.push_back(std::move(choice));
    if (cut == std::string_view::npos) break;
    text.remove_prefix(cut + 1);
  }
  if (!all) return choices;
  // All built-in rules, those that are named with their given parameters, then the user's own rules.
  std::vector<Choice> every;
  for (const RuleSpec& spec : BuiltinRules()) {
    const auto named =
        std::find_if(choices.begin(), choices.end(), [&](const Choice& c) { return c.spec == &spec; });
    if (named != choices.end()) {
      every.push_back(std::move(*named));
      choices.erase(named);
      continue;
    }
    LUFF_ASSIGN_OR_RETURN(Parameters complete, CompleteParameters(spec, set, {}));
    every.push_back({&spec, std::move(complete)});
  }
  for (Choice& choice : choices) {
    if (std::any_of(every.begin(), every.end(),
                    [&](const Choice& c) { return c.spec->name == choice.spec->name; })) {
      return InvalidArgument(fmt::format("rule {} has the name of a built-in rule; give it another name: {}",
                                         choice.spec->name, choice.spec->source));
    }
    every.push_back(std::move(choice));
  }
  return every;
}

std::string ChoicesToText(std::span<const Choice> choices) {
  if (choices.empty()) return "none";
  std::string text;
  for (const Choice& choice : choices) {
    if (!text.empty()) text += ',';
    const bool own = !choice.spec->source.empty();
    text += own ? choice.spec->source : choice.spec->name;
    for (const auto& [name, value] : choice.parameters) {
      if (name == "parameters") continue;
      if (own) {
        text += fmt::format(":{}={}", name, EncodeValue(value));
        continue;
      }
      std::string list = value;
      std::replace(list.begin(), list.end(), ',', ';');
      text += fmt::format(":{}={}", name, list);
    }
  }
  return text;
}

}  // namespace luff::rules

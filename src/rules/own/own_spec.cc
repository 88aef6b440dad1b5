#include "rules/own/own_spec.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <xxhash.h>

#include "base/format.h"
#include "base/json.h"
#include "base/json_number.h"
#include "base/nearest_names.h"
#include "base/python_child.h"
#include "luff/base/env.h"
#include "rules/kit/need_names.h"
#include "rules/own/expression_rule.h"
#include "rules/own/own_rule.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kExpression = "expression";
constexpr std::uint64_t kMaxFileBytes = 256ULL << 20;
constexpr std::size_t kMaxNeeds = 32;
constexpr std::size_t kMaxAbout = 16 << 10;  // bytes of the author's description of a rule

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): set once, by main
bool show_output = false;
bool share_processes = false;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

enum class Source { kPython, kLibrary };

struct Named {
  Source source = Source::kPython;
  std::string file;  // absolute; "" for an entry point
  std::string name;
};

/// Position of the ':' between file and name, or the length of a text that names only a file, or npos.
std::size_t CutOf(std::string_view text) noexcept {
  for (const std::string_view ending : {".py", ".so"}) {
    if (text.size() > ending.size() && text.ends_with(ending)) return text.size();
  }
  for (const std::string_view ending : {".py:", ".so:"}) {
    if (const std::size_t at = text.rfind(ending); at != std::string_view::npos && at > 0) return at + 3;
  }
  return std::string_view::npos;
}

Result<Named> Parse(const std::string& text) {
  const std::size_t cut = CutOf(text);
  if (cut == std::string::npos) return Named{Source::kPython, "", text};
  Named named;
  named.source = text[cut - 1] == 'y' ? Source::kPython : Source::kLibrary;
  if (cut < text.size()) named.name = text.substr(cut + 1);
  std::error_code error;
  named.file = fs::absolute(text.substr(0, cut), error).lexically_normal().string();
  if (error || !fs::is_regular_file(named.file, error))
    return NotFound(named.name.empty()
                        ? "there is no such file of rules: " + named.file
                        : fmt::format("there is no file of rule {}: {}", named.name, named.file));
  // Of Python, the process that reads the file says which rules are in it.
  if (named.name.empty() && named.source == Source::kLibrary)
    return InvalidArgument("no rule is named; write FILE.so:NAME: " + named.file);
  return named;
}

std::string SelfPath() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).string();
}

Result<double> Limit(Parameters* parameters, const char* name, double otherwise, double most) {
  const auto at = parameters->find(name);
  if (at == parameters->end()) return otherwise;
  LUFF_ASSIGN_OR_RETURN(const double value, ParseDouble(at->second));
  if (!(value > 0) || value > most) {
    return InvalidArgument(
        fmt::format("parameter '{}' is {}, expected more than 0 and at most {}", name, at->second, most));
  }
  parameters->erase(at);
  return value;
}

Result<OwnRuleOptions> OptionsFor(const Named& named, Parameters parameters) {
  OwnRuleOptions options;
  LUFF_ASSIGN_OR_RETURN(options.step_s, Limit(&parameters, "limit_step_s", options.step_s, 86400));
  LUFF_ASSIGN_OR_RETURN(options.start_s, Limit(&parameters, "limit_start_s", options.start_s, 86400));
  LUFF_ASSIGN_OR_RETURN(const double memory_mb, Limit(&parameters, "limit_memory_mb", 2048, 1e9));
  options.memory_bytes = static_cast<std::uint64_t>(memory_mb * 1048576.0);
  options.rule = named.file.empty() ? named.name : named.file + ":" + named.name;
  options.name = named.name;
  options.parameters = std::move(parameters);
  options.show_output = show_output;
  if (named.source == Source::kPython) {
    Result<std::vector<std::string>> command = PythonCommand("rule");
    if (!command.ok()) return command.status().WithContext("rule " + named.name);
    options.argv = std::move(command).value();
    // A rule only judges recorded numbers: threads of libraries would take cores from the training.
    for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"})
      options.environment.emplace_back(name, "1");
  } else {
    options.argv = {SelfPath(), "_rule-child"};
    if (share_processes)
      return InvalidArgument(fmt::format(
          "rule {} is a shared library, which judges one run in each process; `luff run` and `luff "
          "watch RUN` take it",
          named.name));
  }
  return options;
}

template <typename Names, typename Take>
Status TakeWords(const Json& need, const char* member, const Names& names, Take take) {
  if (!need.contains(member)) return Status::Ok();
  for (const Json& word : need.at(member)) {
    const auto text = word.get<std::string>();
    std::vector<std::string> known(std::begin(names), std::end(names));
    const auto at = std::find(known.begin(), known.end(), text);
    if (at == known.end()) {
      return InvalidArgument(fmt::format("'{}' in '{}' of a need is not known{}; there are {}", text, member,
                                         NearestText(text, known), fmt::join(known, ", ")));
    }
    take(static_cast<std::size_t>(at - known.begin()));
  }
  return Status::Ok();
}

Result<Need> ParseNeed(const Json& json, const std::string& rule) {
  static const std::vector<std::string> kKnown = {"name",         "include", "include_roles", "roles",
                                                  "module_types", "forms",   "unit_axis",     "save_interval",
                                                  "first_steps",  "mode"};
  for (const auto& [key, value] : json.items()) {
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end())
      return InvalidArgument(fmt::format("unknown key '{}' in a need{}; known: {}", key,
                                         NearestText(key, kKnown), fmt::join(kKnown, ", ")));
  }
  Need need;
  need.collection = json.value("name", rule);
  need.include = json.value("include", std::vector<std::string>());
  need.module_types = json.value("module_types", std::vector<std::string>());
  need.mode = json.value("mode", "TRAIN");
  LUFF_RETURN_IF_ERROR(query::ParseMode(need.mode).status());
  need.save_interval = WholeNumber<std::int64_t>(json, "save_interval", 1);
  need.first_steps = WholeNumber<std::int64_t>(json, "first_steps", 0);
  if (need.save_interval < 1 || need.first_steps < 0)
    return InvalidArgument("'save_interval' of a need is at least 1, 'first_steps' at least 0");
  LUFF_RETURN_IF_ERROR(TakeWords(json, "roles", kRoleNames,
                                 [&](std::size_t n) { need.roles.push_back(static_cast<format::Role>(n)); }));
  LUFF_RETURN_IF_ERROR(TakeWords(json, "include_roles", kRoleNames, [&](std::size_t n) {
    need.include_roles.push_back(static_cast<format::Role>(n));
  }));
  std::vector<std::string> forms;
  for (const auto& [form, text] : kFormNames) forms.emplace_back(text);
  LUFF_RETURN_IF_ERROR(TakeWords(json, "forms", forms, [&](std::size_t n) {
    need.forms |= static_cast<std::uint32_t>(kFormNames[n].first);
  }));
  if (need.forms == 0) need.forms = static_cast<std::uint32_t>(format::Form::kSummary);
  if (json.contains("unit_axis")) {
    const Json one = {{"unit_axis", Json::array({json.at("unit_axis")})}};
    LUFF_RETURN_IF_ERROR(TakeWords(one, "unit_axis", kAxisNames,
                                   [&](std::size_t n) { need.unit_axis = static_cast<UnitAxis>(n); }));
  }
  if (need.include.empty() && need.roles.empty() && need.module_types.empty())
    return InvalidArgument("a need names no tensors: give 'include' or 'roles'");
  return need;
}

/// Version from the declared version and the content of the file: after a change of the file, an old
/// checkpoint is not loaded.
int VersionOf(const Named& named, std::int64_t given) {
  std::uint64_t hash = static_cast<std::uint64_t>(given);
  if (!named.file.empty()) {
    const Result<std::string> text = ReadWholeFile(Env::Real(), named.file, kMaxFileBytes);
    if (text.ok()) hash = XXH3_64bits_withSeed(text.value().data(), text.value().size(), hash);
  }
  return static_cast<int>(hash & 0x7FFFFFFF);
}

Result<RuleSpec> Described(const std::string& text, const Parameters& given) {
  LUFF_ASSIGN_OR_RETURN(const Named named, Parse(text));
  LUFF_ASSIGN_OR_RETURN(OwnRuleOptions options, OptionsFor(named, given));
  Result<std::string> answer = DescribeOwnRule(options);
  if (!answer.ok()) {
    const bool said = answer.status().message().starts_with("rule ") || named.name.empty();
    return said ? answer.status() : answer.status().WithContext("rule " + named.name);
  }
  RuleSpec spec;
  try {
    const Json json = ParseJson(answer.value());
    spec.name = json.at("name").get<std::string>();
    spec.source = options.rule;
    spec.version = VersionOf(named, WholeNumber<std::int64_t>(json, "version", 1));
    spec.summary = json.value("summary", "");
    spec.text = json.value("text", "").substr(0, kMaxAbout);
    spec.page = kOwnRulesPage;
    for (const Json& parameter : json.value("parameters", Json::array())) {
      const std::string otherwise = parameter.value("default", "");
      spec.parameters.push_back(
          {parameter.at("name").get<std::string>(), otherwise, otherwise, parameter.value("doc", "")});
    }
    std::vector<Need> needs;
    for (const Json& need : json.value("needs", Json::array())) {
      if (needs.size() >= kMaxNeeds)
        return InvalidArgument(fmt::format("rule {} has more than {} needs", spec.name, kMaxNeeds));
      Result<Need> parsed = ParseNeed(need, spec.name);
      if (!parsed.ok()) return parsed.status().WithContext("rule " + spec.name);
      needs.push_back(std::move(parsed).value());
    }
    spec.needs = [needs](const Parameters&) { return needs; };
  } catch (const std::exception& error) {
    return InvalidArgument(
        fmt::format("rule {} does not describe itself as expected: {}", named.name, error.what()));
  }
  if (share_processes) options.host = HostOf(options);
  spec.make = [options](const Parameters&) -> Result<std::unique_ptr<Rule>> { return MakeOwnRule(options); };
  return spec;
}

}  // namespace

bool NamesOwnRule(std::string_view name) noexcept {
  return name == kExpression || CutOf(name) != std::string_view::npos;
}

Result<const RuleSpec*> OwnRuleSpec(const std::string& name, const Parameters& given) {
  static std::map<std::string, std::unique_ptr<const RuleSpec>> known;  // choices hold pointers to the specs
  std::string key = name;
  for (const auto& [parameter, value] : given) key += fmt::format(":{}={}", parameter, EncodeValue(value));
  if (const auto at = known.find(key); at != known.end()) return at->second.get();
  Result<RuleSpec> made = name == kExpression ? ExpressionSpec(given) : Described(name, given);
  if (!made.ok()) return made.status();
  return known.emplace(key, std::make_unique<const RuleSpec>(std::move(made).value())).first->second.get();
}

std::string EncodeValue(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == ',' || c == ':' || c == '%') {
      text += fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      text += c;
    }
  }
  return text;
}

std::string DecodeValue(std::string_view text) {
  std::string value;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view three = text.substr(i, 3);
    const char c = three == "%2C" ? ',' : three == "%3A" ? ':' : three == "%25" ? '%' : '\0';
    value += c != '\0' ? c : text[i];
    if (c != '\0') i += 2;
  }
  return value;
}

void ShowOutputOfOwnRules(bool show) noexcept { show_output = show; }
void ShareProcessesOfOwnRules(bool share) noexcept { share_processes = share; }

}  // namespace luff::rules

#include "luff/capture/config.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/json.h"
#include "base/nearest_names.h"
#include "luff/base/regex.h"
#include "luff/format/names.h"

namespace luff::capture {
namespace {

using Json = nlohmann::json;
using format::Form;
using format::Role;

constexpr std::size_t kMaxConfigBytes = 4U << 20;
constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMaxNames = 100'000;

struct Named {
  std::string_view name;
  std::uint32_t value;
};

template <std::size_t N>
constexpr std::array<Named, N> Numbered(const std::array<const char*, N>& names, std::uint32_t first) {
  std::array<Named, N> named{};
  for (std::size_t i = 0; i < N; ++i) named[i] = {names[i], first + static_cast<std::uint32_t>(i)};
  return named;
}

constexpr std::array kRoles = Numbered(format::kRoleNames, 0);
constexpr std::array kModes = Numbered(format::kModeNames, 1);
constexpr std::array kForms = [] {
  std::array<Named, format::kFormNames.size()> named{};
  for (std::size_t i = 0; i < named.size(); ++i)
    named[i] = {format::kFormNames[i].second, static_cast<std::uint32_t>(format::kFormNames[i].first)};
  return named;
}();
constexpr std::array<Named, 3> kAxes{{{"channel", 0}, {"last", 1}, {"all_but_first", 2}}};
constexpr std::array<Named, 3> kPolicies{{{"degrade", 0}, {"block", 1}, {"drop", 2}}};
constexpr std::array<Named, 3> kDirect{{{"auto", 0}, {"on", 1}, {"off", 2}}};
constexpr std::array<Named, 3> kProfile{{{"off", 0}, {"basic", 1}, {"full", 2}}};
constexpr std::array<Named, 3> kSync{{{"none", 0}, {"interval", 1}, {"step", 2}}};

constexpr std::uint32_t FormBit(Form form) { return static_cast<std::uint32_t>(form); }
constexpr std::uint32_t kSummaryForm = FormBit(Form::kSummary);
constexpr std::uint32_t kFullForms = FormBit(Form::kSummary) | FormBit(Form::kRaw);

// Built-in collections that exist even if the configuration does not list them, and their forms.
constexpr std::pair<std::string_view, std::uint32_t> kDefaults[] = {
    {"weights", kSummaryForm}, {"biases", kSummaryForm}, {"gradients", kSummaryForm}, {"losses", kFullForms}};

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  out.append(text.substr(0, 80));
  return out + "\"";
}

Status Unknown(std::string_view what, std::string_view found, std::span<const std::string_view> known,
               const std::string& where) {
  const auto nearest = NearestNames(found, std::vector<std::string>(known.begin(), known.end()));
  std::string all;
  for (std::string_view k : known) all += (all.empty() ? "" : ", ") + std::string(k);
  return InvalidArgument("unknown " + std::string(what) + " " + Quoted(found) + " in " + where +
                         (nearest.empty() ? "" : "; did you mean " + Quoted(nearest.front()) + "?") +
                         (nearest.empty() ? "; known: " : " Known: ") + all);
}

Status Wrong(const std::string& where, std::string_view key, const Json& found, std::string_view expected) {
  std::string text = AsciiJsonText(found);
  if (text.size() > 80) text = text.substr(0, 80) + "...";
  return InvalidArgument(where + ": " + Quoted(key) + " is " + text + ", expected " + std::string(expected));
}

template <std::size_t N>
Status ParseNamed(const Json& value, const std::array<Named, N>& table, std::string_view what,
                  const std::string& where, std::uint32_t* out) {
  if (!value.is_string()) return Wrong(where, what, value, "a word");
  const auto& text = value.get_ref<const std::string&>();
  std::array<std::string_view, N> known{};
  for (std::size_t i = 0; i < N; ++i) {
    if (table[i].name == text) {
      *out = table[i].value;
      return Status::Ok();
    }
    known[i] = table[i].name;
  }
  return Unknown(what, text, known, where);
}

Status ParseInteger(const Json& value, std::string_view key, const std::string& where, std::int64_t low,
                    std::int64_t* out) {
  if (value.is_number_integer() && !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX)) {
    const auto number = value.get<std::int64_t>();
    if (number >= low) {
      *out = number;
      return Status::Ok();
    }
  }
  return Wrong(where, key, value, "a whole number from " + std::to_string(low));
}

Status ParseBytes(const Json& value, std::string_view key, const std::string& where, std::uint64_t* out) {
  std::int64_t number = 0;
  LUFF_RETURN_IF_ERROR(ParseInteger(value, key, where, 0, &number));
  *out = static_cast<std::uint64_t>(number);
  return Status::Ok();
}

Status ParseStrings(const Json& value, std::string_view key, const std::string& where,
                    std::vector<std::string>* out) {
  if (value.is_string()) {
    out->assign(1, value.get<std::string>());
    return Status::Ok();
  }
  if (!value.is_array() || value.size() > kMaxNames) return Wrong(where, key, value, "a list of strings");
  out->clear();
  for (const Json& item : value) {
    if (!item.is_string()) return Wrong(where, key, item, "a string");
    out->push_back(item.get<std::string>());
  }
  return Status::Ok();
}

Status ParseRegexes(const Json& value, std::string_view key, const std::string& where,
                    std::vector<std::string>* out) {
  LUFF_RETURN_IF_ERROR(ParseStrings(value, key, where, out));
  for (const std::string& pattern : *out) {
    Result<Regex> regex = Regex::Compile(pattern);
    if (!regex.ok()) return regex.status().WithContext(where + ", " + Quoted(key));
  }
  return Status::Ok();
}

constexpr std::array<std::string_view, 4> kSaveKeys{"save_interval", "start_step", "end_step", "save_steps"};

Status ParseSaveMode(const Json& json, const std::string& where, SaveMode* out) {
  if (!json.is_object())
    return Wrong(where, "save", json, "an object with save_interval, start_step, end_step, save_steps");
  for (const auto& [key, value] : json.items()) {
    if (key == "save_interval") {
      LUFF_RETURN_IF_ERROR(ParseInteger(value, key, where, 1, &out->save_interval));
    } else if (key == "start_step") {
      LUFF_RETURN_IF_ERROR(ParseInteger(value, key, where, 0, &out->start_step));
    } else if (key == "end_step") {
      out->end_step.reset();
      if (value.is_null()) continue;
      std::int64_t end = 0;
      LUFF_RETURN_IF_ERROR(ParseInteger(value, key, where, 0, &end));
      out->end_step = end;
    } else if (key == "save_steps") {
      if (!value.is_array() || value.size() > 1'000'000) return Wrong(where, key, value, "a list of steps");
      out->save_steps.clear();
      for (const Json& step : value) {
        std::int64_t number = 0;
        LUFF_RETURN_IF_ERROR(ParseInteger(step, key, where, 0, &number));
        out->save_steps.push_back(number);
      }
      std::sort(out->save_steps.begin(), out->save_steps.end());
    } else {
      return Unknown("key", key, kSaveKeys, where);
    }
  }
  return Status::Ok();
}

// `save` holds the defaults on entry; modes that are not named, or null, keep them.
Status ParseSave(const Json& json, const std::string& where, std::array<SaveMode, kModeCount>* save) {
  if (!json.is_object()) return Wrong(where, "save", json, "an object");
  bool by_mode = false;
  for (const Named& mode : kModes) by_mode = by_mode || json.contains(mode.name);
  for (const auto& [key, value] : json.items()) by_mode = by_mode || value.is_object();  // a misspelt mode
  if (!by_mode) {
    SaveMode one;
    LUFF_RETURN_IF_ERROR(ParseSaveMode(json, where, &one));
    save->fill(one);
    return Status::Ok();
  }
  for (const auto& [key, value] : json.items()) {
    std::uint32_t mode = 0;
    LUFF_RETURN_IF_ERROR(ParseNamed(Json(key), kModes, "mode", where, &mode));
    if (value.is_null()) continue;
    SaveMode one;
    LUFF_RETURN_IF_ERROR(ParseSaveMode(value, where + "." + key, &one));
    (*save)[mode - 1] = one;
  }
  return Status::Ok();
}

Status ParseKeep(const Json& value, const std::string& where, store::Retention* out) {
  if (value == "all") {
    out->kind = store::Retention::Kind::kAll;
    return Status::Ok();
  }
  if (value == "thin") {
    out->kind = store::Retention::Kind::kThin;
    return Status::Ok();
  }
  if (value.is_object() && value.size() == 1 && value.contains("last")) {
    out->kind = store::Retention::Kind::kLast;
    return ParseInteger(value["last"], "last", where + ".keep", 1, &out->last_steps);
  }
  return Wrong(where, "keep", value, R"("all", "thin" or {"last": K})");
}

constexpr std::array<std::string_view, 13> kCollectionKeys{
    "name",  "include",   "include_roles", "exclude", "tensor_names", "roles", "module_types",
    "forms", "unit_axis", "save",          "keep",    "max_bytes",    "policy"};

// Returns false if there is no built-in collection of that name.
bool ApplyBuiltIn(std::string_view name, CollectionConfig* out) {
  const format::BuiltInCollection* built_in = format::FindBuiltInCollection(name);
  if (built_in == nullptr) return false;
  out->name = name;
  if (!built_in->include.empty()) out->include.assign(1, std::string(built_in->include));
  out->roles = built_in->roles;
  if (built_in->roles != 0) out->include_roles = built_in->roles | format::kFreeRoles;
  return true;
}

Status ParseCollection(const Json& json, const std::string& position, CollectionConfig* out) {
  if (!json.is_object()) return Wrong("the configuration", position, json, "an object");
  if (!json.contains("name") || !json["name"].is_string() ||
      json["name"].get_ref<const std::string&>().empty()) {
    return InvalidArgument(position +
                           ": no name found, expected \"name\": a word that tells collections apart");
  }
  const std::string name = json["name"].get<std::string>();
  const std::string where = "collection " + Quoted(name);
  for (const auto& [key, value] : json.items()) {
    if (std::find(kCollectionKeys.begin(), kCollectionKeys.end(), key) == kCollectionKeys.end())
      return Unknown("key", key, kCollectionKeys, where);
  }
  out->name = name;
  out->forms = kFullForms;
  bool selects = ApplyBuiltIn(name, out);
  if (json.contains("include") || json.contains("roles") || json.contains("tensor_names") ||
      json.contains("module_types")) {  // the user's choice replaces the built-in one
    selects = selects || !json.value("include", Json::array()).empty() ||
              !json.value("roles", Json::array()).empty() ||
              !json.value("tensor_names", Json::array()).empty() ||
              !json.value("module_types", Json::array()).empty();
    if (!json.value("include", Json::array()).empty() || !json.value("roles", Json::array()).empty()) {
      out->include.clear();
      out->include_roles = ~format::kOnRequestRoles;
      out->roles = 0;
    }
  }
  if (!selects) {
    return InvalidArgument(where +
                           " selects nothing: expected \"include\" (regexes), \"tensor_names\", \"roles\" or "
                           "\"module_types\"");
  }
  for (const auto& [key, value] : json.items()) {
    std::uint32_t word = 0;
    if (key == "name") continue;
    if (key == "include") {
      if (!value.empty()) LUFF_RETURN_IF_ERROR(ParseRegexes(value, key, where, &out->include));
    } else if (key == "exclude") {
      LUFF_RETURN_IF_ERROR(ParseRegexes(value, key, where, &out->exclude));
    } else if (key == "tensor_names") {
      LUFF_RETURN_IF_ERROR(ParseStrings(value, key, where, &out->tensor_names));
      std::sort(out->tensor_names.begin(), out->tensor_names.end());
    } else if (key == "module_types") {
      LUFF_RETURN_IF_ERROR(ParseStrings(value, key, where, &out->module_types));
    } else if (key == "roles" || key == "include_roles") {
      if (!value.is_array()) return Wrong(where, key, value, "a list of roles");
      std::uint32_t* roles = key == "roles" ? &out->roles : &out->include_roles;
      if (!value.empty()) *roles = 0;
      for (const Json& role : value) {
        LUFF_RETURN_IF_ERROR(ParseNamed(role, kRoles, "role", where, &word));
        *roles |= 1U << word;
      }
    } else if (key == "forms") {
      if (!value.is_array()) return Wrong(where, key, value, "a list of forms");
      out->forms = 0;
      for (const Json& form : value) {
        LUFF_RETURN_IF_ERROR(ParseNamed(form, kForms, "form", where, &word));
        out->forms |= word;
      }
    } else if (key == "unit_axis") {
      LUFF_RETURN_IF_ERROR(ParseNamed(value, kAxes, "unit_axis", where, &word));
      out->unit_axis = static_cast<UnitAxis>(word);
    } else if (key == "save") {
      if (!value.is_null()) LUFF_RETURN_IF_ERROR(ParseSave(value, where + ", save", &out->save));
    } else if (key == "keep") {
      LUFF_RETURN_IF_ERROR(ParseKeep(value, where, &out->keep));
    } else if (key == "max_bytes") {
      LUFF_RETURN_IF_ERROR(ParseBytes(value, key, where, &out->max_bytes));
    } else if (key == "policy") {
      LUFF_RETURN_IF_ERROR(ParseNamed(value, kPolicies, "policy", where, &word));
      out->policy = static_cast<Policy>(word);
    }
  }
  return Status::Ok();
}

constexpr std::array<std::string_view, 16> kTopKeys{
    "collections", "defaults",     "save",      "save_interval",     "include_regex",
    "save_all",    "max_overhead", "max_bytes", "summary_max_bytes", "pool_max_bytes",
    "direct_io",   "sync",         "events",    "profile",           "stalled_after_s",
    "accelerators"};

Status ParseBool(const Json& value, std::string_view key, bool* out) {
  if (!value.is_boolean()) return Wrong("the configuration", key, value, "true or false");
  *out = value.get<bool>();
  return Status::Ok();
}

Status ParseSettings(const Json& json, Config* out) {
  const std::string where = "the configuration";
  std::uint32_t word = 0;
  for (const auto& [key, value] : json.items()) {
    if (std::find(kTopKeys.begin(), kTopKeys.end(), key) == kTopKeys.end()) {
      return Unknown("key", key, kTopKeys, where);
    }
    if (key == "max_overhead") {
      if (!value.is_number() || !(value.get<double>() >= 0) || value.get<double>() > 100) {
        return Wrong(where, key, value, "a share of the step time, e.g. 0.05 (0: no limit)");
      }
      out->max_overhead = value.get<double>();
    } else if (key == "max_bytes") {
      LUFF_RETURN_IF_ERROR(ParseBytes(value, key, where, &out->max_bytes));
    } else if (key == "summary_max_bytes") {
      LUFF_RETURN_IF_ERROR(ParseBytes(value, key, where, &out->summary_max_bytes));
    } else if (key == "pool_max_bytes") {
      LUFF_RETURN_IF_ERROR(ParseBytes(value, key, where, &out->pool_max_bytes));
    } else if (key == "direct_io") {
      LUFF_RETURN_IF_ERROR(ParseNamed(value, kDirect, key, where, &word));
      out->direct_io = static_cast<store::WriterOptions::Direct>(word);
    } else if (key == "sync") {
      LUFF_RETURN_IF_ERROR(ParseNamed(value, kSync, key, where, &word));
      out->sync = static_cast<store::WriterOptions::Sync>(word);
    } else if (key == "events") {
      LUFF_RETURN_IF_ERROR(ParseBool(value, key, &out->events));
    } else if (key == "accelerators") {
      LUFF_RETURN_IF_ERROR(ParseBool(value, key, &out->accelerators));
    } else if (key == "stalled_after_s") {
      constexpr double kLeast = 1, kMost = 86'400;
      if (!value.is_number() || !(value.get<double>() >= kLeast) || value.get<double>() > kMost) {
        return Wrong(where, key, value, "seconds from 1 to 86400, e.g. 30");
      }
      out->stalled_after_ns = static_cast<std::int64_t>(value.get<double>() * 1e9);
    } else if (key == "profile") {
      LUFF_RETURN_IF_ERROR(ParseNamed(value, kProfile, key, where, &word));
      out->profile = static_cast<Profile>(word);
    }
  }
  return Status::Ok();
}

Status Add(CollectionConfig collection, Config* out) {
  for (const CollectionConfig& other : out->collections) {
    if (other.name == collection.name) {
      return InvalidArgument("two collections are called " + Quoted(collection.name) +
                             ", expected one of each name");
    }
  }
  if (out->collections.size() == kMaxCollections) {
    return InvalidArgument("more than " + std::to_string(kMaxCollections) +
                           " collections found; join some of them, each may hold many expressions");
  }
  out->collections.push_back(std::move(collection));
  return Status::Ok();
}

bool Has(const Config& config, std::string_view name) {
  return std::any_of(config.collections.begin(), config.collections.end(),
                     [&](const CollectionConfig& c) { return c.name == name; });
}

Status Build(const Json& json, Config* out) {
  LUFF_RETURN_IF_ERROR(ParseSettings(json, out));
  std::array<SaveMode, kModeCount> listed_save{};  // the published default, every 500 steps
  std::array<SaveMode, kModeCount> base_save{};    // the default without options: every step
  for (SaveMode& mode : base_save) mode.save_interval = 1;
  if (json.contains("save_interval")) {
    std::int64_t interval = 0;
    LUFF_RETURN_IF_ERROR(
        ParseInteger(json["save_interval"], "save_interval", "the configuration", 1, &interval));
    for (SaveMode& mode : listed_save) mode.save_interval = interval;
    base_save = listed_save;
  }
  if (json.contains("save") && !json["save"].is_null()) {
    LUFF_RETURN_IF_ERROR(ParseSave(json["save"], "the configuration, save", &listed_save));
    LUFF_RETURN_IF_ERROR(ParseSave(json["save"], "the configuration, save", &base_save));
  }
  if (json.contains("collections")) {
    if (!json["collections"].is_array()) {
      return Wrong("the configuration", "collections", json["collections"], "a list of objects");
    }
    std::size_t position = 0;
    for (const Json& item : json["collections"]) {
      CollectionConfig collection;
      collection.save = listed_save;
      LUFF_RETURN_IF_ERROR(
          ParseCollection(item, "collections[" + std::to_string(position++) + "]", &collection));
      LUFF_RETURN_IF_ERROR(Add(std::move(collection), out));
    }
  }
  std::vector<std::string> include;
  if (json.contains("include_regex")) {
    LUFF_RETURN_IF_ERROR(ParseRegexes(json["include_regex"], "include_regex", "the configuration", &include));
  }
  if (!include.empty()) {
    CollectionConfig collection;
    collection.name = "default";
    collection.include = std::move(include);
    collection.forms = kFullForms;
    collection.save = listed_save;
    LUFF_RETURN_IF_ERROR(Add(std::move(collection), out));
  }
  bool save_all = false;
  bool defaults = true;
  if (json.contains("save_all")) LUFF_RETURN_IF_ERROR(ParseBool(json["save_all"], "save_all", &save_all));
  if (json.contains("defaults")) LUFF_RETURN_IF_ERROR(ParseBool(json["defaults"], "defaults", &defaults));
  const auto add = [&](std::string_view name, std::uint32_t forms, const auto& save) -> Status {
    if (Has(*out, name)) return Status::Ok();
    CollectionConfig collection;
    ApplyBuiltIn(name, &collection);
    collection.forms = forms;
    collection.save = save;
    return Add(std::move(collection), out);
  };
  for (const auto& [name, forms] : kDefaults) {
    if (defaults) LUFF_RETURN_IF_ERROR(add(name, forms, base_save));
  }
  if (save_all) LUFF_RETURN_IF_ERROR(add("all", kFullForms, listed_save));
  return Status::Ok();
}

Json DescribeSave(const SaveMode& save) {
  Json end = nullptr;
  if (save.end_step) end = *save.end_step;
  return {{"save_interval", save.save_interval},
          {"start_step", save.start_step},
          {"end_step", std::move(end)},
          {"save_steps", save.save_steps}};
}

template <std::size_t N>
Json DescribeBits(std::uint32_t bits, const std::array<Named, N>& table, bool shifted) {
  Json out = Json::array();
  for (const Named& n : table) {
    if ((bits & (shifted ? 1U << n.value : n.value)) != 0) out.push_back(n.name);
  }
  return out;
}

}  // namespace

bool SaveMode::ShouldSave(std::int64_t mode_step) const noexcept {
  if (mode_step < 0) return false;
  if (!save_steps.empty() && std::binary_search(save_steps.begin(), save_steps.end(), mode_step)) return true;
  return mode_step >= start_step && (!end_step || mode_step < *end_step) && mode_step % save_interval == 0;
}

Result<Config> ParseConfigUntrusted(std::string_view json) {
  if (json.size() > kMaxConfigBytes) {
    return InvalidArgument("a configuration of " + std::to_string(json.size()) + " bytes found, at most " +
                           std::to_string(kMaxConfigBytes) + " expected");
  }
  try {
    Json parsed = Json::object();
    if (!json.empty()) parsed = ParseJson(json, {kMaxConfigBytes, kMaxDepth});
    if (!parsed.is_object()) return InvalidArgument("the configuration is no JSON object, expected { ... }");
    Config config;
    LUFF_RETURN_IF_ERROR(Build(parsed, &config));
    return config;
  } catch (const Json::parse_error& e) {
    return InvalidArgument("the configuration is no JSON, mistake at byte " + std::to_string(e.byte));
  } catch (const std::exception& e) {
    return InvalidArgument(std::string("the configuration cannot be read: ") + e.what());
  }
}

std::string DescribeCollections(const Config& config) {
  try {
    Json out = Json::array();
    for (const CollectionConfig& c : config.collections) {
      Json save = Json::object();
      for (const Named& mode : kModes) save[std::string(mode.name)] = DescribeSave(c.save[mode.value - 1]);
      Json keep = "all";
      if (c.keep.kind == store::Retention::Kind::kThin) keep = "thin";
      if (c.keep.kind == store::Retention::Kind::kLast) keep = {{"last", c.keep.last_steps}};
      Json item = {{"name", c.name},
                   {"include", c.include},
                   {"exclude", c.exclude},
                   {"tensor_names", c.tensor_names},
                   {"module_types", c.module_types},
                   {"roles", DescribeBits(c.roles, kRoles, true)},
                   {"forms", DescribeBits(c.forms, kForms, false)},
                   {"unit_axis", kAxes[static_cast<std::size_t>(c.unit_axis)].name},
                   {"save", std::move(save)},
                   {"keep", std::move(keep)},
                   {"max_bytes", c.max_bytes},
                   {"policy", kPolicies[static_cast<std::size_t>(c.policy)].name}};
      if (!c.include.empty() && c.include_roles != ~format::kOnRequestRoles) {
        item["include_roles"] = DescribeBits(c.include_roles, kRoles, true);
      }
      out.push_back(std::move(item));
    }
    return JsonText(out);
  } catch (const std::exception&) {
    return "[]";
  }
}

}  // namespace luff::capture

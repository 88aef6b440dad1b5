#include "cli/config_actions.h"
#include "cli/config_file.h"
#include "cli/json.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/nearest_names.h"
#include "base/python_child.h"
#include "luff/base/env.h"
#include "luff/rules/rule.h"

namespace luff::cli {
namespace {

using actions::ActionKind;
using actions::ActionSpec;

const std::vector<std::string> kCommon = {"kind",    "name",        "rules",   "severity",     "findings",
                                          "limit",   "per_s",       "quiet_s", "consequences", "escalates",
                                          "after_s", "after_steps", "dry_run"};

std::vector<std::string> KeysOf(ActionKind kind) {
  std::vector<std::string> keys = kCommon;
  const auto add = [&](std::initializer_list<const char*> more) {
    keys.insert(keys.end(), more.begin(), more.end());
  };
  switch (kind) {
    case ActionKind::kWebhook:
      add({"url", "url_env", "secret_env", "secret_file", "ca_file", "timeout_s", "attempts", "backoff_s",
           "give_up_s"});
      break;
    case ActionKind::kMail:
      add({"host", "port", "tls", "user", "password_env", "password_file", "from", "to", "ca_file",
           "timeout_s", "attempts", "backoff_s", "give_up_s"});
      break;
    case ActionKind::kCommand: add({"argv", "timeout_s"}); break;
    case ActionKind::kLowerLr: add({"factor"}); break;
    case ActionKind::kTrace: add({"steps", "stacks", "share"}); break;
    case ActionKind::kStop:
    case ActionKind::kSkipBatch:
    case ActionKind::kRollback: break;
  }
  return keys;
}

// True if `text` is one mail address, without characters that could begin another address or header.
bool IsAddress(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c > ' ' && c != 0x7f && c != ',' && c != ';' && c != '<' && c != '>' && c != '"';
  });
  const std::size_t at = text.find('@');
  return plain && at != std::string::npos && at > 0 && at + 1 < text.size() &&
         text.find('@', at + 1) == std::string::npos;
}

// Reads one [[action]].
class ActionReader {
 public:
  ActionReader(const toml::table& table, const ConfigPlace& place) : table_(table), place_(place) {}

  Result<ActionSpec> Read() {
    const toml::node* kind = table_.get("kind");
    if (kind == nullptr)
      return place_.Wrong(table_, "an [[action]] without 'kind'; write e.g. kind = \"webhook\"");
    LUFF_ASSIGN_OR_RETURN(const std::string kind_text, Text(*kind, "kind"));
    const Result<ActionKind> parsed = actions::ParseKind(kind_text);
    if (!parsed.ok()) return place_.At(parsed.status(), kind->source());
    spec_.kind = *parsed;
    spec_.name = kind_text;
    const std::vector<std::string> known = KeysOf(spec_.kind);
    for (const auto& [key, node] : table_) {
      if (std::find(known.begin(), known.end(), key.str()) == known.end())
        return place_.Unknown(key, fmt::format("in an [[action]] of kind {}", kind_text), known);
    }
    spec_.dry_run = !actions::IsHarmless(spec_.kind);
    spec_.limit = actions::IsDelivery(spec_.kind) ? 20 : 1;
    spec_.severity = spec_.kind == ActionKind::kStop ? rules::Severity::kStop : rules::Severity::kWarn;
    if (spec_.kind == ActionKind::kTrace) {  // once for each rule, and one in ten minutes
      spec_.per_s = 600;
      spec_.quiet_s = 1e9;
    }
    LUFF_RETURN_IF_ERROR(ReadCommon());
    LUFF_RETURN_IF_ERROR(ReadKind());
    return std::move(spec_);
  }

 private:
  Result<std::string> Text(const toml::node& node, std::string_view key) const {
    const auto text = node.value<std::string>();
    if (!text || !node.is_string() || text->empty() || text->find('\0') != std::string::npos)
      return place_.Wrong(node, fmt::format("'{}' in [[action]] is no string, or an empty one", key));
    return *text;
  }
  Status Into(std::string_view key, std::string* to) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr) return Status::Ok();
    LUFF_ASSIGN_OR_RETURN(*to, Text(*node, key));
    return Status::Ok();
  }
  Status Into(std::string_view key, std::vector<std::string>* to) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr) return Status::Ok();
    const toml::array* list = node->as_array();
    if (list == nullptr || list->empty() || list->size() > 1000)
      return place_.Wrong(*node,
                          fmt::format("'{}' in [[action]] is no list of strings, or an empty one", key));
    for (const toml::node& one : *list) {
      LUFF_ASSIGN_OR_RETURN(std::string text, Text(one, key));
      to->push_back(std::move(text));
    }
    return Status::Ok();
  }
  Status Into(std::string_view key, double low, double high, double* to) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr) return Status::Ok();
    const auto value = node->value<double>();
    if (!value || !(*value >= low) || !(*value <= high))
      return place_.Wrong(
          *node, fmt::format("'{}' in [[action]] is no number between {:g} and {:g}", key, low, high));
    *to = *value;
    return Status::Ok();
  }
  template <typename Int>
  Status IntoWhole(std::string_view key, std::int64_t low, std::int64_t high, Int* to) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr) return Status::Ok();
    const auto value = node->as_integer();
    if (value == nullptr || value->get() < low || value->get() > high)
      return place_.Wrong(
          *node, fmt::format("'{}' in [[action]] is no whole number between {} and {}", key, low, high));
    *to = static_cast<Int>(value->get());
    return Status::Ok();
  }
  Status Into(std::string_view key, bool* to) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr) return Status::Ok();
    if (!node->is_boolean())
      return place_.Wrong(*node, fmt::format("'{}' in [[action]] is neither true nor false", key));
    *to = *node->value<bool>();
    return Status::Ok();
  }
  // Checks that at most one of two keys is given, and if `needed`, exactly one.
  Status OneOf(const char* first, const char* second, bool needed) const {
    if (table_.contains(first) && table_.contains(second))
      return place_.Wrong(*table_.get(second),
                          fmt::format("'{}' and '{}' are both given; one is enough", first, second));
    if (needed && !table_.contains(first) && !table_.contains(second))
      return place_.Wrong(table_, fmt::format("an [[action]] of kind {} without '{}' or '{}'",
                                              actions::KindName(spec_.kind), first, second));
    return Status::Ok();
  }
  Status Needs(std::initializer_list<const char*> keys) const {
    for (const char* key : keys) {
      if (!table_.contains(key))
        return place_.Wrong(
            table_, fmt::format("an [[action]] of kind {} without '{}'", actions::KindName(spec_.kind), key));
    }
    return Status::Ok();
  }

  Status ReadCommon() {
    LUFF_RETURN_IF_ERROR(Into("name", &spec_.name));
    if (spec_.name.size() > 100)
      return place_.Wrong(*table_.get("name"), "'name' in [[action]] is longer than 100");
    LUFF_RETURN_IF_ERROR(Into("rules", &spec_.rules));
    if (const toml::node* node = table_.get("rules")) {
      for (std::size_t i = 0; i < spec_.rules.size(); ++i) {
        // The user's own rule is named as in its findings, or as in --rules.
        if (const std::size_t cut = spec_.rules[i].rfind(':'); cut != std::string::npos) {
          spec_.rules[i].erase(0, cut + 1);
          continue;
        }
        if (place_.IsOwnRule(spec_.rules[i])) continue;
        const auto rule = rules::FindRule(spec_.rules[i]);
        if (!rule.ok()) return place_.At(rule.status(), (*node->as_array())[i].source());
        spec_.rules[i] = (*rule)->name;
      }
    }
    std::string severity;
    LUFF_RETURN_IF_ERROR(Into("severity", &severity));
    if (!severity.empty() && severity != "warn" && severity != "stop")
      return place_.Wrong(*table_.get("severity"),
                          fmt::format("'severity' in [[action]] is '{}', expected warn or stop", severity));
    if (!severity.empty())
      spec_.severity = severity == "stop" ? rules::Severity::kStop : rules::Severity::kWarn;
    LUFF_RETURN_IF_ERROR(IntoWhole("findings", 1, 10'000, &spec_.findings));
    LUFF_RETURN_IF_ERROR(IntoWhole("limit", 1, 100'000, &spec_.limit));
    LUFF_RETURN_IF_ERROR(Into("per_s", 1, 1e9, &spec_.per_s));
    LUFF_RETURN_IF_ERROR(Into("quiet_s", 0, 1e9, &spec_.quiet_s));
    LUFF_RETURN_IF_ERROR(Into("consequences", &spec_.consequences));
    LUFF_RETURN_IF_ERROR(Into("escalates", &spec_.escalates));
    LUFF_RETURN_IF_ERROR(Into("after_s", 0, 1e9, &spec_.after_s));
    LUFF_RETURN_IF_ERROR(IntoWhole("after_steps", 0, std::int64_t{1} << 60, &spec_.after_steps));
    LUFF_RETURN_IF_ERROR(Into("dry_run", &spec_.dry_run));
    const bool timed = spec_.after_s >= 0 || spec_.after_steps >= 0;
    if (timed == spec_.escalates.empty())
      return place_.Wrong(table_, timed ? "'after_s' or 'after_steps' in [[action]] without 'escalates'"
                                        : "'escalates' in [[action]] without 'after_s' or 'after_steps'");
    return Status::Ok();
  }

  Status ReadKind() {
    switch (spec_.kind) {
      case ActionKind::kStop:
      case ActionKind::kSkipBatch:
      case ActionKind::kRollback: return Status::Ok();
      case ActionKind::kLowerLr:
        LUFF_RETURN_IF_ERROR(Needs({"factor"}));
        return Into("factor", 1e-6, 0.999999, &spec_.factor);
      case ActionKind::kTrace:
        LUFF_RETURN_IF_ERROR(Needs({"rules"}));
        LUFF_RETURN_IF_ERROR(IntoWhole("steps", 1, 10, &spec_.trace_steps));
        LUFF_RETURN_IF_ERROR(Into("stacks", &spec_.trace_stacks));
        return Into("share", 1e-6, 1, &spec_.trace_share);
      case ActionKind::kCommand:
        spec_.timeout_s = 60;
        LUFF_RETURN_IF_ERROR(Needs({"argv"}));
        LUFF_RETURN_IF_ERROR(Into("argv", &spec_.argv));
        return Into("timeout_s", 0.1, 86'400, &spec_.timeout_s);
      case ActionKind::kWebhook: return ReadWebhook();
      case ActionKind::kMail: return ReadMail();
    }
    return Status::Ok();
  }

  Status ReadTries(Json* json) {
    int attempts = 5;
    double backoff_s = 1;
    LUFF_RETURN_IF_ERROR(Into("timeout_s", 0.1, 600, &spec_.timeout_s));
    LUFF_RETURN_IF_ERROR(IntoWhole("attempts", 1, 20, &attempts));
    LUFF_RETURN_IF_ERROR(Into("backoff_s", 0.01, 600, &backoff_s));
    LUFF_RETURN_IF_ERROR(Into("give_up_s", 1, 3600, &spec_.give_up_s));
    (*json)["timeout_s"] = spec_.timeout_s;
    (*json)["attempts"] = attempts;
    (*json)["backoff_s"] = backoff_s;
    (*json)["give_up_s"] = spec_.give_up_s;
    return Status::Ok();
  }
  Status TextInto(const char* key, Json* json) const {
    std::string text;
    LUFF_RETURN_IF_ERROR(Into(key, &text));
    if (!text.empty()) (*json)[key] = text;
    return Status::Ok();
  }
  // Makes the path absolute, since a process with another working directory reads the file.
  Status FileInto(const char* key, Json* json) const {
    std::string text;
    LUFF_RETURN_IF_ERROR(Into(key, &text));
    if (text.empty()) return Status::Ok();
    std::error_code error;
    const std::filesystem::path path = std::filesystem::absolute(text, error);
    if (error || !std::filesystem::exists(path, error))
      return place_.Wrong(*table_.get(key), fmt::format("'{}' in [[action]] names no file: {}", key, text));
    (*json)[key] = path.string();
    return Status::Ok();
  }

  Status ReadWebhook() {
    Json json;
    LUFF_RETURN_IF_ERROR(OneOf("url", "url_env", true));
    LUFF_RETURN_IF_ERROR(OneOf("secret_env", "secret_file", false));
    for (const char* key : {"url", "url_env", "secret_env"}) LUFF_RETURN_IF_ERROR(TextInto(key, &json));
    for (const char* key : {"secret_file", "ca_file"}) LUFF_RETURN_IF_ERROR(FileInto(key, &json));
    if (json.contains("url")) {
      const auto url = json["url"].get<std::string>();
      if (!url.starts_with("http://") && !url.starts_with("https://"))
        return place_.Wrong(*table_.get("url"),
                            "'url' in [[action]] begins with neither https:// nor http://");
    }
    LUFF_RETURN_IF_ERROR(ReadTries(&json));
    spec_.settings_json = JsonText(json);
    return Status::Ok();
  }

  Status ReadMail() {
    Json json;
    LUFF_RETURN_IF_ERROR(Needs({"host", "from", "to"}));
    LUFF_RETURN_IF_ERROR(OneOf("password_env", "password_file", false));
    for (const char* key : {"host", "user", "password_env", "from"})
      LUFF_RETURN_IF_ERROR(TextInto(key, &json));
    for (const char* key : {"password_file", "ca_file"}) LUFF_RETURN_IF_ERROR(FileInto(key, &json));
    std::string tls = "starttls";
    LUFF_RETURN_IF_ERROR(Into("tls", &tls));
    if (tls != "starttls" && tls != "tls" && tls != "none")
      return place_.Wrong(*table_.get("tls"),
                          fmt::format("'tls' in [[action]] is '{}', expected starttls, tls or none", tls));
    json["tls"] = tls;
    int port = tls == "tls" ? 465 : tls == "none" ? 25 : 587;
    LUFF_RETURN_IF_ERROR(IntoWhole("port", 1, 65'535, &port));
    json["port"] = port;
    std::vector<std::string> to;
    LUFF_RETURN_IF_ERROR(Into("to", &to));
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (!IsAddress(to[i]))
        return place_.Wrong((*table_.get("to")->as_array())[i],
                            "'to' in [[action]] holds something that is no address");
    }
    if (!IsAddress(json["from"].get<std::string>()))
      return place_.Wrong(*table_.get("from"),
                          "'from' in [[action]] is no address; write e.g. luff@example.org");
    json["to"] = to;
    const bool password = json.contains("password_env") || json.contains("password_file");
    if (password != json.contains("user"))
      return place_.Wrong(
          table_,
          "an [[action]] of kind mail needs both 'user' and 'password_env' or 'password_file', or none");
    LUFF_RETURN_IF_ERROR(ReadTries(&json));
    spec_.settings_json = JsonText(json);
    return Status::Ok();
  }

  const toml::table& table_;
  const ConfigPlace& place_;
  ActionSpec spec_;
};

}  // namespace

Result<std::vector<ActionSpec>> ReadActions(const toml::node& node, const ConfigPlace& place) {
  const toml::array* list = node.as_array();
  if (list == nullptr || !list->is_array_of_tables())
    return place.Wrong(node, "'action' is no list of tables; write [[action]] and its keys below");
  if (list->size() > 100) return place.Wrong(node, "more than 100 [[action]] entries");
  std::vector<ActionSpec> specs;
  for (const toml::node& one : *list) {
    LUFF_ASSIGN_OR_RETURN(ActionSpec spec, ActionReader(*one.as_table(), place).Read());
    for (const ActionSpec& other : specs) {
      if (other.name == spec.name)
        return place.Wrong(
            one, fmt::format("two [[action]] entries are called '{}'; give them a 'name' each", spec.name));
    }
    specs.push_back(std::move(spec));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].escalates.empty()) continue;
    const toml::node& where = *(*list)[i].as_table()->get("escalates");
    std::vector<std::string> names;
    for (const ActionSpec& other : specs) names.push_back(other.name);
    if (specs[i].escalates == specs[i].name) return place.Wrong(where, "an [[action]] escalates itself");
    if (std::find(names.begin(), names.end(), specs[i].escalates) == names.end())
      return place.Wrong(
          where, fmt::format("'escalates' names no [[action]]: '{}'{}; there are {}", specs[i].escalates,
                             NearestText(specs[i].escalates, names), fmt::join(names, ", ")));
  }
  return specs;
}

Result<std::vector<std::string>> FindNotifier() {
  LUFF_ASSIGN_OR_RETURN(const std::string package, FindPackage());
  const std::string script = package + "/actions/notify.py";
  if (!Env::Real().Exists(script))
    return NotFound("Luff's Python package lacks what sends webhooks and mails: " + script);
  return PlainPythonCommand(script);
}

}  // namespace luff::cli

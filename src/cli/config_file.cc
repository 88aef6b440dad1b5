#include "cli/config_file.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "cli/config_actions.h"
#include "cli/config_control.h"
#include "cli/config_place.h"
#include "cli/job_file.h"
#include "luff/base/env.h"
#include "luff/capture/config.h"
#include "luff/query/trial.h"
#include "luff/rules/choice.h"
#include "rules/own/own_spec.h"

namespace luff::cli {
namespace {

constexpr std::uint64_t kMaxConfigBytes = 1 << 20;

class Reader : private ConfigPlace {
 public:
  using ConfigPlace::ConfigPlace;

  Result<FileConfig> Read(const toml::table& file) {
    FileConfig config;
    for (const auto& [key, node] : file) {
      const std::string_view name = key.str();
      if (name == "rules" || name == "rule" || name == "rule_expression") continue;
      if (name == "parameters" || name == "on_finding") {
        const auto text = node.value<std::string>();
        if (!text) return Wrong(node, fmt::format("'{}' is no string", name));
        (name == "parameters" ? config.parameters : config.on_finding) = *text;
        if (name == "parameters") {
          const Result<rules::ParameterSet> set = rules::ParseParameterSet(*text);
          if (!set.ok()) return At(set.status(), node.source());
          set_ = set.value();
        } else if (*text != "warn" && *text != "stop") {
          return Wrong(node, fmt::format("'on_finding' is '{}', expected warn or stop", *text));
        }
      } else if (name == "stop" || name == "capture" || name == "output" || name == "bucket" ||
                 name == "control") {
        const toml::table* table = node.as_table();
        if (table == nullptr)
          return Wrong(node, fmt::format("'{}' is no table; write [{}] and its keys below", name, name));
        if (name == "stop") {
          LUFF_RETURN_IF_ERROR(ReadStop(*table, &config.stop));
        } else if (name == "output") {
          LUFF_RETURN_IF_ERROR(ReadOutput(*table, &config));
        } else if (name == "bucket") {
          LUFF_ASSIGN_OR_RETURN(config.bucket, ReadBucket(*table, *this));
        } else if (name == "control") {
          LUFF_ASSIGN_OR_RETURN(ControlConfig control, ReadControl(*table, *this));
          config.keys = std::move(control.keys);
          config.host_key = std::move(control.host_key);
        } else {
          LUFF_RETURN_IF_ERROR(ReadCapture(*table, &config.capture_json));
        }
      } else if (name == "action") {
        continue;  // read below, when the rules are known
      } else {
        return Unknown(key, "at the top level",
                       {"rules", "rule", "rule_expression", "parameters", "on_finding", "capture", "stop",
                        "action", "output", "bucket", "control"});
      }
    }
    if (file.contains("rules") || file.contains("rule") || file.contains("rule_expression")) {
      LUFF_ASSIGN_OR_RETURN(std::string text, RulesText(file));
      const auto choices = rules::ParseChoices(text, set_);
      if (!choices.ok()) return At(choices.status(), file.source());
      for (const rules::Choice& choice : choices.value()) {
        if (!choice.spec->source.empty()) KnowOwnRule(choice.spec->name);
      }
      config.rules = std::move(text);
    }
    if (const toml::node* actions = file.get("action")) {
      LUFF_ASSIGN_OR_RETURN(config.actions, ReadActions(*actions, *this));
    }
    return config;
  }

 private:
  // "rules" is a list of names or texts as --rules takes them; [rule.NAME] holds parameters of one. Each is
  // checked alone, so that a mistake is reported with its line.
  Result<std::string> RulesText(const toml::table& file) const {
    std::vector<std::string> names;
    if (const toml::node* wanted = file.get("rules")) {
      const toml::array* list = wanted->as_array();
      if (list == nullptr && !wanted->is_string())
        return Wrong(*wanted, "'rules' is no list of names; write e.g. rules = [\"DeadRelu\"]");
      const auto add = [&](const toml::node& node) -> Status {
        const auto name = node.value<std::string>();
        if (!name || !node.is_string()) return Wrong(node, "'rules' holds something that is no string");
        const auto tried = rules::ParseChoices(*name, set_);
        if (!tried.ok()) return At(tried.status(), node.source());
        names.push_back(*name);
        return Status::Ok();
      };
      if (list == nullptr) {
        LUFF_RETURN_IF_ERROR(add(*wanted));
      } else {
        if (list->empty()) names.emplace_back("none");
        for (const toml::node& node : *list) LUFF_RETURN_IF_ERROR(add(node));
      }
    }
    LUFF_RETURN_IF_ERROR(TakeParameters(file, &names));
    LUFF_RETURN_IF_ERROR(TakeExpressions(file, &names));
    return fmt::format("{}", fmt::join(names, ","));
  }

  Status TakeParameters(const toml::table& file, std::vector<std::string>* names) const {
    const toml::node* parameters = file.get("rule");
    if (parameters == nullptr) return Status::Ok();
    if (!parameters->is_table())
      return Wrong(*parameters,
                   "'rule' is no table; write [rule.NAME] and its parameters below, or, to choose rules, "
                   "rules = [\"NAME\"]");
    for (const auto& [rule, node] : *parameters->as_table()) {
      LUFF_ASSIGN_OR_RETURN(const std::string text, RuleText(rule, node));
      bool found = false;
      for (std::string& name : *names) {
        if (name != rule.str()) continue;
        name = text;
        found = true;
      }
      if (!found) names->push_back(text);
    }
    return Status::Ok();
  }

  // [[rule_expression]]: rules without code, added to the chosen rules, or to all if none are chosen.
  Status TakeExpressions(const toml::table& file, std::vector<std::string>* names) const {
    const toml::node* wanted = file.get("rule_expression");
    if (wanted == nullptr) return Status::Ok();
    const toml::array* list = wanted->as_array();
    if (list == nullptr || !list->is_array_of_tables())
      return Wrong(*wanted,
                   "'rule_expression' is no list of tables; write [[rule_expression]] and its keys below");
    if (std::ranges::all_of(*names, [](const std::string& name) { return name == "later"; }))
      names->emplace_back("all");
    std::erase(*names, "none");
    for (const toml::node& node : *list) {
      std::string text = "expression";
      for (const auto& [key, value] : *node.as_table()) {
        const auto written = value.value<std::string>();
        const auto number = value.value<std::int64_t>();
        if (!value.is_string() && !value.is_integer())
          return Wrong(value,
                       fmt::format("'{}' of [[rule_expression]] is no string or whole number", key.str()));
        text += fmt::format(":{}={}", key.str(),
                            rules::EncodeValue(value.is_string() ? *written : std::to_string(*number)));
      }
      const auto tried = rules::ParseChoices(text, set_);
      if (!tried.ok()) {
        const toml::node* when = node.as_table()->get("when");
        const bool placed = tried.status().message().find('\n') != std::string_view::npos;
        return when != nullptr && placed ? At(tried.status(), when->source())
                                         : AtWhatItNames(tried.status(), node);
      }
      names->push_back(std::move(text));
    }
    return Status::Ok();
  }

  Result<std::string> RuleText(const toml::key& rule, const toml::node& node) const {
    const bool own = rules::NamesOwnRule(rule.str());
    if (!own) {
      const Result<const rules::RuleSpec*> spec = rules::FindRule(rule.str());
      if (!spec.ok()) return At(spec.status(), rule.source());
    }
    const toml::table* values = node.as_table();
    if (values == nullptr) {
      return Wrong(node, fmt::format("'{}' of [rule] is no table; write [rule.{}] and its parameters below",
                                     rule.str(), rule.str()));
    }
    std::string text(rule.str());
    for (const auto& [key, value] : *values) {
      std::ostringstream written;
      if (const auto string = value.value<std::string>(); string && value.is_string()) {
        written << *string;
      } else if (value.is_number() || value.is_boolean()) {
        value.visit([&](const auto& v) {
          if constexpr (toml::is_number<decltype(v)> || toml::is_boolean<decltype(v)>) written << v;
        });
      } else {
        return Wrong(value, fmt::format("parameter '{}' of [rule.{}] is no string, number or truth value",
                                        key.str(), rule.str()));
      }
      std::string list = own ? rules::EncodeValue(written.str()) : written.str();
      std::replace(list.begin(), list.end(), ',', ';');  // commas separate rules in the text of --rules
      const std::string one = fmt::format(":{}={}", key.str(), list);
      text += one;
      if (own) continue;  // it may need several parameters at once; checked below
      const auto tried = rules::ParseChoices(std::string(rule.str()) + one, set_);
      if (!tried.ok()) return At(tried.status(), key.source());
    }
    if (own) {
      const auto tried = rules::ParseChoices(text, set_);
      if (!tried.ok()) return At(tried.status(), rule.source());
    }
    return text;
  }

  Status ReadStop(const toml::table& table, actions::StopSettings* stop) const {
    const std::pair<std::string_view, double*> keys[] = {{"lead_s", &stop->lead_s},
                                                         {"answer_s", &stop->answer_s},
                                                         {"decision_s", &stop->decision_s},
                                                         {"leave_s", &stop->leave_s},
                                                         {"swallow_s", &stop->swallow_s},
                                                         {"kill_s", &stop->kill_s},
                                                         {"hosts_lead_s", &stop->hosts_lead_s},
                                                         {"hosts_answer_s", &stop->hosts_answer_s},
                                                         {"hosts_wait_s", &stop->hosts_wait_s},
                                                         {"hosts_doubt_s", &stop->hosts_doubt_s}};
    for (const auto& [key, node] : table) {
      bool found = false;
      for (const auto& [name, target] : keys) {
        if (key.str() != name) continue;
        const auto value = node.value<double>();
        if (!value || !(*value >= 0) || *value > 86400)
          return Wrong(node, fmt::format("'{}' in [stop] is no number of seconds between 0 and 86400", name));
        *target = *value;
        found = true;
      }
      if (found) continue;
      std::vector<std::string> known;
      for (const auto& [name, target] : keys) known.emplace_back(name);
      return Unknown(key, "in [stop]", known);
    }
    constexpr double kApartS = 6, kMostS = 60;  // the worker's own bound
    if (stop->hosts_wait_s < stop->hosts_answer_s + kApartS || stop->hosts_wait_s > kMostS) {
      return Wrong(
          table,
          fmt::format("'hosts_wait_s' in [stop] is {:g}, expected {:g} ('hosts_answer_s' and {:g} more) "
                      "to {:g}",
                      stop->hosts_wait_s, stop->hosts_answer_s + kApartS, kApartS, kMostS));
    }
    return Status::Ok();
  }

  Status ReadOutput(const toml::table& table, FileConfig* config) const {
    for (const auto& [key, node] : table) {
      const std::pair<std::string_view, std::string*> known[] = {
          {"tensorboard", &config->tensorboard},
          {"smdebug", &config->smdebug},
          {"report", &config->report},
          {"profiler_rules", &config->profiler_rules},
          {"profiler_report", &config->profiler_report}};
      const auto at = std::find_if(std::begin(known), std::end(known),
                                   [&](const auto& one) { return one.first == key.str(); });
      if (at == std::end(known)) {
        return Unknown(key, "in [output]",
                       {"tensorboard", "smdebug", "report", "profiler_rules", "profiler_report"});
      }
      const auto path = node.value<std::string>();
      if (!path || !node.is_string() || path->empty()) {
        const char* kind = at->second == &config->report           ? "file"
                           : at->second == &config->profiler_rules ? "list of rules"
                                                                   : "directory";
        return Wrong(node, fmt::format("'{}' in [output] is no {}", key.str(), kind));
      }
      *at->second = *path;
    }
    return Status::Ok();
  }

  // The training process reads it again, but mistakes are better reported before the job begins.
  Status ReadCapture(const toml::table& table, std::string* json) const {
    std::ostringstream written;
    written << toml::json_formatter(table);
    const auto tried = capture::ParseConfigUntrusted(written.str());
    if (!tried.ok()) return AtWhatItNames(tried.status().WithContext("[capture]"), table);
    *json = written.str();
    return Status::Ok();
  }

  rules::ParameterSet set_ = rules::ParameterSet::kLuff;
};

}  // namespace

Result<FileConfig> ReadConfigFile(const std::string& path) {
  Result<std::string> text =
      IsJobFile(path) ? TranslateJobFile(path) : ReadWholeFile(Env::Real(), path, kMaxConfigBytes);
  if (!text.ok() && IsJobFile(path)) return text.status();
  if (!text.ok()) return text.status().WithContext("the configuration file cannot be read");
  try {
    return Reader(path).Read(toml::parse(text.value(), path));
  } catch (const toml::parse_error& error) {
    const auto& where = error.source().begin;
    return InvalidArgument(
        fmt::format("{}: {}, line {}, column {}", error.description(), path, where.line, where.column));
  } catch (const std::exception& error) {
    return InvalidArgument(fmt::format("{}: {}", error.what(), path));
  }
}

}  // namespace luff::cli

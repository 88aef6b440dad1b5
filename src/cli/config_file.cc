#include "cli/config_file.h"

#include <sstream>
#include <utility>

#include <fmt/format.h>
#define TOML_ENABLE_FORMATTERS 1
#include <toml++/toml.h>

#include "luff/base/env.h"

namespace luff::cli {
namespace {

constexpr std::uint64_t kMaxConfigBytes = 1 << 20;

Status Unknown(std::string_view key, std::string_view table, std::string_view known) {
  return InvalidArgument(fmt::format("unknown key '{}' in [{}]; known: {}", key, table, known));
}

// "rules" is a list of names or texts as --rules takes them; [rule.NAME] holds parameters of one.
Result<std::string> RulesText(const toml::table& file) {
  std::vector<std::string> names;
  if (const toml::array* list = file["rules"].as_array()) {
    for (const toml::node& node : *list) {
      const auto name = node.value<std::string>();
      if (!name) return InvalidArgument("'rules' holds something that is no string");
      names.push_back(*name);
    }
  } else if (const auto one = file["rules"].value<std::string>()) {
    names.push_back(*one);
  }
  if (const toml::table* parameters = file["rule"].as_table()) {
    for (const auto& [rule, node] : *parameters) {
      const toml::table* values = node.as_table();
      if (values == nullptr) return InvalidArgument(fmt::format("[rule.{}] is no table", rule.str()));
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
          return InvalidArgument(fmt::format(
              "parameter '{}' of [rule.{}] is no string, number or truth value", key.str(), rule.str()));
        }
        text += fmt::format(":{}={}", key.str(), written.str());
      }
      bool found = false;
      for (std::string& name : names) {
        if (name == rule.str()) {
          name = text;
          found = true;
        }
      }
      if (!found) names.push_back(text);
    }
  }
  return fmt::format("{}", fmt::join(names, ","));
}

Status ReadStop(const toml::table& table, actions::StopSettings* stop) {
  const std::pair<std::string_view, double*> keys[] = {
      {"lead_s", &stop->lead_s},   {"answer_s", &stop->answer_s},   {"decision_s", &stop->decision_s},
      {"leave_s", &stop->leave_s}, {"swallow_s", &stop->swallow_s}, {"kill_s", &stop->kill_s}};
  for (const auto& [key, node] : table) {
    bool found = false;
    for (const auto& [name, target] : keys) {
      if (key.str() != name) continue;
      const auto value = node.value<double>();
      if (!value || !(*value >= 0) || *value > 86400) {
        return InvalidArgument(
            fmt::format("'{}' in [stop] is no number of seconds between 0 and 86400", name));
      }
      *target = *value;
      found = true;
    }
    if (!found) return Unknown(key.str(), "stop", "lead_s, answer_s, decision_s, leave_s, swallow_s, kill_s");
  }
  return Status::Ok();
}

Result<FileConfig> Read(const toml::table& file) {
  FileConfig config;
  for (const auto& [key, node] : file) {
    const std::string_view name = key.str();
    if (name == "rules" || name == "rule") continue;
    if (name == "parameters" || name == "on_finding") {
      const auto text = node.value<std::string>();
      if (!text) return InvalidArgument(fmt::format("'{}' is no string", name));
      (name == "parameters" ? config.parameters : config.on_finding) = *text;
    } else if (name == "stop" && node.is_table()) {
      LUFF_RETURN_IF_ERROR(ReadStop(*node.as_table(), &config.stop));
    } else if (name == "capture" && node.is_table()) {
      std::ostringstream json;
      json << toml::json_formatter(*node.as_table());
      config.capture_json = json.str();
    } else {
      return Unknown(name, "luff.toml", "rules, [rule.NAME], parameters, on_finding, [capture], [stop]");
    }
  }
  if (file.contains("rules") || file.contains("rule")) {
    LUFF_ASSIGN_OR_RETURN(std::string text, RulesText(file));
    config.rules = std::move(text);
  }
  return config;
}

}  // namespace

Result<FileConfig> ReadConfigFile(const std::string& path) {
  Result<std::string> text = ReadWholeFile(Env::Real(), path, kMaxConfigBytes);
  if (!text.ok()) return text.status().WithContext("the configuration file cannot be read");
  try {
    Result<FileConfig> config = Read(toml::parse(text.value(), path));
    if (!config.ok()) return config.status().WithContext(path);
    return config;
  } catch (const toml::parse_error& error) {
    const auto& where = error.source().begin;
    return InvalidArgument(
        fmt::format("{}, line {}, column {}: {}", error.description(), where.line, where.column, path));
  } catch (const std::exception& error) {
    return InvalidArgument(fmt::format("{}: {}", error.what(), path));
  }
}

}  // namespace luff::cli

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "catalog/compare.h"
#include "catalog/secret_words.h"
#include "luff/rules/kept_findings.h"

namespace luff::catalog {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr const char* kKinds[] = {"run",       "parameter", "version", "environment",
                                  "optimizer", "schedule",  "loss",    "model"};
constexpr std::size_t kMaxSettings = 20'000, kLongest = 200, kDeepest = 6;

using Values = std::map<std::pair<std::size_t, std::string>, std::string>;  // by kind's number and name

class SettingsReader {
 public:
  void Put(std::string_view kind, const std::string& name, std::string value) {
    if (values_.size() >= kMaxSettings || name.empty() || SoundsSecret(name)) return;
    const auto number = std::ranges::find(kKinds, kind) - std::begin(kKinds);
    if (value.size() > kLongest) value = value.substr(0, kLongest - 3) + "...";
    values_[{static_cast<std::size_t>(number), name}] = std::move(value);
  }

  /// Every number and text in `json`, by its path.
  void PutAll(std::string_view kind, const std::string& name, const Ordered& json, std::size_t depth = 0) {
    if (json.is_null() || depth > kDeepest) return;
    if (json.is_object()) {
      for (const auto& [key, value] : json.items()) PutAll(kind, Below(name, key), value, depth + 1);
    } else if (json.is_array() &&
               std::ranges::any_of(json, [](const Ordered& one) { return one.is_structured(); })) {
      for (std::size_t i = 0; i < json.size(); ++i)
        PutAll(kind, Below(name, std::to_string(i)), json[i], depth + 1);
    } else {
      Put(kind, name, json.is_string() ? json.get<std::string>() : JsonText(json));
    }
  }
  [[nodiscard]] Values Take() { return std::move(values_); }

 private:
  static std::string Below(const std::string& name, const std::string& key) {
    return name.empty() ? key : name + "." + key;
  }
  Values values_;
};

/// A list of the document `model`; empty if it has none.
Ordered ListIn(const Ordered& document, const char* name) {
  const auto at = document.find(name);
  return at != document.end() && at->is_array() ? *at : Ordered::array();
}

/// "SGD", and "SGD.1" for the second one.
std::string NameIn(const Ordered& one, std::map<std::string, int>* seen) {
  std::string name = TextMember(one, "type");
  if (name.empty()) name = TextMember(one, "name");
  if (const int before = (*seen)[name]++; before > 0) name += fmt::format(".{}", before + 1);
  return name;
}

// "1 module", "2 modules".
std::string CountText(std::size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

void PutModel(const Ordered& model, SettingsReader* to) {
  std::map<std::string, int> seen;
  for (const Ordered& one : ListIn(model, "models")) {
    if (!one.is_object()) continue;
    const std::string name = NameIn(one, &seen);
    to->Put("model", name,
            fmt::format("{}, {}", CountText(ListIn(one, "modules").size(), "module"),
                        CountText(ListIn(one, "parameters").size(), "parameter")));
    for (const Ordered& parameter : ListIn(one, "parameters")) {
      const std::string path = TextMember(parameter, "path");
      if (!parameter.is_object() || !parameter.contains("shape") || !parameter["shape"].is_array()) continue;
      to->Put("model", path,
              fmt::format("{} {} on {}{}", TextMember(parameter, "dtype"), JsonText(parameter["shape"]),
                          TextMember(parameter, "device"),
                          parameter.value("requires_grad", Ordered(true)) == false ? ", frozen" : ""));
    }
    for (const Ordered& module : ListIn(one, "modules")) {
      const std::string path = TextMember(module, "path");
      to->Put("model", path.empty() ? name + ".type" : path, TextMember(module, "type"));
      if (module.is_object() && module.contains("settings"))
        to->PutAll("model", path.empty() ? name : path, module["settings"]);
    }
  }
  seen.clear();
  for (const Ordered& one : ListIn(model, "optimizers")) {
    if (!one.is_object()) continue;
    const std::string name = NameIn(one, &seen);
    to->Put("optimizer", name, fmt::format("{} parameter groups", ListIn(one, "groups").size()));
    std::size_t number = 0;
    for (const Ordered& group : ListIn(one, "groups")) {
      const std::string at = fmt::format("{}.group{}", name, number++);
      if (!group.is_object()) continue;
      if (group.contains("settings")) to->PutAll("optimizer", at, group["settings"]);
      if (group.contains("parameters")) to->PutAll("optimizer", at + ".parameters", group["parameters"]);
    }
    if (one.contains("scheduled")) to->PutAll("schedule", name + ".scheduled", one["scheduled"]);
  }
  for (const auto& [list, kind] : {std::pair("schedulers", "schedule"), std::pair("losses", "loss")}) {
    seen.clear();
    for (const Ordered& one : ListIn(model, list)) {
      if (!one.is_object()) continue;
      const std::string name = NameIn(one, &seen);
      to->Put(kind, name, "used");
      if (one.contains("settings")) to->PutAll(kind, name, one["settings"]);
    }
  }
}

Values ValuesOf(const Compared& run) {
  SettingsReader to;
  const Card& card = run.card;
  to.Put("run", "framework", card.framework);
  to.Put("run", "host", card.host);
  to.Put("run", "sweep", card.sweep);
  to.Put("run", "trial", card.trial);
  to.Put("run", "workers", std::to_string(card.workers));
  if (!card.command.empty()) {
    const std::string& program =
        card.command.size() > 1 && card.command[0].find("python") != std::string::npos ? card.command[1]
                                                                                       : card.command[0];
    to.Put("run", "program", program);
  }
  for (const auto& [name, value] : card.parameters) {
    const auto* number = std::get_if<double>(&value);
    const auto* yes = std::get_if<bool>(&value);
    to.Put("parameter", name,
           number != nullptr ? fmt::format("{:.9g}", *number)
           : yes != nullptr  ? (*yes ? "true" : "false")
                             : std::get<std::string>(value));
  }
  for (const auto& [name, version] : card.versions) to.Put("version", name, version);
  const Ordered environment = TryParseOrderedJson(run.trial->Document("environment"));
  if (environment.is_object()) {
    static const std::set<std::string_view> kElsewhere = {"argv", "host",  "framework",      "pid",
                                                          "cwd",  "age_s", "age_run_queue_s"};
    for (const auto& [name, value] : environment.items()) {
      if (!kElsewhere.contains(name) && !card.versions.contains(name)) to.PutAll("environment", name, value);
    }
  }
  const Ordered model = TryParseOrderedJson(run.trial->Document("model"));
  if (model.is_object()) PutModel(model, &to);
  return to.Take();
}

}  // namespace

Settings CompareSettings(const std::vector<Compared>& runs) {
  std::vector<Values> all;
  std::set<Values::key_type> keys;
  for (const Compared& run : runs) {
    all.push_back(ValuesOf(run));
    for (const auto& [key, value] : all.back()) keys.insert(key);
  }
  Settings settings;
  std::map<std::size_t, std::size_t> rows;  // by kind
  for (const auto& key : keys) {
    SettingRow row{kKinds[key.first], key.second, {}};
    for (const Values& values : all) {
      const auto at = values.find(key);
      row.values.push_back(at == values.end() ? std::nullopt : std::optional(at->second));
    }
    if (std::ranges::all_of(row.values, [&](const auto& value) { return value == row.values.front(); })) {
      ++settings.same;
    } else if (++rows[key.first] > Settings::kMaxRows) {
      ++settings.left_out;
    } else {
      settings.rows.push_back(std::move(row));
    }
  }
  return settings;
}

std::vector<FindingRow> CompareFindings(const std::vector<Compared>& runs) {
  std::map<std::pair<std::string, std::string>, FindingRow> rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const rules::Finding& finding : rules::FindingsOfRun(runs[i].card.run).findings) {
      if (finding.healed || !finding.leader.empty()) continue;
      FindingRow& row = rows[{finding.rule, finding.cause}];
      row.rule = finding.rule;
      row.cause = finding.cause;
      row.runs.resize(runs.size());
      FindingRow::Of& of = row.runs[i];
      if (of.count++ > 0 && of.since_step <= finding.since_step) continue;
      of.severity = finding.severity == rules::Severity::kStop ? "stop" : "warn";
      of.tensor = finding.tensor;
      of.mode = finding.mode;
      of.since_step = finding.since_step;
    }
  }
  std::vector<FindingRow> list;
  for (auto& [key, row] : rows) list.push_back(std::move(row));
  const auto earliest = [](const FindingRow& row) {
    std::int64_t first = INT64_MAX;
    for (const FindingRow::Of& of : row.runs) {
      if (of.count > 0) first = std::min(first, of.since_step);
    }
    return first;
  };
  std::ranges::stable_sort(list, {}, earliest);
  return list;
}

}  // namespace luff::catalog

#include "rules/model_facts.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace luff::rules {

using Json = nlohmann::json;

namespace {

constexpr std::size_t kMaxNames = 256;

std::int64_t NumberOf(const Json& from, const char* key, std::int64_t otherwise) {
  if (!from.is_object()) return otherwise;
  const auto it = from.find(key);
  if (it == from.end() || !it->is_number_integer()) return otherwise;
  return std::clamp<std::int64_t>(it->get<std::int64_t>(), 0, 1LL << 40);
}

std::vector<std::int64_t> Numbers(const Json& from) {
  std::vector<std::int64_t> numbers;
  if (!from.is_array()) return numbers;
  for (const Json& one : from) {
    if (one.is_number_integer() && numbers.size() < 64) numbers.push_back(one.get<std::int64_t>());
  }
  return numbers;
}

std::vector<std::string> Names(const Json& from, const char* key) {
  std::vector<std::string> names;
  const auto it = from.find(key);
  if (it == from.end() || !it->is_array()) return names;
  for (const Json& one : *it) {
    if (one.is_string() && names.size() < kMaxNames) names.push_back(one.get<std::string>());
  }
  return names;
}

// The event when it is of that kind; else null.
Json EventOfKind(std::string_view text, const char* kind) {
  if (text.find(kind) == std::string_view::npos) return {};
  Json json = TryParseJson(text);
  if (!json.is_object()) return {};
  const auto it = json.find("kind");
  return it != json.end() && it->is_string() && it->get<std::string>() == kind ? json : Json();
}

}  // namespace

ModelFacts ModelFacts::ParseUntrusted(std::string_view text) {
  ModelFacts facts;
  if (text.empty()) return facts;
  const Json json = TryParseJson(text);
  if (!json.is_object()) return facts;
  const auto list = [](const Json& from, const char* key) {
    const auto it = from.is_object() ? from.find(key) : from.end();
    return it != from.end() && it->is_array() ? *it : Json::array();
  };
  const auto word = [](const Json& from, const char* key) {
    const auto it = from.find(key);
    return it != from.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  for (const Json& model : list(json, "models")) {
    if (!model.is_object()) continue;
    auto& types = facts.module_types_[word(model, "name")];
    for (const Json& module : list(model, "modules")) {
      if (module.is_object()) types[word(module, "path")] = word(module, "type");
    }
    for (const Json& parameter : list(model, "parameters")) {
      if (!parameter.is_object() || word(parameter, "name").empty()) continue;
      ParameterFacts one;
      one.model = word(model, "name");
      one.model_type = word(model, "type");
      one.path = word(parameter, "path");
      one.shape = Numbers(list(parameter, "shape"));
      if (const auto it = parameter.find("shape"); it != parameter.end() && it->is_array()) {
        one.elements = 1;
        for (const std::int64_t size : one.shape)
          one.elements =
              std::min<std::int64_t>(one.elements * std::clamp<std::int64_t>(size, 0, 1 << 20), 1LL << 40);
      }
      one.optimizer = word(parameter, "optimizer");
      if (const auto it = parameter.find("requires_grad"); it != parameter.end() && it->is_boolean())
        one.requires_grad = it->get<bool>();
      if (const auto it = parameter.find("group"); it != parameter.end() && it->is_number_integer())
        one.group = it->get<std::int64_t>();
      facts.parameters_.emplace(word(parameter, "name"), std::move(one));
    }
  }
  for (const Json& optimizer : list(json, "optimizers")) {
    if (!optimizer.is_object()) continue;
    const auto it = optimizer.find("number");
    if (it == optimizer.end() || !it->is_number_unsigned()) continue;
    OptimizerFacts one;
    one.number = it->get<std::uint32_t>();
    one.name = word(optimizer, "name");
    one.type = word(optimizer, "type");
    one.foreign = NumberOf(optimizer, "foreign", -1);
    for (const Json& group : list(optimizer, "groups")) one.parameters += NumberOf(group, "parameters", 0);
    facts.optimizers_[one.name] = one.number;
    facts.optimizer_facts_.push_back(std::move(one));
  }
  return facts;
}

const ParameterFacts* ModelFacts::Find(const std::string& name) const {
  const auto it = parameters_.find(name);
  return it == parameters_.end() ? nullptr : &it->second;
}

bool ModelFacts::IsPartlyOptimized(const std::string& model) const {
  return std::any_of(parameters_.begin(), parameters_.end(), [&](const auto& entry) {
    return entry.second.model == model && !entry.second.optimizer.empty();
  });
}

bool ModelFacts::AnyOptimized() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const auto& entry) { return !entry.second.optimizer.empty(); });
}

std::optional<std::uint32_t> ModelFacts::OptimizerNumber(const std::string& name) const {
  const auto it = optimizers_.find(name);
  if (it == optimizers_.end()) return std::nullopt;
  return it->second;
}

const std::map<std::string, std::string>& ModelFacts::ModuleTypes(const std::string& model) const {
  static const std::map<std::string, std::string> none;
  const auto it = module_types_.find(model);
  return it == module_types_.end() ? none : it->second;
}

std::optional<ReachFacts> ParseReachUntrusted(std::string_view text) {
  const Json json = EventOfKind(text, "reach");
  if (json.is_null()) return std::nullopt;
  ReachFacts facts;
  for (std::string& name : Names(json, "without_gradient")) facts.without_gradient.insert(std::move(name));
  facts.without_gradient_count =
      NumberOf(json, "without_gradient_count", static_cast<std::int64_t>(facts.without_gradient.size()));
  facts.reached_count = NumberOf(json, "reached_count", 0);
  const auto leaves = json.find("foreign");
  if (leaves != json.end() && leaves->is_array()) {
    for (const Json& leaf : *leaves) {
      if (!leaf.is_object() || facts.foreign.size() >= kMaxNames) continue;
      ReachFacts::Leaf one;
      one.shape = Numbers(leaf.value("shape", Json()));
      const Json optimizer = leaf.value("optimizer", Json());
      if (optimizer.is_string()) one.optimizer = optimizer.get<std::string>();
      const Json input = leaf.value("input", Json());
      one.input = input.is_boolean() && input.get<bool>();
      facts.foreign.push_back(std::move(one));
    }
  }
  return facts;
}

std::optional<LoadFacts> ParseLoadUntrusted(std::string_view text) {
  const Json json = EventOfKind(text, "load_state_dict");
  if (json.is_null()) return std::nullopt;
  LoadFacts facts;
  const Json model = json.value("model", Json());
  if (model.is_string()) facts.model = model.get<std::string>();
  facts.matched = NumberOf(json, "matched", 0);
  facts.missing = Names(json, "missing");
  facts.unexpected = Names(json, "unexpected");
  facts.missing_count = NumberOf(json, "missing_count", static_cast<std::int64_t>(facts.missing.size()));
  facts.unexpected_count =
      NumberOf(json, "unexpected_count", static_cast<std::int64_t>(facts.unexpected.size()));
  return facts;
}

bool LoadsWeights(const query::Trial::StepRows& rows) {
  return std::any_of(rows.event_json.begin(), rows.event_json.end(), [](const std::string& text) {
    const std::optional<LoadFacts> load = ParseLoadUntrusted(text);
    return load.has_value() && load->matched > 0;
  });
}

std::string ParameterOfGradient(const std::string& name) {
  constexpr std::string_view kPrefix = "gradient/";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : std::string();
}

bool IsBiasName(const std::string& name) {
  const std::string last = name.substr(name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1);
  return last.find("bias") != std::string::npos && last.find("weight") == std::string::npos;
}

}  // namespace luff::rules

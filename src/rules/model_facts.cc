#include "rules/model_facts.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace luff::rules {

using Json = nlohmann::json;

ModelFacts ModelFacts::Of(const query::Trial& trial) {
  ModelFacts facts;
  const std::string text = trial.Document("model");
  if (text.empty()) return facts;
  const Json json = Json::parse(text, nullptr, false);
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
    for (const Json& parameter : list(model, "parameters")) {
      if (!parameter.is_object() || word(parameter, "name").empty()) continue;
      ParameterFacts one;
      one.model = word(model, "name");
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
    if (it != optimizer.end() && it->is_number_unsigned())
      facts.optimizers_[word(optimizer, "name")] = it->get<std::uint32_t>();
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

std::string ParameterOfGradient(const std::string& name) {
  constexpr std::string_view kPrefix = "gradient/";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : std::string();
}

bool IsBiasName(const std::string& name) {
  const std::string last = name.substr(name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1);
  return last.find("bias") != std::string::npos && last.find("weight") == std::string::npos;
}

}  // namespace luff::rules

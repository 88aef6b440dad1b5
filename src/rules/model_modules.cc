#include "rules/model_modules.h"

#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "luff/tensor/hash.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;
constexpr std::size_t kMaxModules = 1 << 16;

const Json& List(const Json& from, const char* key) {
  static const Json kNone = Json::array();
  const auto it = from.is_object() ? from.find(key) : from.end();
  return from.is_object() && it != from.end() && it->is_array() ? *it : kNone;
}

std::string Word(const Json& from, const char* key) {
  const auto it = from.find(key);
  return it != from.end() && it->is_string() ? it->get<std::string>() : std::string();
}

bool Flag(const Json& from, const char* key, bool missing) {
  const auto it = from.find(key);
  return it != from.end() && it->is_boolean() ? it->get<bool>() : missing;
}

}  // namespace

bool IsLookStep(std::int64_t step) noexcept { return step <= 4 || (step & (step - 1)) == 0; }

std::optional<double> ModuleFacts::Number(const std::string& key) const {
  const auto it = numbers.find(key);
  if (it == numbers.end()) return std::nullopt;
  return it->second;
}

bool ModelModules::OnStep(const query::Trial& trial, const query::StepInfo& info) {
  if (info.mode != query::Mode::kTrain) return false;
  // The first look of this process, also of one that goes on where another has stopped; then now and then.
  const bool due = !looked_ || IsLookStep(info.mode_step) || (modules_.empty() && info.mode_step < 64);
  if (!due) return false;
  looked_ = true;
  const std::string text = trial.Document("model");
  const std::uint64_t now = HashBytes(text.data(), text.size());
  if (text.empty() || now == seen_) return false;
  seen_ = now;
  Parse(text);
  return true;
}

void ModelModules::Parse(const std::string& text) {
  modules_.clear();
  const Json json = TryParseJson(text);
  for (const Json& model : List(json, "models")) {
    if (!model.is_object()) continue;
    // Parameters by the path of the module that owns them: true if one of them requires a gradient.
    std::map<std::string, bool> owners;
    for (const Json& parameter : List(model, "parameters")) {
      if (!parameter.is_object()) continue;
      const std::string path = Word(parameter, "path");
      const std::size_t dot = path.rfind('.');
      bool& trains = owners[dot == std::string::npos ? std::string() : path.substr(0, dot)];
      trains = trains || Flag(parameter, "requires_grad", true);
    }
    for (const Json& module : List(model, "modules")) {
      if (!module.is_object() || modules_.size() >= kMaxModules) continue;
      ModuleFacts facts;
      facts.model = Word(model, "name");
      facts.path = Word(module, "path");
      facts.type = Word(module, "type");
      facts.name = Word(module, "name");
      facts.training = Flag(module, "training", true);
      if (const auto it = module.find("number"); it != module.end() && it->is_number_unsigned())
        facts.number = it->get<std::uint32_t>();
      if (const auto owner = owners.find(facts.path); owner != owners.end()) {
        facts.has_parameters = true;
        facts.trains = owner->second;
      }
      if (const auto it = module.find("settings"); it != module.end() && it->is_object()) {
        for (const auto& [key, value] : it->items()) {
          if (value.is_number()) facts.numbers[key] = value.get<double>();
          if (value.is_boolean()) facts.numbers[key] = value.get<bool>() ? 1 : 0;
        }
      }
      modules_.push_back(std::move(facts));
    }
  }
}

const ModuleFacts* ModelModules::OfNumber(std::uint32_t number) const {
  for (const ModuleFacts& module : modules_) {
    if (module.number == number) return &module;
  }
  return nullptr;
}

const ModuleFacts* ModelModules::Find(const std::string& model, const std::string& path) const {
  for (const ModuleFacts& module : modules_) {
    if (module.model == model && module.path == path) return &module;
  }
  return nullptr;
}

}  // namespace luff::rules

#include "rules/facts/model_facts.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace luff::rules {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxNames = 256;
constexpr std::size_t kMaxModules = 1 << 16;

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

// A setting of an optimizer's group, or of a scheduler; 0 if it is missing.
double SettingOf(const Json& group, const char* key) {
  const auto settings = group.is_object() ? group.find("settings") : group.end();
  if (!group.is_object() || settings == group.end() || !settings->is_object()) return 0;
  const auto it = settings->find(key);
  return it != settings->end() && it->is_number() ? it->get<double>() : 0;
}

/// Whether torch updates a group's parameters one after the other: foreach is its choice on devices only.
bool IsOneByOne(const Json& group, const std::string& device) {
  if (!group.is_object() || !group.contains("settings") || !group["settings"].is_object()) return false;
  const Json& settings = group["settings"];
  const auto is = [&](const char* name, bool value) {
    const auto at = settings.find(name);
    return at != settings.end() && at->is_boolean() && at->get<bool>() == value;
  };
  if (!settings.contains("foreach") || is("foreach", true) || is("fused", true)) return false;
  return is("foreach", false) || device == "cpu";
}

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

constexpr std::size_t kMaxSettings = 64;

// The members of an object that are numbers.
std::map<std::string, double> NumbersIn(const Json& from) {
  std::map<std::string, double> numbers;
  if (!from.is_object()) return numbers;
  for (const auto& [key, value] : from.items())
    if (value.is_number() && numbers.size() < kMaxSettings) numbers[key] = value.get<double>();
  return numbers;
}

std::optional<double> Find(const std::map<std::string, double>& numbers, const char* key) {
  const auto it = numbers.find(key);
  return it == numbers.end() ? std::nullopt : std::optional(it->second);
}

SchedulerFacts SchedulerFrom(const Json& scheduler) {
  SchedulerFacts one;
  one.type = Word(scheduler, "type");
  if (const auto settings = scheduler.find("settings");
      settings != scheduler.end() && settings->is_object()) {
    one.mode = Word(*settings, "mode");
    const std::map<std::string, double> numbers = NumbersIn(*settings);
    one.gamma = Find(numbers, "gamma");
    one.eta_min = Find(numbers, "eta_min");
  }
  for (const char* length : {"total_steps", "T_max", "total_iters"})
    if (one.length == 0) one.length = static_cast<std::int64_t>(SettingOf(scheduler, length));
  one.milestones = Numbers(List(scheduler, "milestones"));
  if (const auto it = scheduler.find("optimizer"); it != scheduler.end() && it->is_number_integer())
    one.optimizer = std::clamp<std::int64_t>(it->get<std::int64_t>(), -1, 1LL << 32);
  one.moved = Flag(scheduler, "moved", false);
  return one;
}

ParameterFacts ParameterFrom(const Json& model, const Json& parameter) {
  ParameterFacts one;
  one.model = Word(model, "name");
  one.model_type = Word(model, "type");
  one.path = Word(parameter, "path");
  if (const auto shape = parameter.find("shape"); shape != parameter.end() && shape->is_array()) {
    one.shape = Numbers(*shape);
    one.elements = 1;
    for (const std::int64_t size : one.shape)
      one.elements =
          std::min<std::int64_t>(one.elements * std::clamp<std::int64_t>(size, 0, 1 << 20), 1LL << 40);
  }
  one.optimizer = Word(parameter, "optimizer");
  one.requires_grad = Flag(parameter, "requires_grad", true);
  one.updated = Flag(parameter, "updated", false);
  one.misspelt = Word(parameter, "misspelt");
  if (const auto it = parameter.find("group"); it != parameter.end() && it->is_number_integer())
    one.group = it->get<std::int64_t>();
  return one;
}

ModuleFacts ModuleFrom(const Json& model, const Json& module, const std::map<std::string, bool>& owners) {
  ModuleFacts facts;
  facts.model = Word(model, "name");
  facts.path = Word(module, "path");
  facts.type = Word(module, "type");
  facts.kind = KindOfModule(facts.type);
  facts.name = Word(module, "name");
  facts.training = Flag(module, "training", true);
  facts.builtin = Flag(module, "builtin", false);
  facts.mentioned = Flag(module, "mentioned", false);
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
  return facts;
}

}  // namespace

ModuleKind KindOfModule(std::string_view type) noexcept {
  if (type.find("Norm") != std::string_view::npos) return ModuleKind::kNorm;
  if (type.find("Drop") != std::string_view::npos) return ModuleKind::kDropout;
  if (type.ends_with("Linear")) return ModuleKind::kLinear;
  return type.starts_with("Conv") ? ModuleKind::kConvolution : ModuleKind::kOther;
}

bool LooksLikeRequiresGrad(std::string_view name) noexcept {
  for (const std::string_view one :
       {"requires_grad", "require_grad", "required_grad", "requires_grads", "require_grads",
        "requires_gradient", "require_gradient", "requires_gradients", "requiresGrad"})
    if (name == one) return true;
  return false;
}

std::optional<double> ModuleFacts::Number(const std::string& key) const {
  const auto it = numbers.find(key);
  if (it == numbers.end()) return std::nullopt;
  return it->second;
}

ModelFacts ModelFacts::ParseUntrusted(std::string_view text) {
  ModelFacts facts;
  facts.missing_ = text.empty();
  const Json json = TryParseJson(text);
  facts.keras_ = json.is_object() && Word(json, "framework") == "keras";
  for (const Json& model : List(json, "models")) {
    if (!model.is_object()) continue;
    // By path of the owning module: whether one of its own parameters requires a gradient.
    std::map<std::string, bool> owners;
    for (const Json& parameter : List(model, "parameters")) {
      if (!parameter.is_object()) continue;
      const std::string path = Word(parameter, "path");
      const std::size_t dot = path.rfind('.');
      bool& trains = owners[dot == std::string::npos ? std::string() : path.substr(0, dot)];
      trains = trains || Flag(parameter, "requires_grad", true);
      if (std::string name = Word(parameter, "name"); !name.empty())
        facts.parameters_.emplace(std::move(name), ParameterFrom(model, parameter));
    }
    auto& types = facts.module_types_[Word(model, "name")];
    for (const Json& module : List(model, "modules")) {
      if (!module.is_object()) continue;
      types[Word(module, "path")] = Word(module, "type");
      if (facts.modules_.size() < kMaxModules) facts.modules_.push_back(ModuleFrom(model, module, owners));
    }
  }
  for (const Json& optimizer : List(json, "optimizers")) {
    if (!optimizer.is_object()) continue;
    const auto it = optimizer.find("number");
    if (it == optimizer.end() || !it->is_number_unsigned()) continue;
    OptimizerFacts one;
    one.number = it->get<std::uint32_t>();
    one.name = Word(optimizer, "name");
    one.type = Word(optimizer, "type");
    one.foreign = NumberOf(optimizer, "foreign", -1);
    one.shared = NumberOf(optimizer, "shared", 0);
    one.scheduled = Flag(optimizer, "scheduled", false);
    one.device = Word(optimizer, "device");
    one.defaults = NumbersIn(optimizer.value("defaults", Json()));
    one.one_by_one = !List(optimizer, "groups").empty();
    for (const Json& group : List(optimizer, "groups")) {
      one.one_by_one = one.one_by_one && IsOneByOne(group, one.device);
      one.parameters += NumberOf(group, "parameters", 0);
      const double eps = SettingOf(group, "eps");
      if (eps > 0) one.eps = one.eps > 0 ? std::min(one.eps, eps) : eps;
      one.lr = std::max({one.lr, SettingOf(group, "lr"), SettingOf(group, "initial_lr")});
      if (one.groups.size() < kMaxNames)
        one.groups.push_back(group.is_object() ? NumbersIn(group.value("settings", Json()))
                                               : std::map<std::string, double>());
    }
    facts.optimizers_[one.name] = one.number;
    facts.optimizer_facts_.push_back(std::move(one));
  }
  for (const Json& scheduler : List(json, "schedulers")) {
    if (!scheduler.is_object() || facts.schedulers_.size() >= kMaxNames) continue;
    facts.schedulers_.push_back(SchedulerFrom(scheduler));
  }
  return facts;
}

bool ModelFacts::HasModule(ModuleKind kind) const noexcept {
  return std::any_of(modules_.begin(), modules_.end(),
                     [kind](const ModuleFacts& module) { return module.kind == kind; });
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

std::vector<ReachFacts> ReachesOf(const StepIndex& index) {
  std::vector<ReachFacts> all;
  for (const auto& event : index.json_events("reach")) {
    const Json& json = *event;
    ReachFacts& facts = all.emplace_back();
    for (std::string& name : Names(json, "without_gradient")) facts.without_gradient.insert(std::move(name));
    facts.without_gradient_count =
        NumberOf(json, "without_gradient_count", static_cast<std::int64_t>(facts.without_gradient.size()));
    facts.reached_count = NumberOf(json, "reached_count", 0);
    for (const Json& shape : List(json, "made"))
      if (facts.made.size() < kMaxNames) facts.made.insert(Numbers(shape));
    for (const Json& leaf : List(json, "foreign")) {
      if (!leaf.is_object() || facts.foreign.size() >= kMaxNames) continue;
      ReachFacts::Leaf one;
      one.shape = Numbers(leaf.value("shape", Json()));
      one.optimizer = Word(leaf, "optimizer");
      one.input = Flag(leaf, "input", false);
      facts.foreign.push_back(std::move(one));
    }
  }
  return all;
}

std::vector<LoadFacts> LoadsOf(const StepIndex& index) {
  std::vector<LoadFacts> all;
  for (const auto& event : index.json_events("load_state_dict")) {
    const Json& json = *event;
    LoadFacts& facts = all.emplace_back();
    facts.model = Word(json, "model");
    facts.matched = NumberOf(json, "matched", 0);
    facts.own = NumberOf(json, "own", 0);
    facts.missing = Names(json, "missing");
    facts.unexpected = Names(json, "unexpected");
    facts.missing_count = NumberOf(json, "missing_count", static_cast<std::int64_t>(facts.missing.size()));
    facts.unexpected_count =
        NumberOf(json, "unexpected_count", static_cast<std::int64_t>(facts.unexpected.size()));
  }
  return all;
}

bool LoadsWeights(const StepIndex& index) {
  if (!index.json_events("weights_written").empty()) return true;
  const std::vector<LoadFacts> loads = LoadsOf(index);
  return std::any_of(loads.begin(), loads.end(),
                     [](const LoadFacts& load) { return load.matched > 0 && !load.gives_nothing(); });
}

std::string ParameterOfGradient(const std::string& name) {
  constexpr std::string_view kPrefix = "gradient/";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : std::string();
}

bool IsBiasName(const std::string& name) {
  const std::size_t cut = name.find_last_of("./");  // "fc.bias" of PyTorch, "dense/weights/bias" of Keras
  const std::string last = name.substr(cut == std::string::npos ? 0 : cut + 1);
  return last.find("bias") != std::string::npos && last.find("weight") == std::string::npos;
}

}  // namespace luff::rules

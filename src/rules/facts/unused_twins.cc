#include "rules/facts/unused_twins.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "rules/kit/select.h"

namespace luff::rules {
namespace {

using format::EventKind;
using format::Form;
using format::Role;

// Containers whose members may be spare ones, and which are called by their place.
constexpr std::array<std::string_view, 5> kContainers = {"ModuleList", "ModuleDict", "Sequential",
                                                         "ParameterList", "ParameterDict"};

// Of the framework's classes those that return one tensor.
bool ReturnsOne(const ModuleFacts& module) {
  const std::string_view type = module.type;
  return module.builtin &&
         (type == "Linear" || type == "Bilinear" || type == "Sequential" || type.starts_with("Embedding") ||
          type.starts_with("Conv") || type.find("Norm") != std::string_view::npos);
}

std::string_view PathOfParent(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

bool IsAttribute(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('.') + 1);
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0;
}

using TwinShapes = std::map<std::string, std::vector<std::int64_t>>;  // by path within the module

struct Twin {
  const ModuleFacts* module = nullptr;
  TwinShapes shapes;
  std::vector<std::string> weights;
  bool idle = true;  // all of them are
};

}  // namespace

void UnusedTwins::OnStep(const StepView& view) {
  const bool trains = view.rows.info.mode == query::Mode::kTrain;
  std::map<std::string, std::int64_t> tensors;
  for (const auto& entry : view.rows.forms) {
    if (entry.row.form != Bit(Form::kShape) || entry.worker != view.index.first_worker()) continue;
    const query::TensorInfo& tensor = view.trial.tensor(entry.tensor);
    if (tensor.role == Role::kOutput) ++tensors[tensor.module_path];
  }
  if (tensors.empty()) return;
  if (trains) {
    ++steps_;
    std::int64_t calls = 0;
    for (const query::EventAt& event : view.index.events(EventKind::kForward))
      calls += event.worker == view.index.first_worker() ? 1 : 0;
    several_ = several_ || calls != 1;
  }
  for (const auto& [module, count] : tensors) {
    if (calls_.size() >= kMaxModules && !calls_.contains(module)) continue;
    Calls& known = calls_[module];
    if (!trains) continue;
    known.varies = known.varies || (known.steps > 0 && known.tensors != count);
    known.tensors = count;
    ++known.steps;
  }
}

// How often a module that returns one tensor runs in each TRAIN step; 0 if that varies.
std::int64_t UnusedTwins::TimesOf(const std::string& module) const {
  const auto known = calls_.find(module);
  if (known == calls_.end() || known->second.varies || known->second.steps != steps_) return 0;
  return known->second.tensors;
}

std::optional<UnusedTwins::Found> UnusedTwins::Judge(const ModelFacts& facts,
                                                     const std::set<std::string>& idle) const {
  if (several_ || steps_ < kSteps || idle.empty() || calls_.size() >= kMaxModules) return std::nullopt;
  // Models with parameters that nothing reaches: few have any.
  std::set<std::string> models;
  for (const std::string& name : idle)
    if (const ParameterFacts* parameter = facts.Find(name); parameter != nullptr)
      models.insert(parameter->model);
  std::map<std::pair<std::string, std::string>, std::vector<Twin>> families;  // by model and parent
  for (const ModuleFacts& module : facts.modules()) {
    if (!models.contains(module.model) || module.path.empty() || module.name.empty() || !ReturnsOne(module) ||
        !IsAttribute(module.path))
      continue;
    const std::string parent(PathOfParent(module.path));
    const auto& types = facts.ModuleTypes(module.model);
    const auto type = types.find(parent);
    if (type == types.end() || std::ranges::find(kContainers, type->second) != kContainers.end()) continue;
    families[{module.model, parent}].push_back({.module = &module, .shapes = {}, .weights = {}});
  }
  for (auto& [key, members] : families) {
    if (members.size() < 2) continue;
    for (const auto& [name, parameter] : facts.parameters()) {
      if (parameter.model != key.first) continue;
      for (Twin& member : members) {
        const std::string& path = member.module->path;
        if (!parameter.path.starts_with(path + ".")) continue;
        member.shapes[parameter.path.substr(path.size() + 1)] = parameter.shape;
        member.weights.push_back(name);
        member.idle = member.idle && idle.contains(name);
      }
    }
    bool once = key.second.empty();  // the parent runs once in a step
    for (const ModuleFacts& module : facts.modules()) {
      if (once || module.model != key.first) continue;
      once =
          (module.path == key.second || PathOfParent(module.path) == key.second) && TimesOf(module.name) == 1;
    }
    if (!once) continue;
    for (const Twin& unused : members) {
      if (!unused.idle || unused.weights.empty() || calls_.contains(unused.module->name)) continue;
      if (unused.module->mentioned) continue;  // a condition in forward() chooses it, later on
      const Twin* used = nullptr;
      bool alone = true;  // no other spare one, and no other that runs more than once
      for (const Twin& other : members) {
        if (&other == &unused || other.module->type != unused.module->type || other.shapes != unused.shapes)
          continue;
        const std::int64_t times = TimesOf(other.module->name);
        if (times > 1 && used == nullptr && !other.idle) {
          used = &other;
        } else if (times != 1) {
          alone = false;
        }
      }
      if (used == nullptr || !alone || TimesOf(used->module->name) > 3) continue;
      return Found{unused.module->name, used->module->name, TimesOf(used->module->name), unused.weights};
    }
  }
  return std::nullopt;
}

}  // namespace luff::rules

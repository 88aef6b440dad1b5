#include "rules/facts/trainable_sets.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "rules/facts/json_event.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/select.h"

namespace luff::rules {
namespace {

std::set<std::string> NamesIn(const nlohmann::json& event, const char* key, std::size_t most) {
  std::set<std::string> names;
  const auto list = event.find(key);
  if (list == event.end() || !list->is_array()) return names;
  for (const auto& name : *list) {
    if (names.size() < most && name.is_string()) names.insert(name.get<std::string>().substr(0, 300));
  }
  return names;
}

// The count in a member; 0 for anything that is none.
std::int64_t ParametersIn(const nlohmann::json& event, const char* key) {
  const double value = NumberIn(event, key);
  return value >= 0 && value < 1e9 ? static_cast<std::int64_t>(value) : 0;
}

}  // namespace

void TrainableSets::Take(const nlohmann::json& event, std::int64_t step,
                         const std::set<std::string>& trained) {
  const auto name = event.find("model");
  if (name == event.end() || !name->is_string()) return;
  const std::string key = name->get<std::string>().substr(0, 300);
  if (models_.size() >= kMaxModels && !models_.contains(key)) return;
  Model& model = models_[key];
  if (model.told >= 0) over_.push_back({static_cast<Fault>(model.told), key});
  model = {};
  model.trainable = ParametersIn(event, "trainable");
  model.frozen = ParametersIn(event, "frozen");
  model.added = NamesIn(event, "added", kMaxNames);
  model.removed = NamesIn(event, "removed", kMaxNames);
  model.since = step;
  model.has_added = std::any_of(model.added.begin(), model.added.end(),
                                [&](const std::string& one) { return trained.contains(one); });
}

std::optional<TrainableSets::Told> TrainableSets::OnStep(const StepView& view,
                                                         const std::set<std::string>& trained) {
  const query::StepInfo& info = view.rows.info;
  over_.clear();
  for (const auto& event : view.index.json_events("trainable_set")) Take(*event, info.mode_step, trained);
  if (models_.empty() || info.superseded) return std::nullopt;
  const bool updated = !view.index.events(format::EventKind::kOptimizerStep).empty();
  std::set<std::string> called;
  for (const ModelInput& input : ModelInputsOf(view)) called.insert(input.model);
  std::set<std::string> with_gradient;
  if (updated) {
    for (const auto& [entry, tensor] : view.index.summaries(format::Role::kGradient))
      with_gradient.insert(ParameterOfGradient(tensor.name));
  }
  for (auto& [name, model] : models_) {
    // It was unfrozen and compiled again in a loop of `train_on_batch`, which has no epochs.
    if (model.told == static_cast<std::int64_t>(Fault::kNothing) &&
        std::any_of(with_gradient.begin(), with_gradient.end(), [&](const std::string& one) {
          const ParameterFacts* parameter = view.memo.Facts(view).Find(one);
          return parameter != nullptr && parameter->model == name;
        })) {
      over_.push_back({Fault::kNothing, name});
      model.told = -1;
      model.updated = true;
    }
    if (model.told >= 0 || (model.trainable > 0 && model.added.empty() && model.removed.empty())) continue;
    if (called.contains(name)) {
      model.updated = model.updated || updated;
      model.idle += updated ? 0 : 1;
    }
    bool others = false;
    bool of_removed = false;
    for (const std::string& one : with_gradient) {
      model.has_added = model.has_added || model.added.contains(one);
      of_removed = of_removed || model.removed.contains(one);
      const ParameterFacts* parameter = view.memo.Facts(view).Find(one);
      others = others || (parameter != nullptr && parameter->model == name);
    }
    model.left += others ? 1 : 0;
    model.kept += of_removed ? 1 : 0;
    Told told;
    told.model = name;
    told.since = model.since;
    if (model.trainable == 0 && model.frozen > 0 && !model.updated && model.idle >= kSteps) {
      told.fault = Fault::kNothing;
      told.count = model.frozen;
      told.steps = model.idle;
    } else if (!model.added.empty() && !model.has_added && model.left >= kSteps) {
      told.fault = Fault::kUnfrozen;
      told.names = model.added;
      told.count = static_cast<std::int64_t>(model.added.size());
      told.steps = model.left;
    } else if (!model.removed.empty() && model.trainable > 0 && model.kept >= kSteps) {
      told.fault = Fault::kFrozen;
      told.names = model.removed;
      told.count = static_cast<std::int64_t>(model.removed.size());
      told.steps = model.kept;
    } else {
      continue;
    }
    model.told = static_cast<std::int64_t>(told.fault);
    return told;
  }
  return std::nullopt;
}

void TrainableSets::Model::VisitFields(Fields& io) {
  io("trainable", trainable);
  io("frozen", frozen);
  io("added", added, kMaxNames);
  io("removed", removed, kMaxNames);
  io("since", since);
  io("idle", idle);
  io("left", left);
  io("kept", kept);
  io("told", told);
  io.Check(told >= -1 && told <= static_cast<std::int64_t>(Fault::kFrozen), "a fault, or -1");
  io("updated", updated);
  io("has_added", has_added);
}

void TrainableSets::VisitFields(Fields& io) { io("models", models_, kMaxModels); }

}  // namespace luff::rules

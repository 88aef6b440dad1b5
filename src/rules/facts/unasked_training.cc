#include "rules/facts/unasked_training.h"

#include <set>

#include <nlohmann/json.hpp>

#include "rules/facts/json_event.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/select.h"

namespace luff::rules {
namespace {

// The count in a member; 0 for anything that is none.
std::int64_t LayersIn(const nlohmann::json& event, const char* key) {
  const double value = NumberIn(event, key);
  return value >= 0 && value < 1e9 ? static_cast<std::int64_t>(value) : 0;
}

}  // namespace
std::optional<UnaskedTraining::Told> UnaskedTraining::OnStep(const StepView& view, std::int64_t updates) {
  const query::StepInfo& info = view.rows.info;
  over_ = false;
  for (const auto& event : view.index.json_events("mode_not_asked")) {
    const auto name = event->find("model");
    if (name == event->end() || !name->is_string()) continue;
    const std::string key = name->get<std::string>().substr(0, 300);
    if (models_.size() >= kMaxModels && !models_.contains(key)) continue;
    Model& model = models_[key];
    over_ = over_ || model.told;
    model = {LayersIn(*event, "dropout"), LayersIn(*event, "batch_norm"), 0, info.mode_step, false};
  }
  if (models_.empty() || info.superseded || view.index.events(format::EventKind::kOptimizerStep).empty())
    return std::nullopt;
  std::set<std::string> updated;  // models whose parameters got gradients
  for (const auto& [entry, tensor] : view.index.summaries(format::Role::kGradient)) {
    const ParameterFacts* parameter = view.memo.Facts(view).Find(ParameterOfGradient(tensor.name));
    if (parameter != nullptr) updated.insert(parameter->model);
  }
  for (auto& [name, model] : models_) {
    if (model.told || model.dropout + model.batch_norm == 0 || !updated.contains(name)) continue;
    if (++model.updates < updates) continue;
    model.told = true;
    return Told{name, model.dropout, model.batch_norm, model.updates, model.since};
  }
  return std::nullopt;
}

void UnaskedTraining::Model::VisitFields(Fields& io) {
  io("dropout", dropout);
  io("batch_norm", batch_norm);
  io("updates", updates);
  io("since", since);
  io("told", told);
}

void UnaskedTraining::VisitFields(Fields& io) { io("models", models_, kMaxModels); }

}  // namespace luff::rules

#include "rules/kit/step_index.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace luff::rules {

using format::Role;

void StepIndex::Build(const query::Trial& trial, const query::Trial::StepRows& rows) {
  const auto sort = [&](const auto& entries, auto& by_role) {
    for (auto& of_role : by_role) of_role.clear();
    for (const auto& entry : entries) {
      const query::TensorInfo& tensor = trial.tensor(entry.tensor);
      by_role[Place(tensor.role)].push_back({entry, tensor});
    }
  };
  sort(rows.summaries, summaries_);
  sort(rows.scalars, scalars_);
  sort(rows.units, units_);
  changes_.clear();
  for (const auto& entry : rows.forms) {
    if (entry.row.form != static_cast<std::uint32_t>(format::Form::kDifference)) continue;
    const query::TensorInfo& tensor = trial.tensor(entry.tensor);
    const auto& v = entry.row.values;
    if (tensor.role == Role::kWeight)
      changes_.push_back({entry.tensor, entry.worker, tensor.name, v[0], v[1], v[2], v[3], v[4], v[5]});
  }
  FindLosses();
  for (auto& of_kind : events_) of_kind.clear();
  first_worker_ = rows.events.empty() ? 0 : rows.events.front().worker;
  for (const query::EventAt& event : rows.events) {
    if (event.row.kind < kEventKinds) events_[event.row.kind].push_back(event);
  }
  json_events_.clear();
  for (const std::string& text : rows.event_json) {
    Json json = TryParseJson(text);
    if (!json.is_object()) continue;
    const auto kind = json.find("kind");
    if (kind == json.end() || !kind->is_string()) continue;
    const std::string name = kind->get<std::string>();
    json_events_[name].push_back(std::make_shared<const Json>(std::move(json)));
  }
}

void StepIndex::FindLosses() {
  losses_.clear();
  for (const auto& [entry, tensor] : scalars(Role::kLoss))
    losses_.push_back({entry.tensor, entry.worker, entry.value});
  for (const auto& row : summaries(Role::kLoss)) {
    const auto& entry = row.entry;
    if (entry.summary.count != 1) continue;
    const bool known = std::any_of(losses_.begin(), losses_.end(), [&](const LossValue& loss) {
      return loss.tensor == entry.tensor && loss.worker == entry.worker;
    });
    if (known) continue;
    double value = entry.summary.sum;
    if (entry.summary.nan_count > 0) value = std::nan("");
    if (entry.summary.inf_count > 0) value = HUGE_VAL;
    losses_.push_back({entry.tensor, entry.worker, value});
  }
}

std::span<const std::shared_ptr<const StepIndex::Json>> StepIndex::json_events(std::string_view kind) const {
  const auto known = json_events_.find(std::string(kind));
  if (known == json_events_.end()) return {};
  return known->second;
}

}  // namespace luff::rules

#include "rules/facts/slow_average.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "rules/facts/json_event.h"
#include "rules/facts/model_facts.h"

namespace luff::rules {

using format::EventKind;

namespace {

constexpr std::size_t kLongestName = 256;

// The text in a member; "" if there is none, or a longer one.
std::string NameIn(const nlohmann::json& object, const char* key) {
  const auto at = object.is_object() ? object.find(key) : object.end();
  if (at == object.end() || !at->is_string()) return {};
  std::string text = at->get<std::string>();
  return text.size() <= kLongestName ? text : std::string();
}

}  // namespace

void SlowAverage::Look::VisitFields(Fields& io) {
  io("trained", trained);
  io("share", share);
  io("steady", steady);
  io("first", first);
}

void SlowAverage::VisitFields(Fields& io) {
  io("last", last_);
  io("looks", looks_, kMaxModels);
  io("evaluated", evaluated_, kMaxModels);
  io("evaluating", evaluating_);
  io("evaluations", evaluations_);
  io("updates", updates_);
  io("first_evaluation", first_evaluation_);
}

void SlowAverage::OnStep(const StepView& view) {
  const query::StepInfo& info = view.rows.info;
  if (info.superseded) return;
  if (info.mode == query::Mode::kTrain) {
    last_.Take(info);
    evaluating_ = false;
    updates_ += static_cast<std::int64_t>(view.index.events(EventKind::kOptimizerStep).size());
  }
  if (info.mode == query::Mode::kEval && updates_ > 0) {
    evaluations_ += std::exchange(evaluating_, true) ? 0 : 1;
    for (const query::EventAt& event : view.index.events(EventKind::kForward)) {
      if (first_evaluation_ < 0) first_evaluation_ = updates_;
      if (evaluated_.size() < kMaxModels) evaluated_.insert(event.row.subject);
    }
  }
  for (const auto& event : view.index.json_events("average")) {
    const std::string model = NameIn(*event, "model");
    if (model.empty() || (looks_.size() >= kMaxModels && !looks_.contains(model))) continue;
    Look& look = looks_[model];
    look.trained = NameIn(*event, "of");
    look.share = NumberIn(*event, "share");
    look.steady = NumberIn(*event, "steady");
    look.first = first_evaluation_;
  }
}

std::optional<SlowAverage::Found> SlowAverage::OnEnd(const query::Trial& trial) const {
  if (looks_.empty() || evaluated_.size() >= kMaxModels || updates_ < kRarer * evaluations_)
    return std::nullopt;
  const ModelFacts facts = ModelFacts::Of(trial);
  for (const auto& [name, look] : looks_) {
    const std::int64_t updates = updates_ - look.first;
    if (look.first < 0 || updates < kUpdates || !(look.share > 0 && look.share < kShare) ||
        !(look.steady >= kSteady) || facts.IsPartlyOptimized(name) || !facts.IsPartlyOptimized(look.trained))
      continue;
    bool known = false, beside = false;  // the trained one is evaluated, too: the average is looked at only
    for (const ModuleFacts& module : facts.modules()) {
      if (module.model != look.trained || !module.number) continue;
      known = known || module.path.empty();
      beside = beside || evaluated_.contains(*module.number);
    }
    if (known && !beside) return Found{last_, name, look.trained, look.share, updates};
  }
  return std::nullopt;
}

}  // namespace luff::rules

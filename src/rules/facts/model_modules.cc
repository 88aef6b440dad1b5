#include "rules/facts/model_modules.h"

#include "rules/facts/step_memo.h"

namespace luff::rules {

bool IsLookStep(std::int64_t step) noexcept { return step <= 4 || (step & (step - 1)) == 0; }

bool ModelModules::OnStep(const StepView& view) {
  const query::StepInfo& info = view.rows.info;
  if (info.mode != query::Mode::kTrain) return false;
  // Looks at the first step that this process sees (facts are not part of the saved state), at look steps,
  // and in the first 64 steps as long as there are no modules.
  const bool due = !looked_ || IsLookStep(info.mode_step) || (modules().empty() && info.mode_step < 64);
  if (!due) return false;
  looked_ = true;
  std::shared_ptr<const ModelFacts> now = view.memo.SharedFacts(view);
  if (now->missing() || now == facts_) return false;
  facts_ = std::move(now);
  return true;
}

const ModuleFacts* ModelModules::OfNumber(std::uint32_t number) const {
  for (const ModuleFacts& module : modules()) {
    if (module.number == number) return &module;
  }
  return nullptr;
}

const ModuleFacts* ModelModules::Find(const std::string& model, const std::string& path) const {
  for (const ModuleFacts& module : modules()) {
    if (module.model == model && module.path == path) return &module;
  }
  return nullptr;
}

}  // namespace luff::rules

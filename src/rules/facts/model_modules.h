#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/facts/model_facts.h"

namespace luff::rules {

/// **Thread-compatible.** The modules of all models, as of the last look: it looks in the first steps and at
/// powers of two.
class ModelModules {
 public:
  /// Call at each step; looks only at TRAIN steps. Returns true if it found changed facts.
  bool OnStep(const StepView& view);
  [[nodiscard]] const std::vector<ModuleFacts>& modules() const noexcept { return facts_->modules(); }
  [[nodiscard]] const ModuleFacts* OfNumber(std::uint32_t number) const;
  /// By model and path.
  [[nodiscard]] const ModuleFacts* Find(const std::string& model, const std::string& path) const;

 private:
  bool looked_ = false;
  std::shared_ptr<const ModelFacts> facts_ = std::make_shared<const ModelFacts>();
};

/// 0 to 4, and powers of two.
[[nodiscard]] bool IsLookStep(std::int64_t step) noexcept;

}  // namespace luff::rules

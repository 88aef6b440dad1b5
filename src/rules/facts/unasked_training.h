#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// Models of Keras that a loop trains and calls without `training=True` (event `mode_not_asked`,
/// docs/spec/evidence.md). **Thread-compatible.** Bounded memory.
class UnaskedTraining {
 public:
  struct Told {
    std::string model;
    std::int64_t dropout = 0, batch_norm = 0;  // layers
    std::int64_t updates = 0, since = -1;
  };
  /// Call at each TRAIN step. Returns a model that was called so for `updates` updates of its parameters;
  /// once.
  [[nodiscard]] std::optional<Told> OnStep(const StepView& view, std::int64_t updates);
  /// Whether a model that was told is called with `training` as of this step.
  [[nodiscard]] bool Over() const noexcept { return over_; }
  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kMaxModels = 64;
  struct Model {
    std::int64_t dropout = 0, batch_norm = 0, updates = 0, since = -1;
    bool told = false;
    void VisitFields(Fields& io);
  };
  std::map<std::string, Model> models_;
  bool over_ = false;
};

}  // namespace luff::rules

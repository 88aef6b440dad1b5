#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/facts/model_facts.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Finds a module that never runs although a sibling of the same class and the same
/// shapes runs twice or three times in each forward pass: a copied line names the other one.
class UnusedTwins {
 public:
  struct Found {
    std::string unused, used;          // names of the modules
    std::int64_t times = 0;            // that the used one runs in each forward pass
    std::vector<std::string> weights;  // names of the unused one's parameters
  };

  /// Call at each TRAIN and EVAL step.
  void OnStep(const StepView& view);
  /// `idle`: names of parameters that have never had a gradient, and never changed.
  [[nodiscard]] std::optional<Found> Judge(const ModelFacts& facts, const std::set<std::string>& idle) const;

  void VisitFields(Fields& io) {
    io("calls", calls_, kMaxModules);
    io("steps", steps_);
    io("several", several_);
  }

 private:
  static constexpr std::size_t kMaxModules = 1 << 14;
  static constexpr std::int64_t kSteps = 3;  // captured TRAIN steps

  struct Calls {
    std::int64_t tensors = 0;  // that it returns in each captured TRAIN step; 0: it runs in evaluations only
    std::int64_t steps = 0;    // in which it ran
    bool varies = false;
    void VisitFields(Fields& io) {
      io("tensors", tensors);
      io("steps", steps);
      io("varies", varies);
    }
  };
  [[nodiscard]] std::int64_t TimesOf(const std::string& module) const;

  std::map<std::string, Calls> calls_;  // by name of the module
  std::int64_t steps_ = 0;              // captured TRAIN steps
  bool several_ = false;                // some of them had other than one call from outside
};

}  // namespace luff::rules

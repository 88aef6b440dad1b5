#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "luff/rules/rule.h"
#include "rules/facts/sample.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Finds a model that alone is evaluated, follows a trained one of the same shapes as
/// an average of its weights does, and has hardly moved when the training ends: it is what the training began
/// with.
class SlowAverage {
 public:
  /// What is told of it.
  struct Found {
    Anchor at;                     // the last TRAIN step
    std::string average, trained;  // names of the models
    double share = 0;              // of the way from its first evaluation to where the trained one is
    std::int64_t updates = 0;      // since that evaluation
  };
  static constexpr std::int64_t kUpdates = 100;
  static constexpr double kShare = 0.2;
  static constexpr std::int64_t kRarer =
      8;  // updates for each evaluation: targets are asked for at each update
  /// Cosine of the trained model's way at two looks: weights that wander around a minimum have none.
  static constexpr double kSteady = 0.7;

  /// Call at each step.
  void OnStep(const StepView& view);
  /// Call at the end of the run.
  [[nodiscard]] std::optional<Found> OnEnd(const query::Trial& trial) const;

  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kMaxModels = 32;
  struct Look {
    std::string trained;
    double share = 0, steady = 0;
    std::int64_t first = 0;  // updates before the first look
    void VisitFields(Fields& io);
  };
  Anchor last_;
  std::map<std::string, Look> looks_;  // by the model that may be an average; the newest
  std::set<std::uint32_t> evaluated_;  // numbers of modules that an evaluation called
  bool evaluating_ = false;
  std::int64_t evaluations_ = 0, updates_ = 0, first_evaluation_ = -1;  // the latter: updates before it
};

}  // namespace luff::rules

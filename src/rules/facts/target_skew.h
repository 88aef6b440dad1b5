#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/facts/features.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/whole_numbers.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Targets of regressions in training and in the newest evaluation, with the model's
/// outputs beside them.
class TargetSkew {
 public:
  /// What a kind of loss says.
  struct Unlike {
    std::string loss;
    double shift = 0;   // distance of the targets' means, in deviations of the training
    double spread = 1;  // ratio of their deviations
    std::int64_t rows = 0;
  };
  struct Limits {
    double shift, spread, share;
    std::int64_t rows;
  };

  void Add(const StepView& view, bool train);
  /// Losses whose targets are unlike, while the model's outputs do not follow them: those of an evaluation
  /// that turns outputs and targets back into units of its own would.
  [[nodiscard]] std::vector<Unlike> Compare(const Limits& limits) const;
  /// A loss whose targets are cut to integers on one side.
  struct CutTargets {
    std::string loss;
    WholeNumbers::Cut cut;
    bool in_training = false;
  };
  [[nodiscard]] std::vector<CutTargets> Cut() const;
  /// Call after an evaluation.
  void Next();
  void VisitFields(Fields& io);

 private:
  struct Kind {
    Features targets, outputs;  // of the training; outputs since the last evaluation
    Features evaluated_targets, evaluated_outputs;
    WholeNumbers whole, evaluated_whole;  // targets
    bool several = false;                 // calls in a step: which is which in evaluations?
    void VisitFields(Fields& io) {
      io("targets", targets);
      io("outputs", outputs);
      io("evaluated_targets", evaluated_targets);
      io("evaluated_outputs", evaluated_outputs);
      io("whole", whole);
      io("evaluated_whole", evaluated_whole);
      io("several", several);
    }
  };
  static std::optional<Unlike> UnlikeOf(const Kind& kind, const Limits& limits);

  LossReader reader_;
  std::map<std::string, Kind> kinds_;
};

}  // namespace luff::rules

#pragma once
#include <cstdint>
#include <optional>

#include "luff/rules/rule.h"
#include "rules/facts/evaluations.h"
#include "rules/facts/loss_tracker.h"
#include "rules/facts/passes.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Whether a training has ended while its loss fell along a straight line, with most
/// of it left: as fast at the end as at the start, after many passes over the data. A loss that nears what
/// can be reached falls ever more slowly, and so does one whose evaluations get no better.
class StraightFall {
 public:
  static constexpr std::int64_t kUpdates = 256;
  static constexpr double kPasses = 16;

  void OnStep(const StepView& view);

  struct Fall {
    double from = 0, to = 0;     // means of the first and the last quarter
    double first = 0, last = 0;  // fall from the first quarter to the second, and from the third to the last
    double passes = 0;
    std::int64_t updates = 0;
  };
  /// Call at the end of the run, with its losses.
  [[nodiscard]] std::optional<Fall> OnEnd(const LossTracker& losses);
  /// Of one loss alone.
  [[nodiscard]] static std::optional<Fall> Of(const LossSeries& series);

  void VisitFields(Fields& io);

 private:
  Passes passes_;
  Evaluations evaluations_;
  double first_rate_ = -1, last_rate_ = -1;  // the largest of a step
};

}  // namespace luff::rules

#pragma once
#include <algorithm>
#include <cmath>

#include "rules/facts/loss_tracker.h"
#include "rules/kit/fields.h"
#include "rules/kit/select.h"

namespace luff::rules {

/// **Thread-compatible.** Whether what was said of a rate that is far too low is over, for WeightUpdateRatio.
/// That weights begin to move says little: a warm-up that is stepped once per pass moves them by and by, and
/// the training ends where it began.
class RaisedRate {
 public:
  static constexpr double kTimes = 100;   // a warm-up that rises in earnest
  static constexpr double kErrors = 4.5;  // standard errors of a level: a difference of two, seen often
  static constexpr double kGained = 0.1;  // of the loss

  /// Call at each TRAIN step.
  void OnStep(const StepView& view) {
    double largest = -1;
    for (const auto& [entry, tensor] : view.index.scalars(format::Role::kOptimizerSetting))
      if (tensor.name.ends_with(".lr") && std::isfinite(entry.value))
        largest = std::max(largest, entry.value);
    if (largest >= 0) now_ = largest;
  }
  /// The finding was reported at this step.
  void Said() noexcept { then_ = now_; }
  /// A loss has gained something since its first values, or the rate is far above what it was. True where
  /// losses have no level: there are none, several, or one of both signs.
  [[nodiscard]] bool Mended(const LossTracker& losses) const {
    if (losses.series().size() != 1 || (then_ > 0 && now_ >= kTimes * then_)) return true;
    const LossSeries& loss = losses.series().front().second;
    if (loss.takes_both_signs()) return true;
    return loss.has_levels() &&
           loss.recent() < loss.start() - std::max(kErrors * loss.noise(), kGained * std::abs(loss.start()));
  }

  void VisitFields(Fields& io) {
    io("then", then_);
    io("now", now_);
  }

 private:
  double then_ = 0, now_ = 0;  // the largest rate
};

}  // namespace luff::rules

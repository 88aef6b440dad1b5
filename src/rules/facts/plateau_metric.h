#pragma once
#include <cstdint>
#include <string>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"
#include "rules/kit/select.h"

namespace luff::rules {

/// What a scheduler that waits for a metric (ReduceLROnPlateau) was given, beside what evaluations say. Of
/// the only scheduler of a run. Constant memory.
class PlateauMetric {
 public:
  static constexpr std::int64_t kEvaluations = 4;  // at least, before it says anything

  /// Call at each step that is not superseded.
  void OnStep(const StepView& view);

  enum class Against : std::uint8_t { kNothing, kLoss, kShare, kItself };
  /// Whether the metric goes the other way than what it measures: by `mode` ("min" or "max") each value but
  /// the first is worse than the first, and the losses of each of these evaluations are better than those of
  /// the first (kLoss). A metric that is to fall must be the share of right answers of the evaluation (or
  /// that in per cent): a loss or an error of other rows may rise beside losses that fall. One that is to
  /// rise must be the mean of the losses, or in proportion to it: an accuracy may fall beside a loss with
  /// weights. Where evaluations have no losses: the metric is the share of right answers, is to fall, and
  /// each value is above the first, while the training's losses are below its first (kShare); or the metric
  /// is the training's loss, the newest or its mean, and is to rise (kItself).
  [[nodiscard]] Against Judge(const std::string& mode) const;
  /// Each value is a whole number and one more than that before: a count of epochs, and no metric.
  [[nodiscard]] bool counts() const noexcept { return counts_ && count_ >= kEvaluations; }
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  [[nodiscard]] double first() const noexcept { return first_; }
  [[nodiscard]] double last() const noexcept { return last_; }
  void VisitFields(Fields& io);

 private:
  void Take(double metric);

  std::int64_t count_ = 0;
  double first_ = 0, last_ = 0;
  double newest_ = 0;                                               // loss of the training
  double loss_sum_ = 0, losses_ = 0, train_sum_ = 0, trained_ = 0;  // since the last metric
  double rows_ = 0, right_ = 0;  // that were answered since then, and how many of them rightly
  bool told_ = true;             // all calls since then tell
  double first_loss_ = 0, first_train_ = 0;
  bool counts_ = true;                        // each value is one more than that before
  bool above_ = true, below_ = true;          // each value was above, below the first
  bool better_ = true, train_better_ = true;  // so were the losses of evaluations, of the training
  bool itself_ = true;                        // each is a loss of the training
  bool shares_ = true;                        // each value is the share of right answers, or that in per cent
  bool silent_ = true;                        // no evaluation has a loss
  bool follows_ = true;                       // each value is in proportion to the mean of the losses
};

}  // namespace luff::rules

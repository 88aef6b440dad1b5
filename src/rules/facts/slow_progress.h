#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "rules/facts/passes.h"
#include "rules/kit/fields.h"
#include "rules/kit/select.h"

namespace luff::rules {

/// Two facts of WeightUpdateRatio about updates that are too small for the training that they are part of.
///
/// Creeping: the most by which all updates together can have lowered the loss, to first order, is the sum of
/// |gradient| |change| over the weights. After `passes` passes over the data it is below `gained` of the
/// loss, and no weight has moved by a hundredth of its size: Adam moves as far, however the loss is scaled.
///
/// Damped: the eps of an optimizer of Adam's kind is so far above its gradients that it divides by eps
/// and by nothing else, and the rate was not raised to make up for it.
class SlowProgress {
 public:
  struct Limits {
    std::int64_t passes = 3;
    double gained = 0.01, damped = 0.1;
  };

  explicit SlowProgress(const Limits& limits) : limits_(limits) {}
  /// `loss`: the newest, NaN if there is none or several. Returns true when something was reported at this
  /// step.
  bool OnStep(const StepView& view, double loss, Sink& sink);
  void VisitFields(Fields& io);

 private:
  void Add(const StepView& view, double loss);
  bool Creeping(const StepView& view, Sink& sink);
  bool Damped(const StepView& view, Sink& sink);

  const Limits limits_;
  Passes passes_;
  std::map<std::string, double> gradients_;   // norms when the weights were captured last, by weight
  std::map<std::string, double> rates_;       // the newest learning rates
  bool rising_ = false;                       // one of them rose since the last capture
  double gained_ = 0;                         // sum of shares of the loss
  double moved_ = 0;                          // sum of the largest changes, each beside its weight
  std::int64_t measured_ = 0;                 // captures with a share
  std::string lead_;                          // the weight that moved first
  std::map<std::string, double> largest_;     // root mean square of gradients, by optimizer
  std::map<std::string, std::int64_t> seen_;  // steps with gradients, by optimizer
  bool over_ = false, damped_over_ = false;
};

}  // namespace luff::rules

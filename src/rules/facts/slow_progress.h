#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "rules/facts/collected_rows.h"
#include "rules/facts/passes.h"
#include "rules/kit/fields.h"
#include "rules/kit/select.h"

namespace luff::rules {

class ModelFacts;
struct OptimizerFacts;

/// Three checks of WeightUpdateRatio for updates that are too small.
///
/// Creeping: to first order, all updates together can have lowered the loss by at most the sum of
/// |gradient| |change| over the weights. Reported if after `passes` passes over the data this sum is below
/// `gained` of the loss and no weight has moved by a hundredth of its size. The second condition is needed
/// because Adam's steps do not depend on the scale of the loss. Silent while the rate rises (RAdam's first
/// thousand updates are a warm-up that its rate does not show), and where a training collects its own rows,
/// as a policy does: a few passes over those of one round say nothing of the rest.
///
/// Damped: the eps of an Adam-like optimizer is so far above its gradients that it practically divides by eps
/// alone, and the learning rate was not raised to compensate.
///
/// Faint: the graph says that everything a backward pass starts from is scaled down to nearly nothing (event
/// "faint_loss"), and the optimizer does not make up for it: its eps is larger than the gradients, or it has
/// no eps and its rate times the factor is below 1e-5.
class SlowProgress {
 public:
  struct Limits {
    std::int64_t passes = 3;
    double gained = 0.01, damped = 0.1;
  };

  explicit SlowProgress(const Limits& limits) : limits_(limits) {}
  /// Call at each step of any mode, before OnStep.
  void SeeStep(const StepView& view) {
    if (!over_) collected_.OnStep(view);
  }
  /// `loss`: the newest, NaN if there is none or several. Returns true when something was reported at this
  /// step.
  bool OnStep(const StepView& view, double loss, Sink& sink);
  void VisitFields(Fields& io);

 private:
  void Add(const StepView& view, double loss);
  bool Creeping(const StepView& view, Sink& sink);
  bool MeasureGradients(const StepView& view, const ModelFacts& facts);
  bool JudgeGradients(const StepView& view, Sink& sink);
  double UsualGradient(const OptimizerFacts& optimizer) const;
  double LargestGradient(const OptimizerFacts& optimizer) const;
  bool Damped(const StepView& view, const OptimizerFacts& optimizer, Sink& sink);
  bool Faint(const StepView& view, const OptimizerFacts& optimizer, double factor, Sink& sink);

  const Limits limits_;
  Passes passes_;
  CollectedRows collected_;
  std::map<std::string, double> gradients_;   // norms at the last capture of the weights, by weight
  std::map<std::string, double> rates_;       // the newest learning rates
  bool rising_ = false;                       // one of them ever rose, or was not above 0
  double gained_ = 0;                         // sum of shares of the loss
  double moved_ = 0;                          // sum of the largest relative changes of a weight
  std::int64_t measured_ = 0;                 // captures that gained_ counts
  std::string lead_;                          // the weight that moved first
  std::map<std::string, double> largest_;     // largest root mean square of all gradients, by optimizer
  std::map<std::string, double> squares_;     // sum of the mean squares
  std::map<std::string, std::int64_t> seen_;  // steps with gradients, by optimizer
  bool over_ = false, damped_over_ = false;
};

}  // namespace luff::rules

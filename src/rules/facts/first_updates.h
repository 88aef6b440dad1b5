#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "rules/facts/first_leap.h"
#include "rules/kit/fields.h"
#include "rules/kit/select.h"

namespace luff::rules {

/// Judges the speed of learning by the first updates, for WeightUpdateRatio.
///
/// Thrown: one of them moved all weights together by more than `thrown` times their size, and two losses in a
/// row exceed `loss_factor` times the larger of the first two. Hopeless: in each of the first `first`
/// measured updates no weight moved by kStill of its size, and the sum of |gradient| |change|, which to first
/// order bounds what the update can have taken from the loss, was below `progress` of the loss. The learning
/// rate is constant and there is no scheduler.
class FirstUpdates {
 public:
  static constexpr double kStill = 1e-5;      // of a weight's norm per update
  static constexpr std::int64_t kEarly = 32;  // updates that are judged
  static constexpr double kLeft = 0.01;       // of a loss: nothing is left to learn

  struct Limits : FirstLeap::Limits {
    double thrown = 1;
    double loss_factor = 5;
    double progress = 1e-5;
    std::int64_t first = 6;
  };

  explicit FirstUpdates(const Limits& limits) : limits_(limits), leap_(limits) {}
  void OnStep(const StepView& view);
  /// `lasting`: the part of `move` of weights that did not begin at zero.
  /// `loss`: the newest, NaN if there is none or several. `open_small` receives the tensor of the finding
  /// "small". Returns true if that finding was reported at this step.
  bool Judge(const StepView& view, const WeightMove& move, const WeightMove& lasting, double loss,
             std::string* open_small, Sink& sink);
  [[nodiscard]] bool said() const noexcept { return said_; }
  [[nodiscard]] bool said_small() const noexcept { return said_small_; }
  /// Returns, once, the tensor of the finding "leaps" when the loss, as a mean of some, is next to nothing
  /// beside that of the model as it was drawn: the training did not stay behind. Empty otherwise.
  [[nodiscard]] std::string Recovered(double level);

  void VisitFields(Fields& io);

 private:
  void Thrown(const StepView& view, const WeightMove& move, double loss, Sink& sink);
  void Leaps(const StepView& view, const WeightMove& move, double loss, Sink& sink);
  bool Hopeless(const StepView& view, double loss, std::string* open_small, Sink& sink);

  void Report(Finding finding, Sink& sink) const;  // with the learning rates

  const Limits limits_;
  std::int64_t losses_ = 0;
  double reference_ = 0;   // the larger of the first two losses
  std::int64_t high_ = 0;  // losses in a row far above it
  double moved_ = 0;       // the largest move of all weights together, relative to their size
  std::string tensor_;
  std::uint32_t worker_ = 0;
  std::map<std::string, double> rates_;  // first value of each learning rate
  bool constant_ = true;
  std::int64_t rows_ = 0;      // measured updates
  std::int64_t hopeless_ = 0;  // measured updates that were hopeless
  double best_ = 0;            // largest share of the loss that one update could have removed
  bool over_ = false, said_ = false, said_small_ = false;
  std::map<std::string, double> gradients_;  // norms at the last step, by weight
  FirstLeap leap_;
  std::string leapt_;  // tensor of the finding "leaps" while it stands
};

}  // namespace luff::rules

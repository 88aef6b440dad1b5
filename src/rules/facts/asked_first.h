#pragma once
#include <cstdint>
#include <utility>

#include "rules/kit/fields.h"

namespace luff::rules {

/// Whether a model is asked before most TRAIN steps, by passes without gradients that measure nothing. It may
/// make the targets, as a target network does: a value that is learnt from its own estimate. Such targets
/// depend on more than the inputs, and their errors grow with the values that are learnt.
class AskedFirst {
 public:
  void OnTrainStep() noexcept {
    ++steps_;
    with_ += std::exchange(asked_, false) ? 1 : 0;
  }
  /// A pass of another mode; `measures`: it has a loss.
  void OnPass(bool measures) noexcept { asked_ = asked_ || !measures; }
  [[nodiscard]] bool mostly() const noexcept { return 2 * with_ > steps_; }

  void VisitFields(Fields& io) {
    io("steps", steps_);
    io("with", with_);
    io("asked", asked_);
  }

 private:
  std::int64_t steps_ = 0, with_ = 0;
  bool asked_ = false;
};

}  // namespace luff::rules

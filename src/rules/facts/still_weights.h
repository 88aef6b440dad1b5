#pragma once
#include <cstdint>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Follows a training whose weights are the same at all of its steps, as far as their
/// sums tell, and whose optimizers never step. Weights that are updated by hand, or by another process, move.
class StillWeights {
 public:
  /// Call at each TRAIN step.
  void OnTrainStep(const StepView& view);
  /// A weight has changed, or an optimizer has stepped or skipped a step. Once true, for good.
  [[nodiscard]] bool moved() const noexcept { return moved_; }
  /// Steps with a backward pass so far, of a model in training mode, that reach its parameters and nothing
  /// else; 0 once anything has moved, and where it is unknown.
  [[nodiscard]] std::int64_t backwards() const noexcept;

  void VisitFields(Fields& io);

 private:
  static constexpr std::uint64_t kTraining = 1U << 8, kTold = 1U << 12;  // of a forward event's argument
  static constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15, kSumBits = (1ULL << 52) - 1;

  bool moved_ = false;
  bool trains_ = false;                    // a model was called in training mode
  bool inputs_ = false;                    // something else than parameters gets gradients
  std::int64_t reached_ = 0;               // parameters, by a backward pass
  std::int64_t backwards_ = 0;             // steps
  std::int64_t first_ = -1, newest_ = -1;  // steps at which all weights were seen
  std::int64_t weights_ = 0;               // that were seen at the first
  std::uint64_t sums_ = 0;                 // hash of their sums
};

}  // namespace luff::rules

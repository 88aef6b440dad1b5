#pragma once
#include <cstdint>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"
#include "rules/kit/step_index.h"

namespace luff::rules {

/// Divides a run into phases by its optimizers. An optimizer that was never seen before begins a new phase
/// (another model or data set, fine-tuning after pre-training), to which earlier levels of a loss do not
/// apply.
class Phases {
 public:
  /// Adds a TRAIN step. Returns true if a new phase begins with it.
  bool OnStep(const StepView& view) noexcept {
    bool fresh = false;
    for (const query::EventAt& event : view.index.events(format::EventKind::kOptimizerStep)) {
      if (event.row.subject >= kMax) continue;
      const std::uint64_t bit = std::uint64_t{1} << event.row.subject;
      if ((seen_ & bit) == 0) {
        fresh = fresh || seen_ != 0;
        playing_ = 0;
      }
      seen_ |= bit;
      playing_ |= bit;
    }
    return fresh;
  }
  /// Several optimizers have stepped in this phase. The losses of adversaries have no level to keep.
  [[nodiscard]] bool several() const noexcept { return (playing_ & (playing_ - 1)) != 0; }
  void VisitFields(Fields& io) {
    io("seen", seen_);
    io("playing", playing_);
  }

 private:
  static constexpr std::uint32_t kMax = 52;
  std::uint64_t seen_ = 0, playing_ = 0;  // one bit for each optimizer number
};

}  // namespace luff::rules

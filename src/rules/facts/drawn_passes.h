#pragma once
#include <cstdint>
#include <optional>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Finds out whether before each update, but the first two, all batches of a loader
/// were drawn, and models were called with no more than one of them: what trains stands behind the loop over
/// batches.
///
/// The loader was started once for the update, and came to its end: it was asked once more than it has
/// batches. What is drawn after a step, of whatever mode, is told in that step. Whoever puts the batches of a
/// pass together has more rows, and whoever goes through the data for something else goes on with a loop that
/// trains.
class DrawnPasses {
 public:
  struct Found {
    bool over = false;                 // what was found before is no longer so; else it is found now
    std::int64_t used = 0, drawn = 0;  // updates, each with one batch, and all batches of their passes
    std::int64_t batches = 0;          // of the newest pass
    void Describe(Finding* finding) const;
  };
  static constexpr std::int64_t kUpdates = 4;  // in a row, from the third one on
  static constexpr std::int64_t kFew = 3;      // a pass that says something has more batches

  /// Call at each TRAIN step. Returns what is certain since this one, once.
  [[nodiscard]] std::optional<Found> OnTrainStep(const StepView& view);
  /// Call at each step, of whatever mode, after OnTrainStep.
  void StepEnds(const StepView& view);

  void VisitFields(Fields& io);

 private:
  // What was drawn of the loader whose batches a step waited for last and most.
  struct Draws {
    std::int64_t loader = -1, waits = 0, others = 0, started = 0;
    void VisitFields(Fields& io);
  };
  // How many batches a pass of a loader has that was drawn whole since the step before, of which no more than
  // one reached a model; 0 if there is none. `rows`: the model's inputs must tell how many rows it got.
  [[nodiscard]] std::int64_t PassDrawn(const StepView& view, bool rows) const;

  std::int64_t used_ = 0, drawn_ = 0;
  std::int64_t updates_ = 0;
  Draws before_;  // since the step before this one
  bool trained_ = false, open_ = false;
};

}  // namespace luff::rules

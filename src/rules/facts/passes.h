#pragma once
#include <cstdint>
#include <unordered_set>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Counts how often the training has gone through its data: marks rows of the model's
/// inputs in the first steps, and counts how often they come again. Constant memory.
class Passes {
 public:
  static constexpr std::size_t kMarks = 1024;

  /// Call at each TRAIN step.
  void OnTrainStep(const StepView& view);
  /// Passes begun: 0 before any row is marked, 1 until a marked row comes again.
  [[nodiscard]] double count() const noexcept;
  /// Some marked rows have come again, not only one or two: the data is finite.
  [[nodiscard]] bool begun_again() const noexcept { return hits_ >= 8; }
  /// Rows came again while many were still new: the data is drawn at random from a small population, and
  /// there are no passes over a data set. True, too, while too few samples of a later phase say so.
  [[nodiscard]] bool drawn_at_random() const noexcept;
  /// All there is are fewer rows than these: as many as were marked came again while rows were marked.
  [[nodiscard]] bool of_fewer_rows_than(std::size_t rows) const noexcept {
    return marks_.size() < rows && early_ >= static_cast<std::int64_t>(marks_.size());
  }
  /// Begins anew with the step: another phase has other data.
  void Restart(std::int64_t step) noexcept {
    *this = {};
    first_step_ = step;
  }

  void VisitFields(Fields& io);

 private:
  std::unordered_set<std::uint64_t> marks_;
  std::int64_t first_step_ = 0, last_step_ = -1, samples_ = 0;  // `samples_`: whose rows were marked
  double hits_ = 0;  // marked rows that came again, times the steps since the previous sample
  std::int64_t early_ = 0,
               early_new_ = 0;  // while marking: rows that came again, and new rows after the first of them
};

}  // namespace luff::rules

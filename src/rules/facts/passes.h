#pragma once
#include <cstdint>
#include <unordered_set>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** How often the training has gone through its data: rows of the model's input in the
/// first steps are marked, and counted when they come again. Constant memory.
class Passes {
 public:
  static constexpr std::size_t kMarks = 1024;

  /// To be told of each TRAIN step.
  void OnTrainStep(const StepView& view);
  /// Passes begun: 1 while no marked row has come again.
  [[nodiscard]] double count() const noexcept;
  /// Rows came again while most were new: drawn from a small world, not passes over a set of data.
  [[nodiscard]] bool drawn_at_random() const noexcept;

  void VisitFields(Fields& io);

 private:
  std::unordered_set<std::uint64_t> marks_;
  std::int64_t last_step_ = -1;
  double hits_ = 0;  // each stands for the steps since the last sample
  std::int64_t early_ = 0,
               early_new_ = 0;  // rows that came again while rows were marked; new ones since the first
};

}  // namespace luff::rules

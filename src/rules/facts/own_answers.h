#pragma once
#include <cstddef>
#include <cstdint>
#include <map>

#include "rules/facts/labelled_rows.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Targets that are the model's own answers, for LabelNoise. From the first step on
/// each target of a classification is the class that the model gives the highest score, though its loss says
/// that it knows next to nothing: a model that had learnt these rows would be sure of them. Episodes of a few
/// classes, whose rows may lie near their own class before anything is learnt, ask equally many of each in
/// each step; a model's answers are never so even.
class OwnAnswers {
 public:
  static constexpr double kRows = 256;
  static constexpr std::int64_t kSteps = 8;
  static constexpr std::int64_t kBegins =
      8;                                  // the first is one of so many: a formula is known from a few calls
  static constexpr double kOthers = 3;    // rows that are not of the most frequent class
  static constexpr double kUnsure = 0.5;  // of the loss of even probabilities
  static constexpr std::size_t kMost = 64;  // classes that are counted

  /// Adds a TRAIN step. Returns whether its targets are the model's answers, once; then `finding` says so.
  [[nodiscard]] bool OnTrainStep(const StepView& view, LossReader* reader, std::size_t max_classes,
                                 Finding* finding);
  void VisitFields(Fields& io) {
    io("over", over_);
    io("steps", steps_);
    io("rows", rows_);
    io("even", even_);
    io("counts", counts_, kMost);
  }

 private:
  /// `loss`: the mean of the rows.
  [[nodiscard]] bool Add(std::int64_t step, const LabelledRows& rows, double loss);

  bool over_ = false;
  std::int64_t steps_ = 0;
  double rows_ = 0;
  bool even_ = true;  // each step has had equally many rows of each of its classes, of two at least
  std::map<std::int64_t, double> counts_;  // rows by class
};

}  // namespace luff::rules

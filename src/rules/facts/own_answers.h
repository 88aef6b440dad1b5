#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>

#include "rules/facts/labelled_rows.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Targets that are the model's own answers, for LabelNoise. From the first step on
/// each target of a classification is the class that the model gives the highest score, though its loss says
/// that it knows next to nothing: a model that had learnt these rows would be sure of them.
class OwnAnswers {
 public:
  static constexpr double kRows = 256;
  static constexpr std::int64_t kSteps = 8;
  static constexpr std::int64_t kBegins =
      8;                                  // the first is one of so many: a formula is known from a few calls
  static constexpr double kOthers = 3;    // rows that are not of the most frequent class
  static constexpr double kUnsure = 0.5;  // of the loss of even probabilities
  static constexpr std::size_t kMost = 64;  // classes that are counted

  /// Adds the rows of the only loss of a TRAIN step. `loss`: its value. Returns whether they are, once.
  [[nodiscard]] bool Add(std::int64_t step, const LabelledRows& rows, double loss) {
    if (over_) return false;
    // A loss that falls afterwards is what own answers make of it.
    const bool unsure = loss >= kUnsure * std::log(static_cast<double>(rows.classes));
    const bool begins = steps_ > 0 || (step <= kBegins && rows.classes > 1 && unsure);
    over_ = !begins || rows.labels.empty() || rows.labels != rows.predictions;
    if (over_) return false;
    ++steps_;
    for (const std::int64_t label : rows.labels) {
      rows_ += 1;
      if (counts_.size() < kMost || counts_.contains(label)) counts_[label] += 1;
    }
    double most = 0;
    for (const auto& [label, count] : counts_) most = std::max(most, count);
    if (rows_ < kRows || steps_ < kSteps || rows_ - most < kOthers) return false;
    over_ = true;
    return true;
  }
  [[nodiscard]] double rows() const noexcept { return rows_; }
  void VisitFields(Fields& io) {
    io("over", over_);
    io("steps", steps_);
    io("rows", rows_);
    io("counts", counts_, kMost);
  }

 private:
  bool over_ = false;
  std::int64_t steps_ = 0;
  double rows_ = 0;
  std::map<std::int64_t, double> counts_;  // rows by class
};

}  // namespace luff::rules

#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules::target_range {

/// What is wrong with labels, in the words of a finding.
struct LabelFault {
  const char* cause = "";
  bool stop = false;
  std::string what, why, remedy, threshold;
  std::vector<std::string> causes;
  double share = 0;  // of the labels, or rows
};

/// **Thread-compatible.** Labels of one loss that takes a class a row: those that Keras makes whole numbers
/// of, and rows with several.
class ClassLabels {
 public:
  struct Limits {
    std::int64_t calls, rows;
    double share;
  };

  /// Adds a call of the training. `keras`: it is a loss of Keras; `softmax`: a softmax makes what it judges.
  std::optional<LabelFault> Add(const LossCall& call, bool keras, bool softmax, const Limits& limits) {
    if (keras && NamesClasses(call)) {
      if (std::optional<LabelFault> fault = OfNumbers(call, limits)) return fault;
    }
    return softmax ? OfRows(call, limits) : std::nullopt;
  }

  void VisitFields(Fields& io) {
    io("cut", cut_);
    io("rows", rows_);
    io("several", several_);
  }

 private:
  static constexpr double kFraction = 1e-3, kCutShare = 0.2;  // of a label, of the labels
  static constexpr std::int64_t kMostLabels =
      64;  // more are items, of which the likelihood of several is meant

  // Whether the loss takes one number for each row of scores.
  static bool NamesClasses(const LossCall& call) {
    const std::vector<std::int64_t>& shape = call.output.whole_shape;
    if ((call.kind != "SparseCategoricalCrossentropy" && call.kind != "CrossEntropyLoss") ||
        shape.size() < 2 || shape.back() < 2)
      return false;
    return ElementsOf(call.target.whole_shape) * static_cast<std::size_t>(shape.back()) == ElementsOf(shape);
  }

  std::optional<LabelFault> OfNumbers(const LossCall& call, const Limits& limits) {
    std::int64_t cut = 0;
    std::set<double> become;  // two at most, and of those
    double low = HUGE_VAL;
    double high = -HUGE_VAL;
    for (const double y : call.target.values) {
      if (!std::isfinite(y)) return std::nullopt;
      cut += std::abs(y - std::round(y)) > kFraction ? 1 : 0;
      if (become.size() < 2) become.insert(std::trunc(y));
      low = std::min(low, y);
      high = std::max(high, y);
    }
    const double count = static_cast<double>(std::max<std::size_t>(call.target.values.size(), 1));
    const double share = static_cast<double>(cut) / count;
    cut_ = share >= kCutShare ? cut_ + 1 : 0;
    if (cut_ < limits.calls) return std::nullopt;
    return Cut(call.kind, share, low, high, become, limits);
  }

  static LabelFault Cut(const std::string& kind, double share, double low, double high,
                        const std::set<double>& become, const Limits& limits) {
    return LabelFault{
        .cause = "cut_labels",
        .stop = true,
        .what = fmt::format("{:.0f} % of the labels of {} are no whole numbers ({:g} to {:g})", 100 * share,
                            kind, low, high),
        .why =
            become.size() == 1
                ? fmt::format("Keras cuts off what is behind the point: all of these rows become class {:g}",
                              *become.begin())
                : std::string("Keras cuts off what is behind the point, and takes what is left for a class"),
        .remedy =
            "give the numbers of classes, 0, 1, 2, as they are: only inputs are scaled; where numbers are "
            "to be met, end the model with one unit and take a squared error",
        .threshold =
            fmt::format("{:g} % of the labels, {} calls in a row (Luff)", 100 * kCutShare, limits.calls),
        .causes = {"labels that were divided by 255, or standardised, with the inputs",
                   "numbers of a regression as labels"},
        .share = share};
  }

  std::optional<LabelFault> OfRows(const LossCall& call, const Limits& limits) {
    const std::vector<std::int64_t>& shape = call.output.shape;
    // As many columns as rows: pairs of a batch.
    if (shape.size() != 2 || shape[1] < 3 || shape[1] > kMostLabels || shape[0] == shape[1])
      return std::nullopt;
    const auto width = static_cast<std::size_t>(shape[1]);
    const std::vector<double>& targets = call.target.values;
    if (targets.size() * width == call.output.values.size()) {
      rows_ += static_cast<std::int64_t>(targets.size());  // one class each
      return std::nullopt;
    }
    if (targets.size() != call.output.values.size()) return std::nullopt;
    for (std::size_t at = 0; at + width <= targets.size(); at += width) {
      double ones = 0;
      for (std::size_t c = 0; c < width; ++c) {
        if (targets[at + c] != 0 && targets[at + c] != 1) return std::nullopt;
        ones += targets[at + c];
      }
      ++rows_;
      several_ += ones > 1 ? 1 : 0;
    }
    const double share =
        static_cast<double>(several_) / static_cast<double>(std::max<std::int64_t>(rows_, 1));
    if (rows_ < limits.rows || share < limits.share) return std::nullopt;
    return LabelFault{
        .cause = "several_labels",
        .what =
            fmt::format("{:.0f} % of the rows of targets of {} hold several ones", 100 * share, call.kind),
        .why =
            "a softmax divides 1 among the classes of a row: of several right ones each can have a part "
            "only, "
            "and such a row, which does not sum to 1, is out of its reach",
        .remedy =
            "where a row has several labels, end the model with a sigmoid of each and take a binary cross "
            "entropy",
        .threshold = fmt::format("{:g} % of {} rows (Luff)", 100 * limits.share, limits.rows),
        .causes = {"a softmax in the place of sigmoids, of a task with several labels a row"},
        .share = share};
  }

  std::int64_t cut_ = 0;                 // calls in a row
  std::int64_t rows_ = 0, several_ = 0;  // rows that a softmax answers; of them those with several ones
};

}  // namespace luff::rules::target_range

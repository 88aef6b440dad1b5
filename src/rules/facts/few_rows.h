#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <unordered_set>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Whether a training has few rows, which it is given again and again, while
/// evaluations have many others. Rows that are labelled one after the other, as in active learning, are few
/// on purpose: many of them come when the others have been seen several times. So are those of one batch,
/// which each update gets: whoever looks whether a model can learn them expects no more of it.
class FewRows {
 public:
  static constexpr std::size_t kMost = 128;   // rows of the training
  static constexpr std::size_t kLeast = 17;   // a handful is a trial of the model
  static constexpr std::size_t kMore = 4;     // times as many are evaluated
  static constexpr std::int64_t kTimes = 16;  // that each of them was seen, in the mean
  static constexpr std::int64_t kLate = 5;    // times: whatever is drawn at random has come by then
  static constexpr std::size_t kGrown = 8;    // one row in so many came later: there are more by and by

  /// Call at each step.
  void OnStep(const StepView& view);
  [[nodiscard]] bool are_few() const noexcept {
    return !many_ && several_ && trained_.size() >= kLeast && times() >= static_cast<double>(kTimes) &&
           evaluated() >= kMore * trained_.size() && kGrown * late_ < trained_.size();
  }
  [[nodiscard]] std::size_t trained() const noexcept { return trained_.size(); }
  [[nodiscard]] std::size_t evaluated() const noexcept {
    return std::max(evaluated_.size(), static_cast<std::size_t>(batch_));
  }
  [[nodiscard]] double times() const noexcept {
    return trained_.empty() ? 0 : static_cast<double>(seen_) / static_cast<double>(trained_.size());
  }

  /// The mean of the losses of the newest steps as a share of that of the first; 1 if it is not known.
  [[nodiscard]] double loss_left() const noexcept;

  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kSteps = 16;

  std::unordered_set<std::uint64_t> trained_, evaluated_;  // the latter without the former
  std::size_t late_ = 0;                                   // rows of the training that came late
  bool several_ = false;                                   // batches: the first had not all of the rows
  std::int64_t seen_ = 0;                                  // rows of the training, each time
  std::int64_t batch_ = 0;                                 // most rows of an evaluation's batch, none known
  bool many_ = false;                                      // or not all are known
  std::deque<double> losses_;                              // sums, of the newest steps
  double first_ = 0, steps_ = 0;                           // of the first ones
};

}  // namespace luff::rules

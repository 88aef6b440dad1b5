#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "rules/facts/model_facts.h"
#include "rules/kit/fields.h"
#include "rules/kit/select.h"

namespace luff::rules {

/// **Thread-compatible.** First updates that replace the weights of layers, for WeightUpdateRatio: between
/// two captures all weights that moved, of two layers at least, moved by many times their own size together,
/// and by kUnit or more in root mean square. Layers that are drawn next to zero, such as hashed tables, move
/// by many times their size at any rate, but not that far.
class FirstReplacement {
 public:
  static constexpr std::int64_t kFirst = 8;  // updates that are looked at
  static constexpr double kUnit = 0.5;  // a unit of a few such weights leaves what activations are made for

  struct Found {
    query::TensorId tensor = format::kNoId;
    std::uint32_t worker = 0;
    double ratio = 0, moved = 0;
    std::int64_t layers = 0, update = -1;
    void VisitFields(Fields& io) {
      io("tensor", tensor);
      io("worker", worker);
      io("ratio", ratio);
      io("moved", moved);
      io("layers", layers);
      io("update", update);
    }
  };

  /// Adds the change of one weight that did not begin at zero.
  void Add(const WeightChange& change) {
    if (over_ || found_.update >= 0 || IsBiasName(change.name) || !(change.sum_sq > 0) ||
        !(change.previous_sum_sq > 0) || !(change.changed > 0) || !std::isfinite(change.sum_sq))
      return;
    if (layers_ == 0) {
      tensor_ = change.tensor;
      worker_ = change.worker;
    }
    if (change.worker != worker_) return;
    ++layers_;
    least_sq_ = std::min(least_sq_, change.sum_sq / change.previous_sum_sq);
    moved_sq_ += change.sum_sq;
    before_sq_ += change.previous_sum_sq;
    count_ += change.changed;
  }
  /// Adds a loss of a TRAIN step.
  void TakeLoss(std::int64_t update, double loss) {
    if (over_) return;
    if (update <= 0) first_ = std::max(first_, std::abs(loss));
    recent_.push_back(std::isfinite(loss) ? std::abs(loss) : HUGE_VAL);
    if (recent_.size() > kRecent) recent_.pop_front();
  }
  /// The newest losses are all below half of the largest before the first update.
  [[nodiscard]] bool Learns() const {
    return !recent_.empty() && *std::max_element(recent_.begin(), recent_.end()) < 0.5 * first_;
  }
  /// Call at each TRAIN step, after the changes. Returns, once, what was found `settle` updates before.
  [[nodiscard]] std::optional<Found> OnStep(const query::StepInfo& info, double ratio, std::int64_t settle) {
    if (over_) return std::nullopt;
    if (found_.update < 0 && layers_ >= 2 && info.update <= kFirst) {
      const double by = std::sqrt(moved_sq_ / before_sq_);
      const double moved = std::sqrt(moved_sq_ / count_);
      if (std::isfinite(by) && by > ratio && least_sq_ > 1 && moved >= kUnit)
        found_ = {tensor_, worker_, by, moved, layers_, info.update};
    }
    layers_ = 0;
    moved_sq_ = before_sq_ = count_ = 0;
    least_sq_ = HUGE_VAL;
    if (found_.update < 0) {
      over_ = info.update > kFirst;
      return std::nullopt;
    }
    if (info.update - found_.update < settle) return std::nullopt;
    over_ = true;
    return found_;
  }
  void VisitFields(Fields& io) {
    io("found", found_);
    io("over", over_);
    io("first", first_);
    io("recent", recent_, kRecent);
  }

 private:
  static constexpr std::size_t kRecent = 8;

  Found found_;
  bool over_ = false;
  double first_ = 0;  // the largest loss of the model as it was drawn
  std::deque<double> recent_;
  // Of the changes since the last step.
  query::TensorId tensor_ = format::kNoId;
  std::uint32_t worker_ = 0;
  std::int64_t layers_ = 0;
  double moved_sq_ = 0, before_sq_ = 0, count_ = 0;
  double least_sq_ = HUGE_VAL;  // the smallest (|change| / |weight|)^2
};

}  // namespace luff::rules

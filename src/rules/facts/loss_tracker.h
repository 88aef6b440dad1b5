#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"
#include "rules/kit/step_index.h"

namespace luff::rules {

/// One loss over time in constant memory: its first and last values, the means of equal blocks over the whole
/// run (their length doubles when there are kMaxBlocks of them), and the best level so far. Non-finite values
/// are only counted.
class LossSeries {
 public:
  static constexpr std::size_t kWindow =
      16;  // values per level: the error of their mean is a quarter of the noise
  static constexpr std::size_t kMaxBlocks = 128;

  void Add(std::int64_t step, double value);

  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  [[nodiscard]] std::int64_t nonfinite() const noexcept { return nonfinite_; }
  [[nodiscard]] std::int64_t last_step() const noexcept { return last_step_; }
  [[nodiscard]] bool has_levels() const noexcept { return count_ >= 2 * static_cast<std::int64_t>(kWindow); }
  /// Mean of the first, the last and the best kWindow values.
  [[nodiscard]] double start() const noexcept;
  [[nodiscard]] double recent() const noexcept;
  [[nodiscard]] double best() const noexcept { return best_; }
  [[nodiscard]] std::int64_t best_step() const noexcept { return best_step_; }
  /// Standard error of a level, computed from differences of neighbouring values, so that a trend does not
  /// count as noise.
  [[nodiscard]] double noise() const noexcept;
  [[nodiscard]] bool takes_both_signs() const noexcept {
    return negative_ > count_ / 50 && positive_ > count_ / 50;
  }

  /// The best level lies below the start by more than chance: by three standard errors and by `share` of the
  /// start.
  [[nodiscard]] bool Improved(double share = 0.01) const noexcept;

  /// The same, measured from settled(): what the output layer learns in its first steps does not count as
  /// progress.
  [[nodiscard]] bool ImprovedSinceSettled(double share) const noexcept;
  /// Mean of the second kWindow values.
  [[nodiscard]] double settled() const noexcept;

  struct Trend {
    double z = 0;      // Mann-Kendall; below -1.64: falls, at the 5 % level
    double slope = 0;  // Theil-Sen, per step
    std::size_t blocks = 0;
  };
  /// Trend of the block means from `since` on. Source: Mann 1945, Kendall 1975, Sen 1968; ties corrected.
  [[nodiscard]] Trend TrendSince(std::int64_t since) const;
  /// Block means for a plot: (first step of the block, mean), at most 64.
  [[nodiscard]] std::vector<std::pair<std::int64_t, double>> Picture() const;

  void VisitFields(Fields& io);

 private:
  struct Block {
    std::int64_t first_step = 0;
    std::int64_t values = 0;
    double sum = 0;
    void VisitFields(Fields& io) {
      io("first_step", first_step);
      io("values", values);
      io("sum", sum);
    }
  };
  std::int64_t count_ = 0, nonfinite_ = 0, positive_ = 0, negative_ = 0, last_step_ = -1;
  std::vector<double> head_, second_;  // the first and the second kWindow values
  std::deque<double> tail_;
  double best_ = 0;
  std::int64_t best_step_ = -1;
  double difference_sq_ = 0, last_value_ = 0;
  std::int64_t differences_ = 0;
  std::int64_t block_values_ = 1;
  std::vector<Block> blocks_;
};

/// All losses of a run, in TRAIN steps. Of several workers in a step only the first is used.
class LossTracker {
 public:
  static constexpr std::size_t kMaxLosses = 32;

  /// Adds the losses of a step; ignores modes other than TRAIN.
  void OnStep(const StepView& view);
  [[nodiscard]] const std::vector<std::pair<std::string, LossSeries>>& series() const noexcept {
    return series_;
  }
  /// Whether any loss has improved.
  [[nodiscard]] bool AnyImproved(double share = 0.01) const noexcept;
  [[nodiscard]] bool AnyImprovedSinceSettled(double share) const noexcept;
  /// Enough values to say that no loss has improved: every loss has at least `values` values.
  [[nodiscard]] bool EnoughEvidence(std::int64_t values) const noexcept;
  void VisitFields(Fields& io);

 private:
  LossSeries* SeriesOf(const std::string& name);  // null beyond kMaxLosses
  std::vector<std::pair<std::string, LossSeries>> series_;
};

}  // namespace luff::rules

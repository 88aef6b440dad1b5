#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "luff/rules/finding.h"
#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// How much noise each row of a denoiser's input holds, and whether another argument of the model tells it.
/// Constant memory.
///
/// The slope of a row's inputs over its targets, which are the noise, is the factor of the noise in this row:
/// data that are independent of the noise change its error and not its mean.
class NoiseLevel {
 public:
  static constexpr double kLeastRows = 512;
  static constexpr double kVaries =
      0.25;  // deviation of the levels by their mean; of times from 0 to 1: 0.58
  static constexpr std::size_t kLeastOfABatch = 8;
  static constexpr std::size_t kNumbersOfARow = 16;  // at least, for a slope
  static constexpr std::size_t kMaxColumns = 256;    // of all other arguments; of more nothing is said

  /// Adds a captured batch. `input` has the target's shape, each of `others` a row for each of the target's,
  /// or more.
  void Add(const SampleValues& input, const SampleValues& target,
           const std::vector<const SampleValues*>& others);
  /// Levels vary (by four standard errors more than kVaries), the model gets one number or more for each row
  /// beside its input, and none of these goes together with the level (four standard errors).
  [[nodiscard]] bool Hidden() const;
  [[nodiscard]] double rows() const noexcept { return rows_; }
  [[nodiscard]] double mean() const;    // of the levels
  [[nodiscard]] double spread() const;  // deviation of the levels in a batch, beyond the slopes' errors
  /// The largest correlation of a column of the other arguments with the level: of its numbers, or of how far
  /// these are from their mean (a bridge has most noise in the middle), or of the square of that.
  [[nodiscard]] double correlation() const;
  /// Says in a finding what Hidden() means, of a loss of this kind.
  void Tell(const std::string& loss, Finding* finding) const;
  void VisitFields(Fields& io);

 private:
  /// Sums over rows, of something and the level, both less their mean of the batch.
  struct Pair {
    double xx = 0, xy = 0;
    void Add(double x, double level) {
      xx += x * x;
      xy += x * level;
    }
    void VisitFields(Fields& io) {
      io("xx", xx);
      io("xy", xy);
    }
  };
  /// A column of the other arguments.
  struct Column {
    double all = 0;  // of the column's squares as they are
    Pair plain, distance, square;
    void VisitFields(Fields& io) {
      io("all", all);
      io("plain", plain);
      io("distance", distance);
      io("square", square);
    }
  };
  // Sums of slopes; of the squares of what they differ from their batch's mean, of those less the slopes'
  // squared errors, and of the squares of these.
  double rows_ = 0, levels_ = 0, squares_ = 0, beyond_ = 0, fourths_ = 0;
  std::vector<Column> columns_;
  bool unfit_ = false;  // arguments changed their number or shape
};

}  // namespace luff::rules

#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "server/histogram.h"

/// Numbers on a boosted model. Pure functions of recorded values.
namespace luff::server {

/// counts[truth][guess]. Classes are 0 .. size - 1; other rows are ignored.
using ConfusionMatrix = std::vector<std::vector<std::uint64_t>>;
[[nodiscard]] ConfusionMatrix Confusion(std::span<const double> truth, std::span<const double> guess,
                                        std::size_t classes);

struct ClassScores {
  double precision = 0, recall = 0, f1 = 0;
  std::uint64_t support = 0;
};
struct Scores {
  std::vector<ClassScores> classes;
  ClassScores micro, macro, weighted;
  double accuracy = 0;
};
/// Computes precision, recall and F1; division by zero gives 0. `macro` is the mean over the classes,
/// `weighted` the mean weighted by support, and `micro` counts all decisions together. Source: the usual
/// definitions, as in scikit-learn.
[[nodiscard]] Scores ScoresOf(const ConfusionMatrix& matrix);

struct Roc {
  std::vector<std::pair<double, double>> points;  // (false, true positive rate), from (0, 0) to (1, 1)
  double area = 0;                                // by the trapezoidal rule; tied scores form one point
};
/// Computes the curve with truth > 0.5 as positive; it has no points if there is only one class.
[[nodiscard]] Roc RocOf(std::span<const double> truth, std::span<const double> score);

/// Counts the finite values in equal bins over their range; one bin if they are all the same, none without
/// finite values.
[[nodiscard]] EqualBins CountInBins(std::span<const double> values, std::size_t bins);

/// Mean absolute error of the rows whose truth lies in each of `bins` equal intervals from `low` to `high`;
/// NaN for an interval without rows.
[[nodiscard]] std::vector<double> ErrorByBin(std::span<const double> truth, std::span<const double> guess,
                                             double low, double high, std::size_t bins);

}  // namespace luff::server

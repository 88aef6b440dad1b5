#include "rules/facts/dropped.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

namespace luff::rules {
namespace {

// Whether `count` of `of` draws that come true with probability `p` are as many as are to be expected.
bool AreDrawn(double count, double of, double p, bool at_most) {
  const double beyond = count - of * p, usual = 3 * std::sqrt(of * p * (1 - p)) + 1;
  return beyond <= usual && (at_most || beyond >= -usual);
}

}  // namespace

bool Dropped(const SampleValues& output, double p) {
  const std::size_t axes = output.shape.size();
  if (axes < 1 || axes > 2 || output.shape[0] < 8 || output.shape.back() < 1 || !(p > 0 && p < 1))
    return false;
  const auto columns = axes < 2 ? std::size_t{1} : static_cast<std::size_t>(output.shape[1]);
  const std::size_t rows = output.values.size() / columns;
  std::vector<std::size_t> zeros(columns, 0);
  double all = 0, whole_rows = 0;
  bool above = false, below = false;
  for (std::size_t row = 0; row < rows; ++row) {
    bool whole = true;
    for (std::size_t column = 0; column < columns; ++column) {
      const double value = output.values[row * columns + column];
      zeros[column] += value == 0 ? 1 : 0;
      all += value == 0 ? 1 : 0;
      whole = whole && value == 0;
      above = above || value > 0;
      below = below || value < 0;
    }
    whole_rows += whole ? 1 : 0;
  }
  const bool everywhere =
      std::all_of(zeros.begin(), zeros.end(), [&](std::size_t count) { return count < rows; });
  const auto all_rows = static_cast<double>(rows), width = static_cast<double>(columns);
  return above && below && everywhere && all > 0 && AreDrawn(all, all_rows * width, p, false) &&
         AreDrawn(whole_rows, all_rows, std::pow(p, width), true);
}

bool AreMasked(const SampleValues& output, const SampleValues& target) {
  const std::size_t count = output.values.size();
  if (target.values.size() != count) return false;
  std::array<double, 2> all{}, missing{};  // elsewhere, where predictions are 0
  double first = NAN;
  bool alike = true;
  for (std::size_t i = 0; i < count; ++i) {
    const double value = target.values[i];
    const std::size_t at = output.values[i] == 0 ? 1 : 0;
    ++all[at];
    missing[at] += value == 0 || !std::isfinite(value) ? 1 : 0;
    if (at == 0) continue;
    if (all[1] == 1) first = value;
    alike = alike && value == first;
  }
  if (all[1] < 1) return false;
  if ((alike && all[1] > 1) || missing[1] == all[1] || all[0] < 1) return true;
  const double share = (missing[0] + missing[1]) / (all[0] + all[1]);
  const double error = std::sqrt(share * (1 - share) * (1 / all[0] + 1 / all[1]));
  return missing[1] / all[1] - missing[0] / all[0] > 3 * error;
}

}  // namespace luff::rules

#include "rules/facts/own_targets.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "luff/tensor/hash.h"
#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr double kRounding = 2e-3;       // of the range of targets: of half precision, and of written losses
constexpr std::size_t kEnoughRises = 7;  // of rows in an order: by chance one in 20,000
constexpr std::size_t kFirstPairs = 8;
constexpr std::uint64_t kNameBits = (1ULL << 52) - 1;  // a double holds them

// One value of a sample and one of its target, for each row that counts.
using RowPairs = std::vector<std::pair<double, double>>;

// Whether each value goes with one target and each target with one value, and some come again. Numbers also
// come again where a row was drawn twice: most must.
bool AreNames(const RowPairs& pairs, bool classes) {
  std::map<double, double> forth;
  std::map<double, double> back;
  for (const auto& [value, target] : pairs)
    if (forth.try_emplace(value, target).first->second != target ||
        back.try_emplace(target, value).first->second != value)
      return false;
  const std::size_t few = classes ? pairs.size() - 1 : pairs.size() / 2;
  return forth.size() > 1 && forth.size() <= few;
}

double RangeOf(const RowPairs& pairs) {
  const auto [low, high] = std::minmax_element(
      pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return high->second - low->second;
}

// Whether values are the targets, up to rounding. Of one value and one target it tells only beside others.
bool AreEqual(const RowPairs& pairs, bool alone) {
  const double range = RangeOf(pairs);
  return (alone || (range > 0 && pairs.size() >= 2)) &&
         std::all_of(pairs.begin(), pairs.end(),
                     [&](auto one) { return std::abs(one.first - one.second) <= kRounding * range; });
}

// Whether targets rise with the values, or fall, from row to row: a unit, a logarithm. Of few rows, whether
// they lie on a line.
bool AreMeasures(RowPairs pairs) {
  const double near = kRounding * RangeOf(pairs);
  if (!(near > 0) || pairs.size() < 3) return false;
  std::sort(pairs.begin(), pairs.end());
  if (pairs.front().second > pairs.back().second)
    for (auto& pair : pairs) pair.second = -pair.second;
  const auto [first, low] = pairs.front();
  const double slope = (pairs.back().second - low) / std::max(pairs.back().first - first, 1e-300);
  bool on_line = true;
  double top = low;
  double stood = low;
  std::size_t rises = 0;
  for (std::size_t i = 1; i < pairs.size(); ++i) {
    const auto [value, target] = pairs[i];
    const bool same = value == pairs[i - 1].first;
    if (target < top - near || (same && std::abs(target - pairs[i - 1].second) > near)) return false;
    on_line = on_line && std::abs(low + slope * (value - first) - target) <= near;
    top = std::max(top, target);
    if (target <= stood + near) continue;
    stood = target;
    ++rises;
  }
  return rises >= kEnoughRises || on_line;
}

// The same of some rows, which settles it for nearly all columns.
bool MayTell(const RowPairs& few) {
  bool names = true;
  bool rises = true;
  bool falls = true;
  const double near = few.empty() ? 0 : kRounding * RangeOf(few);
  for (std::size_t i = 0; i < few.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const double value = few[i].first - few[j].first;
      const double target = few[i].second - few[j].second;
      names = names && (value == 0) == (target == 0);
      if (std::abs(target) <= near) continue;
      rises = rises && value * target > 0;
      falls = falls && value * target < 0;
    }
  return names || rises || falls;
}

}  // namespace

bool HoldsTargets(const SampleValues& sample, const RowExamples& examples) {
  // Orders of what is no number are none; such rows are not judged at all.
  if (!std::all_of(sample.values.begin(), sample.values.end(), [](double v) { return std::isfinite(v); }))
    return false;
  const std::size_t width = RowsOf(sample).width;
  const bool classes = examples.kind == RowExamples::Kind::kClasses;
  const auto pairs = [&](std::size_t most, std::size_t count, const auto& value) {
    RowPairs found;
    for (std::size_t i = 0; i < examples.rows && found.size() < most; ++i) {
      const double target = examples.targets[i * examples.count + count];
      if (!classes || target >= 0) found.emplace_back(value(i), target);
    }
    return found;
  };
  for (std::size_t c = 0; c < examples.count; ++c)
    for (std::size_t j = 0; j < width; ++j) {
      const auto value = [&](std::size_t i) { return sample.values[i * width + j]; };
      if (!MayTell(pairs(kFirstPairs, c, value))) continue;
      const RowPairs all = pairs(examples.rows, c, value);
      if (!all.empty() && (AreEqual(all, width == 1) || AreNames(all, examples.as_they_are) ||
                           (!examples.as_they_are && AreMeasures(all))))
        return true;
    }
  if (width < 2) return false;
  // As a whole: labels as zeros and a one.
  const std::vector<std::uint64_t> hashes = RowHashes(sample);
  RowPairs whole;
  for (std::size_t i = 0; i < examples.rows; ++i) {
    const double* targets = &examples.targets[i * examples.count];
    if (classes && *targets < 0) continue;
    const std::uint64_t wanted = HashBytes(targets, examples.count * sizeof(double)) & kNameBits;
    whole.emplace_back(static_cast<double>(hashes[i]), static_cast<double>(wanted));
  }
  return AreNames(whole, examples.as_they_are);
}

}  // namespace luff::rules

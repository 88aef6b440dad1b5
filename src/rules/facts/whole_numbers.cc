#include "rules/facts/whole_numbers.h"

#include <algorithm>
#include <cmath>

namespace luff::rules {
namespace {

constexpr double kMostWhole = 1e60;
constexpr double kFewestWhole = 128;  // values
constexpr double kRealWhole = 0.2;    // share of values that are no whole numbers
constexpr double kNegativeWhole = 0.01;
// Distances of distributions: at most, of what is cut off; at least, of what is rounded.
constexpr double kSameWhole = 0.1, kOtherWhole = 0.05, kTimesWhole = 3;
constexpr double kSharesWhole = 1.25;  // ratio of what is not 0

std::size_t WholeBinOf(double whole) { return static_cast<std::size_t>(std::clamp(whole, -3.0, 3.0) + 3); }

}  // namespace

void WholeNumbers::Add(const std::vector<double>& values) {
  for (const double value : values) {
    if (!(std::abs(value) < kMostWhole)) continue;
    count_ += 1;
    whole_ += value == std::trunc(value) ? 1 : 0;
    negative_ += value < 0 ? 1 : 0;
    above_one_ += value > 1 ? 1 : 0;
    cut_[WholeBinOf(std::trunc(value))] += 1;
    rounded_[WholeBinOf(std::round(value))] += 1;
  }
}

std::optional<WholeNumbers::Cut> WholeNumbers::Compare(const WholeNumbers& whole, const WholeNumbers& real) {
  if (!whole.all_whole() || whole.count_ < kFewestWhole || real.count_ < kFewestWhole) return std::nullopt;
  Cut cut;
  cut.real_share = 1 - real.whole_ / real.count_;
  if (cut.real_share < kRealWhole || (real.above_one_ > 0 && real.negative_ < kNegativeWhole * real.count_))
    return std::nullopt;
  constexpr std::size_t kZero = kBins / 2;
  cut.zeros = whole.cut_[kZero] / whole.count_;
  for (std::size_t i = 0; i < kBins; ++i) {
    const double share = whole.cut_[i] / whole.count_;
    cut.as_cut += 0.5 * std::abs(share - real.cut_[i] / real.count_);
    cut.as_rounded += 0.5 * std::abs(share - real.rounded_[i] / real.count_);
  }
  const double other = 1 - cut.zeros;
  const double other_if_cut = 1 - real.cut_[kZero] / real.count_;
  if (!(other > 0) || other > kSharesWhole * other_if_cut || other_if_cut > kSharesWhole * other)
    return std::nullopt;
  if (cut.as_cut > kSameWhole || cut.as_rounded < kOtherWhole || cut.as_rounded < kTimesWhole * cut.as_cut)
    return std::nullopt;
  return cut;
}

void WholeNumbers::VisitFields(Fields& io) {
  const auto bins = [&io](const char* name, Bins& of) {
    std::vector<double> values(of.begin(), of.end());
    io(name, values, kBins);
    if (!io.loading()) return;
    io.Check(values.size() == kBins, "a number for each bin");
    std::copy_n(values.begin(), std::min(values.size(), kBins), of.begin());
  };
  io("count", count_);
  io("whole", whole_);
  io("negative", negative_);
  io("above_one", above_one_);
  bins("cut", cut_);
  bins("rounded", rounded_);
}

}  // namespace luff::rules

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "server/histogram.h"

namespace luff::server::histogram_test {
namespace {

TEST(EqualBins, ShowValuesOfBothSigns) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(-1, 2);
  std::vector<float> values(20'000);
  for (float& value : values) value = normal(random);
  std::vector<std::uint64_t> dense(kHistogramBins);
  const std::int64_t dims[] = {static_cast<std::int64_t>(values.size())};
  AddHistogram(
      {reinterpret_cast<const std::byte*>(values.data()), Layout::Contiguous(DType::kFloat32, dims).value()},
      dense);
  const auto equal = InEqualBins(ToSparse(dense), 64);
  ASSERT_TRUE(equal.has_value());
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  EXPECT_LE(equal->low, *low);
  EXPECT_GE(equal->low, *low * 1.13);  // a bin is at most 12.5 % of its value wide
  EXPECT_GE(equal->high, *high);
  const double all = std::accumulate(equal->counts.begin(), equal->counts.end(), 0.0);
  EXPECT_NEAR(all, 20'000, 1e-6);
  double mean = 0;
  const double width = (equal->high - equal->low) / 64;
  for (std::size_t i = 0; i < 64; ++i)
    mean += equal->counts[i] * (equal->low + width * (static_cast<double>(i) + 0.5));
  EXPECT_NEAR(mean / all, -1, 0.1);
}

TEST(EqualBins, TakeWhateverAStrangersRunHolds) {
  const std::vector<SparseHistogram> cases = {
      {{0, 1}},                      // zeros
      {{0x7f8, 3}},                  // infinity: no width
      {{0xfff, 3}},                  // and NaN with a sign
      {{0x7f8, 1}, {0xff8, 1}},      // from one end to the other
      {{0, ~0ULL}, {0x7f7, ~0ULL}},  // counts that no tensor has
      {{1, 0}},
  };
  for (const SparseHistogram& bins : cases) {
    const auto equal = InEqualBins(bins, 64);
    ASSERT_TRUE(equal.has_value());
    ASSERT_EQ(equal->counts.size(), 64U);
    for (const double count : equal->counts) EXPECT_TRUE(count >= 0 && std::isfinite(count));
  }
  EXPECT_FALSE(InEqualBins({}, 64).has_value());
}

}  // namespace
}  // namespace luff::server::histogram_test

// Tests histograms, units, differences, further reductions and hashes, each against a plain loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <numeric>

#include "luff/tensor/hash.h"
#include "tensor/testing.h"

namespace luff::tensor::forms_test {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

Layout Shape(DType dtype, std::vector<std::int64_t> dims) { return Layout::Contiguous(dtype, dims).value(); }

template <typename T>
TensorView ViewOf(DType dtype, const std::vector<T>& values, std::vector<std::int64_t> dims) {
  return {reinterpret_cast<const std::byte*>(values.data()), Shape(dtype, std::move(dims))};
}

TensorView Flat(DType dtype, const std::vector<std::byte>& data) {
  return {data.data(), Shape(dtype, {static_cast<std::int64_t>(data.size() / DTypeSize(dtype))})};
}

class HistogramTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, HistogramTest, testing::ValuesIn(AllDTypes()),
                         [](const auto& tested) { return std::string(DTypeName(tested.param)); });

TEST_P(HistogramTest, CountsEveryFiniteValueInTheBinOfItsFloat32Bits) {
  const DType dtype = GetParam();
  for (const std::size_t count : {1u, 37u, 5000u, 40000u}) {
    const auto data = MakeElements(dtype, count, Content::kWithNonFinite, count);
    std::vector<float> values(count);
    std::vector<std::uint64_t> want(kHistogramBins);
    ScalarKernels()->to_float[static_cast<std::size_t>(dtype)](data.data(), count, values.data());
    for (const float v : values) {
      if (std::isfinite(v)) ++want[std::bit_cast<std::uint32_t>(v) >> 20];
    }
    ForEachTarget([&](const KernelTable& table) {
      std::vector<std::uint64_t> got(kHistogramBins), fused(kHistogramBins);
      AddHistogram(Flat(dtype, data), got);
      Summary summary, plain;
      SummarizeWithHistogram(Flat(dtype, data), &summary, fused);
      Summarize(Flat(dtype, data), &plain);
      const std::uint64_t total = std::accumulate(got.begin(), got.end(), std::uint64_t{0});
      EXPECT_EQ(total, summary.finite_count()) << table.name;
      EXPECT_EQ(got, fused);
      EXPECT_EQ(summary.min_bits, plain.min_bits);
      EXPECT_EQ(summary.nan_count, plain.nan_count);
      if (!IsComplex(dtype)) {  // magnitudes may round across an edge
        EXPECT_EQ(got, want) << table.name;
      }
    });
  }
}

TEST(Histogram, AddsToWhatIsThere_AndIsTheSumOfItsParts) {
  const auto data = MakeElements(DType::kFloat32, 50000, Content::kOrdinary, 4);
  std::vector<std::uint64_t> whole(kHistogramBins), parts(kHistogramBins);
  AddHistogram(Flat(DType::kFloat32, data), whole);
  const std::vector<std::byte> first(data.begin(), data.begin() + std::ptrdiff_t{4} * 777),
      rest(data.begin() + std::ptrdiff_t{4} * 777, data.end());
  AddHistogram(Flat(DType::kFloat32, first), parts);
  AddHistogram(Flat(DType::kFloat32, rest), parts);
  EXPECT_EQ(whole, parts);
}

TEST(Histogram, FiniteValuesBeyondFloat32_GoToTheOutermostBins) {
  const std::vector<double> values = {1e300, -1e300, 1e-300, std::numeric_limits<double>::infinity()};
  ForEachTarget([&](const KernelTable&) {
    std::vector<std::uint64_t> dense(kHistogramBins);
    AddHistogram(ViewOf(DType::kFloat64, values, {4}), dense);
    EXPECT_EQ(dense[0x7f7], 1u);
    EXPECT_EQ(dense[0xff7], 1u);
    EXPECT_EQ(dense[0], 1u);
    EXPECT_EQ(std::accumulate(dense.begin(), dense.end(), std::uint64_t{0}), 3u);
  });
}

TEST(Histogram, BinsCoverTheFloatsWithoutHoles) {
  for (std::uint16_t bin = 0; bin < 0x7f7; ++bin) {
    ASSERT_LT(HistogramBinLow(bin), HistogramBinHigh(bin));
    ASSERT_EQ(HistogramBinHigh(bin), HistogramBinLow(static_cast<std::uint16_t>(bin + 1)));
    ASSERT_EQ(HistogramBinLow(static_cast<std::uint16_t>(bin + 0x800)), -HistogramBinHigh(bin));
  }
}

TEST(Histogram, Quantiles_AreWithinABinOfTheSortedValues) {
  EXPECT_TRUE(rc::check("quantile", [] {
    const auto raw =
        *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(-100000, 100000)));
    std::vector<float> values;
    for (const int r : raw) values.push_back(static_cast<float>(r) / 64.0f);
    std::vector<std::uint64_t> dense(kHistogramBins);
    AddHistogram(ViewOf(DType::kFloat32, values, {static_cast<std::int64_t>(values.size())}), dense);
    const SparseHistogram sparse = ToSparse(dense);
    std::sort(values.begin(), values.end());
    const double q = *rc::gen::inRange(0, 101) / 100.0;
    const double got = HistogramQuantile(sparse, q);
    // Between the neighbours of rank q * n, each widened by one bin.
    const double rank = q * static_cast<double>(values.size());
    const auto below = static_cast<std::size_t>(
        std::clamp(std::floor(rank) - 1, 0.0, static_cast<double>(values.size() - 1)));
    const auto above =
        static_cast<std::size_t>(std::clamp(std::ceil(rank), 0.0, static_cast<double>(values.size() - 1)));
    const double low = static_cast<double>(values[below]), high = static_cast<double>(values[above]);
    RC_ASSERT(got >= low - std::fabs(low) / 8 - 1e-38);
    RC_ASSERT(got <= high + std::fabs(high) / 8 + 1e-38);
  }));
}

TEST(Histogram, QuantileOfHostileBins_IsNoCrash) {
  const double nan = HistogramQuantile({}, 0.5);
  EXPECT_TRUE(std::isnan(nan));
  const std::vector<HistogramBin> zero = {{5, 0}, {6, 0}};
  EXPECT_TRUE(std::isnan(HistogramQuantile(zero, 0.5)));
  const std::vector<HistogramBin> large = {{65535, ~std::uint64_t{0}}, {3, ~std::uint64_t{0}}, {0x7ff, 1}};
  for (const double q : {-1.0, 0.0, 0.5, 1.0, 2.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_FALSE(std::isinf(HistogramQuantile(large, q)));
  }
}

TEST(Units, OfEachAxis_CountPositiveZeroAndSum) {
  // Shape (2, 3, 2): batch, channel, position.
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> v = {1, -1, 0, 0, 2, 3, /**/ 4, 0, -2, -0.0f, inf, 5};
  ForEachTarget([&](const KernelTable&) {
    UnitCounts units;
    ComputeUnits(ViewOf(DType::kFloat32, v, {2, 3, 2}), UnitAxis::kChannel, &units);
    EXPECT_EQ(units.values_per_unit, 4u);
    EXPECT_THAT(units.positive, ElementsAre(2, 0, 3));
    EXPECT_THAT(units.zero, ElementsAre(1, 3, 0));
    EXPECT_THAT(units.sum, ElementsAre(4, -2, 10));

    ComputeUnits(ViewOf(DType::kFloat32, v, {2, 3, 2}), UnitAxis::kLast, &units);
    EXPECT_EQ(units.values_per_unit, 6u);
    EXPECT_THAT(units.positive, ElementsAre(3, 2));
    EXPECT_THAT(units.sum, ElementsAre(5, 7));

    ComputeUnits(ViewOf(DType::kFloat32, v, {2, 3, 2}), UnitAxis::kAllButFirst, &units);
    EXPECT_EQ(units.values_per_unit, 2u);
    EXPECT_THAT(units.positive, ElementsAre(2, 0, 0, 0, 1, 2));
    EXPECT_THAT(units.zero, ElementsAre(0, 1, 1, 2, 0, 0));
  });
}

TEST(Units, OfTransposedMemory_AreThoseOfTheTensor) {
  const std::vector<float> memory = {1, 2, 3, -4, -5, 0};  // (3, 2) seen as its transpose (2, 3)
  const std::int64_t dims[] = {2, 3}, strides[] = {1, 2};
  UnitCounts units;
  ComputeUnits({reinterpret_cast<const std::byte*>(memory.data()),
                Layout::Strided(DType::kFloat32, dims, strides).value()},
               UnitAxis::kChannel, &units);
  EXPECT_THAT(units.sum, ElementsAre(3, -1, -5));
  EXPECT_THAT(units.positive, ElementsAre(2, 1, 0));
}

TEST(Units, RankOneScalarAndEmpty_AreOneRow) {
  const std::vector<float> v = {3, 0, -1};
  UnitCounts units;
  ComputeUnits(ViewOf(DType::kFloat32, v, {3}), UnitAxis::kChannel, &units);
  EXPECT_EQ(units.values_per_unit, 1u);
  EXPECT_THAT(units.positive, ElementsAre(1, 0, 0));
  ComputeUnits(ViewOf(DType::kFloat32, v, {}), UnitAxis::kLast, &units);
  EXPECT_THAT(units.sum, ElementsAre(3));
  ComputeUnits(ViewOf(DType::kFloat32, v, {0, 1 << 30}), UnitAxis::kChannel, &units);
  EXPECT_TRUE(units.sum.empty());
  EXPECT_EQ(units.values_per_unit, 0u);
}

class DifferenceTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, DifferenceTest, testing::ValuesIn(AllDTypes()),
                         [](const auto& tested) { return std::string(DTypeName(tested.param)); });

TEST_P(DifferenceTest, AgreesWithALoop_AndReplacesWhenAsked) {
  const DType dtype = GetParam();
  const std::size_t size = DTypeSize(dtype), count = 1500;
  const auto now = MakeElements(dtype, count, Content::kWithNonFinite, 1);
  auto before = MakeElements(dtype, count, Content::kWithNonFinite, 2);
  std::memcpy(before.data(), now.data(), size * 400);  // the first 400 have not changed
  std::uint64_t changed = 0;
  for (std::size_t i = 0; i < count; ++i)
    changed += std::memcmp(&now[i * size], &before[i * size], size) != 0;
  long double l1 = 0, sq = 0, top = 0, prev_l1 = 0;
  std::vector<double> x(count), y(count);
  ToFloat64(dtype, now.data(), count, x.data());
  ToFloat64(dtype, before.data(), count, y.data());
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isfinite(y[i])) prev_l1 += std::fabs(y[i]);
    if (!std::isfinite(x[i]) || !std::isfinite(y[i])) continue;
    const long double d = std::fabs(static_cast<long double>(x[i]) - y[i]);
    l1 += d;
    sq += d * d;
    top = std::max(top, d);
  }
  ForEachTarget([&](const KernelTable& table) {
    auto previous = before;
    Difference got;
    ComputeDifference(Flat(dtype, now), previous.data(), false, &got);
    EXPECT_EQ(got.changed_count, changed) << table.name;
    EXPECT_EQ(previous, before);
    EXPECT_NEAR(got.previous_l1, static_cast<double>(prev_l1), static_cast<double>(prev_l1) * 1e-12);
    if (!IsComplex(dtype)) {
      EXPECT_NEAR(got.l1, static_cast<double>(l1), static_cast<double>(l1) * 1e-12) << table.name;
      EXPECT_NEAR(got.sum_sq, static_cast<double>(sq), static_cast<double>(sq) * 1e-12) << table.name;
      EXPECT_NEAR(got.max, static_cast<double>(top), static_cast<double>(top) * 1e-15) << table.name;
    }
    ComputeDifference(Flat(dtype, now), previous.data(), true, &got);
    EXPECT_EQ(previous, now);
    ComputeDifference(Flat(dtype, now), previous.data(), true, &got);
    EXPECT_EQ(got.changed_count, 0u);
    EXPECT_EQ(got.l1, 0.0);
  });
}

TEST(Difference, OfComplexNumbers_IsTheMagnitudeOfTheirDifference) {
  const std::vector<float> now = {3, 4, 1, 1};
  std::vector<float> before = {0, 0, 1, -1};
  Difference got;
  ComputeDifference(ViewOf(DType::kComplex64, now, {2}), reinterpret_cast<std::byte*>(before.data()), true,
                    &got);
  EXPECT_THAT(got.l1, DoubleNear(7, 1e-12));
  EXPECT_THAT(got.max, DoubleNear(5, 1e-12));
  EXPECT_THAT(got.previous_sum_sq, DoubleNear(2, 1e-12));
  EXPECT_EQ(before, now);
}

TEST(Difference, OfTransposedView_ComparesInRowMajorOrder) {
  const std::vector<float> memory = {1, 2, 3, 4, 5, 6};
  const std::int64_t dims[] = {3, 2}, strides[] = {1, 3};
  const TensorView view{reinterpret_cast<const std::byte*>(memory.data()),
                        Layout::Strided(DType::kFloat32, dims, strides).value()};
  std::vector<float> previous = {1, 4, 2, 5, 3, 7};
  Difference got;
  ComputeDifference(view, reinterpret_cast<std::byte*>(previous.data()), true, &got);
  EXPECT_EQ(got.changed_count, 1u);
  EXPECT_EQ(got.l1, 1.0);
  EXPECT_THAT(previous, ElementsAre(1, 4, 2, 5, 3, 6));
}

TEST(Extra, IgnoresNonFinite_AndKeepsTheSignOfTheProduct) {
  const std::vector<float> v = {-2, 3, std::numeric_limits<float>::quiet_NaN(), 0.5f,
                                std::numeric_limits<float>::infinity()};
  ForEachTarget([&](const KernelTable&) {
    ExtraReductions got;
    ComputeExtra(ViewOf(DType::kFloat32, v, {5}), &got);
    EXPECT_EQ(got.abs_min, 0.5);
    EXPECT_EQ(got.prod, -3.0);
    EXPECT_EQ(got.abs_prod, 3.0);
  });
  ExtraReductions none;
  ComputeExtra(ViewOf(DType::kFloat32, v, {0}), &none);
  EXPECT_TRUE(std::isinf(none.abs_min));
  EXPECT_EQ(none.prod, 1.0);
}

TEST(Hash, IsTheSameOnEveryTarget_AndThePublishedOne) {
  for (const std::size_t bytes : {0u, 1u, 3u, 8u, 16u, 17u, 128u, 129u, 240u, 241u, 1024u, 100000u}) {
    const auto data = MakeElements(DType::kUInt8, bytes + 1, Content::kAnyBits, bytes);
    const std::uint64_t want = HashBaseline(data.data() + 1, bytes);
    ForEachTarget(
        [&](const KernelTable& table) { EXPECT_EQ(HashBytes(data.data() + 1, bytes), want) << table.name; });
  }
  // Published test vector of XXH3-64 with seed 0: the empty input.
  EXPECT_EQ(HashBytes("", 0), 0x2d06800538d394c2u);
}

}  // namespace
}  // namespace luff::tensor::forms_test

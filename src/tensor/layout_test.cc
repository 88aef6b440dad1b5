#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tensor/testing.h"

namespace luff::layout_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(DTypeNames, EveryTypeComesBackFromItsName_AndHasOneKind) {
  for (const DType dtype : tensor::AllDTypes()) {
    EXPECT_EQ(ParseDType(DTypeName(dtype)).value(), dtype);
    EXPECT_TRUE(IsKnownDType(static_cast<std::uint8_t>(dtype)));
    EXPECT_GT(DTypeSize(dtype), 0u);
    EXPECT_EQ(IsFloating(dtype) + IsComplex(dtype) + IsSignedInteger(dtype) + IsUnsignedInteger(dtype),
              dtype == DType::kString ? 0 : 1);
  }
  EXPECT_FALSE(IsKnownDType(0));
  EXPECT_FALSE(IsKnownDType(kDTypeCount));
  EXPECT_FALSE(IsKnownDType(255));
  EXPECT_EQ(DTypeSize(static_cast<DType>(200)), 0u);
}

TEST(DTypeNames, UnknownName_SaysWhichExist) {
  const auto none = ParseDType("float31");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(none.status().message(), HasSubstr("float31"));
  EXPECT_THAT(none.status().message(), HasSubstr("bfloat16"));
  EXPECT_FALSE(ParseDType("invalid").ok());
}

TEST(Layout, Contiguous_HasRowMajorStrides) {
  const std::int64_t dims[] = {2, 3, 4};
  const Layout layout = Layout::Contiguous(DType::kFloat64, dims).value();
  EXPECT_EQ(layout.element_count(), 24u);
  EXPECT_EQ(layout.byte_count(), 192u);
  EXPECT_THAT(layout.shape(), ElementsAre(2, 3, 4));
  EXPECT_EQ(layout.strides[0], 12);
  EXPECT_EQ(layout.strides[2], 1);
  EXPECT_TRUE(layout.is_contiguous());
  EXPECT_EQ(Layout::Contiguous(DType::kFloat32, {}).value().element_count(), 1u);
}

TEST(Layout, DimensionsOfOne_MayHaveAnyStride) {
  const std::int64_t dims[] = {1, 5, 1}, strides[] = {-77, 1, 1000};
  EXPECT_TRUE(Layout::Strided(DType::kInt8, dims, strides).value().is_contiguous());
  const std::int64_t expanded[] = {0, 1};
  const std::int64_t two[] = {4, 5};
  EXPECT_FALSE(Layout::Strided(DType::kInt8, two, expanded).value().is_contiguous());
}

TEST(Layout, WhatCannotBeATensor_IsRefusedWithAReason) {
  const std::vector<std::int64_t> nine(9, 1), negative = {3, -1},
                                              huge = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  const std::vector<std::int64_t> empty_but_huge = {0, std::int64_t{1} << 62, 4};
  EXPECT_THAT(Layout::Contiguous(DType::kInt8, nine).status().message(), HasSubstr("rank 9"));
  EXPECT_THAT(Layout::Contiguous(DType::kInt8, negative).status().message(), HasSubstr("negative"));
  EXPECT_THAT(Layout::Contiguous(DType::kInt8, huge).status().message(), HasSubstr("2^62"));
  EXPECT_FALSE(Layout::Contiguous(DType::kInt8, empty_but_huge).ok());
  EXPECT_FALSE(Layout::Contiguous(DType::kInvalid, {}).ok());
  EXPECT_FALSE(Layout::Contiguous(static_cast<DType>(99), {}).ok());
  const std::int64_t dims[] = {2, 2}, one[] = {1}, far[] = {std::numeric_limits<std::int64_t>::min(), 1};
  EXPECT_FALSE(Layout::Strided(DType::kInt8, dims, one).ok());
  EXPECT_THAT(Layout::Strided(DType::kInt8, dims, far).status().message(), HasSubstr("reach"));
}

TEST(Layout, AnyShapeThatIsAccepted_HasACountWithoutOverflow) {
  EXPECT_TRUE(rc::check("count", [] {
    const auto dims = *rc::gen::container<std::vector<std::int64_t>>(rc::gen::arbitrary<std::int64_t>());
    const auto layout = Layout::Contiguous(DType::kComplex128, dims);
    if (!layout.ok()) return;
    RC_ASSERT(layout.value().byte_count() <= (std::uint64_t{1} << 62));
    RC_ASSERT(layout.value().is_contiguous());
  }));
}

TEST(SummaryMerge, OfParts_IsTheSummaryOfTheWhole) {
  EXPECT_TRUE(rc::check("merge", [] {
    const DType dtype = *rc::gen::elementOf(tensor::AllDTypes());
    const auto count = *rc::gen::inRange<std::size_t>(0, 300);
    const auto cut = *rc::gen::inRange<std::size_t>(0, count + 1);
    const auto data = tensor::MakeElements(dtype, count, tensor::Content::kWithNonFinite, count);
    const std::byte* middle = data.data() + cut * DTypeSize(dtype);
    Summary merged = tensor::ReferenceSummary(dtype, data.data(), cut).summary;
    merged.Merge(tensor::ReferenceSummary(dtype, middle, count - cut).summary, dtype);
    RC_ASSERT(tensor::Mismatch(merged, tensor::ReferenceSummary(dtype, data.data(), count)) == "");
  }));
}

TEST(SummaryValues, FollowFromTheSums) {
  const float values[] = {-3, 1, 2, std::numeric_limits<float>::infinity()};
  const std::int64_t dims[] = {4};
  Summary s;
  Summarize({reinterpret_cast<const std::byte*>(values), Layout::Contiguous(DType::kFloat32, dims).value()},
            &s);
  EXPECT_EQ(s.finite_count(), 3u);
  EXPECT_EQ(s.mean(), 0.0);
  EXPECT_DOUBLE_EQ(s.variance(), 14.0 / 3);
  EXPECT_DOUBLE_EQ(s.l2(), std::sqrt(14.0));
  EXPECT_DOUBLE_EQ(s.abs_mean(), 2.0);
  EXPECT_EQ(s.min(DType::kFloat32), -3.0);
  EXPECT_EQ(s.abs_max(DType::kFloat32), 3.0);
  Summary constant;
  constant.count = 3;
  constant.sum = 0.3;
  constant.sum_sq = 0.03 - 1e-18;
  EXPECT_GE(constant.variance(), 0.0);
}

}  // namespace
}  // namespace luff::layout_test

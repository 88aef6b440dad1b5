#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <cfenv>

#include "tensor/testing.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace luff::tensor::summarize_test {
namespace {

TensorView Flat(DType dtype, const std::byte* data, std::size_t count) {
  const std::int64_t dims[] = {static_cast<std::int64_t>(count)};
  return {data, Layout::Contiguous(dtype, dims).value()};
}

class SummarizeTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, SummarizeTest, testing::ValuesIn(AllDTypes()),
                         [](const auto& tested) { return std::string(DTypeName(tested.param)); });

TEST_P(SummarizeTest, AgreesWithReference_OnEveryTargetSizeAndContent) {
  const DType dtype = GetParam();
  for (const Content content :
       {Content::kOrdinary, Content::kWithNonFinite, Content::kAnyBits, Content::kOffset, Content::kZeros}) {
    for (const std::size_t count :
         {1u, 2u, 3u, 7u, 15u, 16u, 17u, 31u, 63u, 64u, 65u, 127u, 129u, 1000u, 4096u, 4097u, 10007u}) {
      const auto data = MakeElements(dtype, count, content, count);
      const Reference want = ReferenceSummary(dtype, data.data(), count);
      ForEachTarget([&](const KernelTable& table) {
        Summary got;
        Summarize(Flat(dtype, data.data(), count), &got);
        EXPECT_EQ(Mismatch(got, want), "")
            << table.name << " count " << count << " content " << static_cast<int>(content);
        std::vector<std::byte> copy(data.size());
        Summary with_copy;
        Summarize(Flat(dtype, data.data(), count), &with_copy, copy.data());
        EXPECT_EQ(Mismatch(with_copy, want), "") << table.name << " with copy, count " << count;
        EXPECT_EQ(copy, data) << table.name << " count " << count;
      });
    }
  }
}

TEST_P(SummarizeTest, ReadsUnalignedMemory_AndNothingElse) {
  const DType dtype = GetParam();
  const std::size_t size = DTypeSize(dtype);
  for (std::size_t shift = 0; shift < 9; ++shift) {
    for (std::size_t count = 0; count < 40; ++count) {
      // Not a byte larger than needed, so that sanitizers see a read beyond it.
      std::vector<std::byte> room(shift + count * size);
      const auto data = MakeElements(dtype, count, Content::kAnyBits, count + shift);
      if (!data.empty()) std::memcpy(room.data() + shift, data.data(), data.size());
      const Reference want = ReferenceSummary(dtype, data.data(), count);
      ForEachTarget([&](const KernelTable& table) {
        Summary got;
        std::vector<std::byte> copy(data.size() + shift);
        Summarize(Flat(dtype, room.data() + shift, count), &got, copy.data() + shift);
        EXPECT_EQ(Mismatch(got, want), "") << table.name << " count " << count;
        EXPECT_TRUE(std::equal(data.begin(), data.end(), copy.begin() + static_cast<std::ptrdiff_t>(shift)));
      });
    }
  }
}

TEST_P(SummarizeTest, StreamedCopy_ReachesAnyAlignment) {
  const DType dtype = GetParam();
  const auto index = static_cast<std::size_t>(dtype);
  const std::size_t count = 65536 / DTypeSize(dtype) + 13;
  const auto data = MakeElements(dtype, count, Content::kAnyBits, 5);
  const Reference want = ReferenceSummary(dtype, data.data(), count);
  for (const std::size_t shift : {0u, 1u, 4u, 16u, 48u}) {
    ForEachTarget([&](const KernelTable& table) {
      std::vector<std::byte> room(data.size() + shift + 1, std::byte{0x5a});
      Summary got = Begin(dtype);
      table.summarize[index](data.data(), count, room.data() + shift, /*stream=*/true, &got);
      Finish(&got);
      EXPECT_EQ(Mismatch(got, want), "") << table.name;
      EXPECT_EQ(std::memcmp(room.data() + shift, data.data(), data.size()), 0)
          << table.name << " shift " << shift;
      EXPECT_EQ(room.back(), std::byte{0x5a});
    });
  }
}

TEST_P(SummarizeTest, EmptyTensor_HasNoElementsAndNoBounds) {
  Summary got;
  got.count = 99;
  const std::int64_t dims[] = {3, 0, 5};
  const std::byte nothing{};
  Summarize({&nothing, Layout::Contiguous(GetParam(), dims).value()}, &got);
  EXPECT_EQ(got.count, 0u);
  EXPECT_EQ(got.min_bits, 0u);
  EXPECT_TRUE(std::isnan(got.mean()));
  EXPECT_TRUE(std::isnan(got.min(GetParam())));
}

TEST_P(SummarizeTest, Conversions_AgreeAcrossTargets) {
  const DType dtype = GetParam();
  const auto index = static_cast<std::size_t>(dtype);
  for (const std::size_t count : {1u, 5u, 16u, 33u, 1000u}) {
    const auto data = MakeElements(dtype, count, Content::kAnyBits, count);
    std::vector<double> want(count), got(count);
    std::vector<float> want_float(count), got_float(count);
    ScalarKernels()->to_double[index](data.data(), count, want.data());
    ScalarKernels()->to_float[index](data.data(), count, want_float.data());
    ForEachTarget([&](const KernelTable& table) {
      table.to_double[index](data.data(), count, got.data());
      table.to_float[index](data.data(), count, got_float.data());
      for (std::size_t i = 0; i < count; ++i) {
        if (std::isnan(want[i])) {
          EXPECT_TRUE(std::isnan(got[i])) << table.name;
        } else {
          EXPECT_THAT(got[i],
                      testing::AnyOf(want[i], testing::DoubleNear(want[i], std::fabs(want[i]) * 1e-15)))
              << table.name;
        }
        if (std::isnan(want_float[i])) {
          EXPECT_TRUE(std::isnan(got_float[i])) << table.name;
        } else {
          EXPECT_FLOAT_EQ(got_float[i], want_float[i]) << table.name;
        }
      }
    });
  }
}

/// A random view into memory that holds exactly the elements it can reach.
struct RandomView {
  std::vector<std::byte> memory;
  TensorView view;
  std::vector<std::byte> row_major;
};

RandomView MakeRandomView(DType dtype) {
  const auto rank = *rc::gen::inRange<std::size_t>(0, 5);
  std::vector<std::int64_t> dims, strides;
  std::int64_t low = 0, high = 0;
  for (std::size_t i = 0; i < rank; ++i) {
    dims.push_back(*rc::gen::inRange<std::int64_t>(1, 9));
    strides.push_back(*rc::gen::element<std::int64_t>(0, 1, 1, 2, 3, 8, 40, -1, -5, 64));
    (strides.back() < 0 ? low : high) += strides.back() * (dims.back() - 1);
  }
  if (rank > 0 && *rc::gen::inRange(0, 2) == 0) {  // one long row or column
    dims.back() = *rc::gen::inRange<std::int64_t>(1, 700);
    low = high = 0;
    for (std::size_t i = 0; i < rank; ++i) (strides[i] < 0 ? low : high) += strides[i] * (dims[i] - 1);
  }
  RandomView r;
  const std::size_t size = DTypeSize(dtype);
  r.memory = MakeElements(dtype, static_cast<std::size_t>(high - low + 1), Content::kAnyBits, 3);
  const std::byte* base = r.memory.data() - low * static_cast<std::int64_t>(size);
  r.view = {base, Layout::Strided(dtype, dims, strides).value()};
  const std::uint64_t total = r.view.layout.element_count();
  for (std::uint64_t n = 0; n < total; ++n) {
    std::uint64_t rest = n;
    std::int64_t offset = 0;
    for (std::size_t i = rank; i-- > 0;) {
      offset += strides[i] * static_cast<std::int64_t>(rest % static_cast<std::uint64_t>(dims[i]));
      rest /= static_cast<std::uint64_t>(dims[i]);
    }
    const std::byte* at = base + offset * static_cast<std::int64_t>(size);
    r.row_major.insert(r.row_major.end(), at, at + size);
  }
  return r;
}

TEST(StridedSummarize, AnyStrides_EqualTheContiguousCopy) {
  EXPECT_TRUE(rc::check("any strides", [] {
    const DType dtype = *rc::gen::elementOf(AllDTypes());
    const RandomView r = MakeRandomView(dtype);
    const std::size_t count = r.view.layout.element_count();
    const Reference want = ReferenceSummary(dtype, r.row_major.data(), count);
    ForEachTarget([&](const KernelTable&) {
      Summary got, with_copy;
      std::vector<std::byte> copy(r.row_major.size()), plain(r.row_major.size());
      Summarize(r.view, &got);
      RC_ASSERT(Mismatch(got, want) == "");
      Summarize(r.view, &with_copy, copy.data());
      RC_ASSERT(Mismatch(with_copy, want) == "");
      RC_ASSERT(copy == r.row_major);
      CopyContiguous(r.view, plain.data());
      RC_ASSERT(plain == r.row_major);
      RC_ASSERT(ContentHash(r.view) == ContentHash(Flat(dtype, r.row_major.data(), count)));
    });
  }));
}

TEST(StridedSummarize, LargeTransposedAndSliced_EqualTheContiguousCopy) {
  const auto data = MakeElements(DType::kFloat32, std::size_t{300} * 700, Content::kWithNonFinite, 1);
  const std::int64_t dims[] = {700, 300}, strides[] = {1, 700};
  const std::int64_t slice_dims[] = {300, 500}, slice_strides[] = {700, 1};
  for (const TensorView& view :
       {TensorView{data.data(), Layout::Strided(DType::kFloat32, dims, strides).value()},
        TensorView{data.data() + 400, Layout::Strided(DType::kFloat32, slice_dims, slice_strides).value()}}) {
    std::vector<std::byte> copy(view.layout.byte_count());
    CopyContiguous(view, copy.data());
    const Reference want = ReferenceSummary(DType::kFloat32, copy.data(), view.layout.element_count());
    ForEachTarget([&](const KernelTable&) {
      Summary got;
      std::vector<std::byte> fused(copy.size());
      Summarize(view, &got);
      EXPECT_EQ(Mismatch(got, want), "");
      Summarize(view, &got, fused.data());
      EXPECT_EQ(Mismatch(got, want), "");
      EXPECT_EQ(fused, copy);
    });
  }
}

TEST(Summarize, VarianceAtMeanOneMillion_IsThatOfFloat64) {
  const std::size_t count = 1 << 20;
  const auto data = MakeElements(DType::kFloat32, count, Content::kOffset, 11);
  long double mean = 0, variance = 0;
  for (std::size_t i = 0; i < count; ++i) mean += LoadAs<float>(data.data() + 4 * i);
  mean /= count;
  for (std::size_t i = 0; i < count; ++i) {
    const long double d = LoadAs<float>(data.data() + 4 * i) - mean;
    variance += d * d;
  }
  variance /= count;
  ForEachTarget([&](const KernelTable& table) {
    Summary got;
    Summarize(Flat(DType::kFloat32, data.data(), count), &got);
    // sum_sq / n and mean^2 are 1e12 and agree to 1e-15 of that.
    EXPECT_NEAR(got.variance(), static_cast<double>(variance), 5e-3) << table.name;
    EXPECT_NEAR(got.mean(), static_cast<double>(mean), 1e-8) << table.name;
  });
}

TEST(Summarize, SquaresOfTinyAndHugeFloats_NeitherVanishNorOverflow) {
  ForEachTarget([&](const KernelTable& table) {
    for (const float x : {1e-30f, 3e38f, std::numeric_limits<float>::denorm_min()}) {
      const std::vector<float> values(1000, x);
      Summary got;
      Summarize(Flat(DType::kFloat32, reinterpret_cast<const std::byte*>(values.data()), values.size()),
                &got);
      const double wide = static_cast<double>(x);
      EXPECT_NEAR(got.l2() / (wide * std::sqrt(1000.0)), 1.0, 1e-12) << table.name;
      EXPECT_EQ(got.zero_count, 0u);
      EXPECT_EQ(got.min(DType::kFloat32), wide);
    }
  });
}

TEST(Summarize, IntegerBounds_AreExactInTheirOwnWidth) {
  const std::int64_t signed_values[] = {std::numeric_limits<std::int64_t>::min(), 5,
                                        std::numeric_limits<std::int64_t>::max() - 1};
  const std::uint64_t unsigned_values[] = {(std::uint64_t{1} << 53) + 1,
                                           std::numeric_limits<std::uint64_t>::max()};
  ForEachTarget([&](const KernelTable&) {
    Summary got;
    Summarize(Flat(DType::kInt64, reinterpret_cast<const std::byte*>(signed_values), 3), &got);
    EXPECT_EQ(std::bit_cast<std::int64_t>(got.min_bits), signed_values[0]);
    EXPECT_EQ(std::bit_cast<std::int64_t>(got.max_bits), signed_values[2]);
    Summarize(Flat(DType::kUInt64, reinterpret_cast<const std::byte*>(unsigned_values), 2), &got);
    EXPECT_EQ(got.min_bits, unsigned_values[0]);
    EXPECT_EQ(got.max_bits, unsigned_values[1]);
  });
}

TEST(Summarize, ScalarOfRankZero_IsOneElement) {
  const float value = -2.5f;
  Summary got;
  Summarize({reinterpret_cast<const std::byte*>(&value), Layout::Contiguous(DType::kFloat32, {}).value()},
            &got);
  EXPECT_EQ(got.count, 1u);
  EXPECT_EQ(got.sum, -2.5);
  EXPECT_EQ(got.max(DType::kFloat32), -2.5);
}

#if defined(__x86_64__)
TEST(Summarize, FlushedSubnormalsAndTrapsOfTheCaller_ChangeNothingAndAreKept) {
  std::vector<float> values(100, std::numeric_limits<float>::denorm_min());
  values[3] = std::numeric_limits<float>::signaling_NaN();
  const auto view = Flat(DType::kFloat32, reinterpret_cast<const std::byte*>(values.data()), values.size());
  Summary plain;
  Summarize(view, &plain);
  const unsigned before = _mm_getcsr();
  // Flush to zero, subnormals are zero, rounding up, every exception traps, no flag set.
  const unsigned strange = 0x8040u | 0x4000u;
  _mm_setcsr(strange);
  Summary got;
  std::vector<std::uint64_t> dense(kHistogramBins);
  SummarizeWithHistogram(view, &got, dense);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after, strange);
  EXPECT_EQ(got.zero_count, 0u);
  EXPECT_EQ(got.nan_count, 1u);
  EXPECT_EQ(got.sum, plain.sum);
  EXPECT_EQ(got.min_bits, plain.min_bits);
}
#endif

TEST(Summarize, UnknownDTypeOrNoMemory_CountsNothing) {
  Summary got;
  got.count = 7;
  TensorView view;
  Summarize(view, &got);
  EXPECT_EQ(got.count, 0u);
  CopyContiguous(view, nullptr);
  EXPECT_EQ(ContentHash(view), HashBaseline("", 0));
}

}  // namespace
}  // namespace luff::tensor::summarize_test

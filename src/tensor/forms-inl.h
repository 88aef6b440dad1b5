// Conversions, differences and units: the kernels of the optional summary forms. Included once per SIMD
// target by kernels_simd.cc; the guard flips with each.
#if defined(LUFF_TENSOR_FORMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUFF_TENSOR_FORMS_INL_H_
#undef LUFF_TENSOR_FORMS_INL_H_
#else
#define LUFF_TENSOR_FORMS_INL_H_
#endif

#include <cstring>
#include <limits>
#include <type_traits>

#include "tensor/kernel_table.h"
#include "tensor/loaders-inl.h"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace luff::tensor::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

// ---- Conversions ----

template <class L>
void ToDouble(const std::byte* from, std::size_t count, double* to) noexcept {
  using T = typename L::T;
  const DD dd;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr std::size_t kHalf = hn::MaxLanes(DD());
  const auto convert = [dd](auto v, double* target) HWY_ATTR {
    hn::StoreU(ToDoubles<0>(v, T{}), dd, target);
    if constexpr (kParts<T> == 2) hn::StoreU(ToDoubles<1>(v, T{}), dd, target + kHalf);
  };
  for (; count >= kLanes; count -= kLanes, from += kLanes * L::kSize, to += kLanes)
    convert(L::Load(from), to);
  if (count != 0) {
    double converted[kLanes];
    convert(LoadFew<L>(from, count), converted);
    std::memcpy(to, converted, count * sizeof(double));
  }
}

template <class L>
void ToFloat(const std::byte* from, std::size_t count, float* to) noexcept {
  using T = typename L::T;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr std::size_t kHalf = hn::MaxLanes(DD());
  const auto convert = [](auto v, float* target) HWY_ATTR {
    if constexpr (std::is_same_v<T, float>) {
      const auto nan = hn::Set(DF(), std::numeric_limits<float>::quiet_NaN());
      hn::StoreU(hn::IfThenElse(hn::IsFinite(v), v, nan), DF(), target);
    } else if constexpr (std::is_same_v<T, std::int32_t>) {
      hn::StoreU(hn::ConvertTo(DF(), v), DF(), target);
    } else {
      const DD dd;
      const auto most = hn::Set(dd, static_cast<double>(std::numeric_limits<float>::max()));
      const auto narrow = [dd, most](VD x) HWY_ATTR {
        const auto clamped = hn::Max(hn::Min(x, most), hn::Neg(most));
        const auto nan = hn::Set(dd, std::numeric_limits<double>::quiet_NaN());
        return hn::DemoteTo(DFHalf(), hn::IfThenElse(hn::IsFinite(x), clamped, nan));
      };
      hn::StoreU(narrow(ToDoubles<0>(v, T{})), DFHalf(), target);
      if constexpr (kParts<T> == 2) hn::StoreU(narrow(ToDoubles<1>(v, T{})), DFHalf(), target + kHalf);
    }
  };
  for (; count >= kLanes; count -= kLanes, from += kLanes * L::kSize, to += kLanes)
    convert(L::Load(from), to);
  if (count != 0) {
    float converted[kLanes];
    convert(LoadFew<L>(from, count), converted);
    std::memcpy(to, converted, count * sizeof(float));
  }
}

// ---- Difference from an earlier value ----

template <typename Bits>
HWY_INLINE std::uint64_t CountChanged(const std::byte* a, const std::byte* b, std::size_t count) {
  std::uint64_t changed = 0;
  while (count != 0) {
    const auto part = static_cast<std::uint32_t>(count < 4096 ? count : 4096);
    std::uint32_t differ = 0;  // narrow, so that the loop vectorises well
    for (std::uint32_t i = 0; i < part; ++i) {
      Bits x, y;
      std::memcpy(&x, a + i * sizeof(Bits), sizeof(Bits));
      std::memcpy(&y, b + i * sizeof(Bits), sizeof(Bits));
      differ += x != y ? 1 : 0;
    }
    changed += differ;
    count -= part;
    a += part * sizeof(Bits);
    b += part * sizeof(Bits);
  }
  return changed;
}

template <class L>
void Differ(const std::byte* current, const std::byte* previous, std::size_t count,
            Difference* into) noexcept {
  using T = typename L::T;
  using Bits =
      std::conditional_t<L::kSize == 1, std::uint8_t,
                         std::conditional_t<L::kSize == 2, std::uint16_t,
                                            std::conditional_t<L::kSize == 4, std::uint32_t, std::uint64_t>>>;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  into->changed_count += CountChanged<Bits>(current, previous, count);
  const DD dd;
  VD l1[2], sq[2], top[2], previous_l1[2], previous_sq[2];
  for (std::size_t k = 0; k < 2; ++k) l1[k] = sq[k] = top[k] = previous_l1[k] = previous_sq[k] = hn::Zero(dd);
  const auto add = [&](VD x, VD y, std::size_t k) HWY_ATTR {
    VD d = hn::Abs(hn::Sub(x, y));
    d = hn::IfThenElseZero(hn::IsFinite(d), d);  // omits distances from or to non-finite values
    y = hn::Abs(y);
    y = hn::IfThenElseZero(hn::IsFinite(y), y);
    l1[k] = hn::Add(l1[k], d);
    sq[k] = hn::MulAdd(d, d, sq[k]);
    top[k] = hn::Max(top[k], d);
    previous_l1[k] = hn::Add(previous_l1[k], y);
    previous_sq[k] = hn::MulAdd(y, y, previous_sq[k]);
  };
  const auto add_lanes = [&](auto x, auto y) HWY_ATTR {
    add(ToDoubles<0>(x, T{}), ToDoubles<0>(y, T{}), 0);
    if constexpr (kParts<T> == 2) add(ToDoubles<1>(x, T{}), ToDoubles<1>(y, T{}), 1);
  };
  for (; count >= kLanes; count -= kLanes, current += kLanes * L::kSize, previous += kLanes * L::kSize) {
    add_lanes(L::Load(current), L::Load(previous));
  }
  if (count != 0) {
    const hn::ScalableTag<T> d;
    const auto mask = hn::FirstN(d, count);
    add_lanes(hn::IfThenElseZero(mask, LoadFew<L>(current, count)),
              hn::IfThenElseZero(mask, LoadFew<L>(previous, count)));
  }
  const auto total = [dd](const VD* v)
                         HWY_ATTR { return hn::GetLane(hn::SumOfLanes(dd, hn::Add(v[0], v[1]))); };
  into->l1 += total(l1);
  into->sum_sq += total(sq);
  into->previous_l1 += total(previous_l1);
  into->previous_sum_sq += total(previous_sq);
  const double largest = hn::GetLane(hn::MaxOfLanes(dd, hn::Max(top[0], top[1])));
  into->max = largest > into->max ? largest : into->max;
}

// ---- Units ----

using DU64 = hn::Rebind<std::uint64_t, DD>;

HWY_INLINE hn::Vec<DU64> OneWhere(hn::Mask<DD> mask) {
  const DU64 d64;
  return hn::And(hn::VecFromMask(d64, hn::RebindMask(d64, mask)), hn::Set(d64, 1));
}

void UnitsAcross(const double* values, std::size_t count, std::uint64_t* positive, std::uint64_t* zero,
                 double* sum) noexcept {
  const DD dd;
  const DU64 d64;
  constexpr std::size_t kLanes = hn::MaxLanes(DD());
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VD v = hn::LoadU(dd, values + i);
    const VD finite = hn::IfThenElseZero(hn::IsFinite(v), v);
    hn::StoreU(hn::Add(hn::LoadU(d64, positive + i), OneWhere(hn::Gt(finite, hn::Zero(dd)))), d64,
               positive + i);
    hn::StoreU(hn::Add(hn::LoadU(d64, zero + i), OneWhere(hn::Eq(v, hn::Zero(dd)))), d64, zero + i);
    hn::StoreU(hn::Add(hn::LoadU(dd, sum + i), finite), dd, sum + i);
  }
  ScalarKernels()->units_across(values + i, count - i, positive + i, zero + i, sum + i);
}

void UnitsWithin(const double* values, std::size_t count, std::uint64_t* positive, std::uint64_t* zero,
                 double* sum) noexcept {
  const DD dd;
  const DU64 d64;
  constexpr std::size_t kLanes = hn::MaxLanes(DD());
  auto positives = hn::Zero(d64), zeros = hn::Zero(d64);
  VD total = hn::Zero(dd);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VD v = hn::LoadU(dd, values + i);
    const VD finite = hn::IfThenElseZero(hn::IsFinite(v), v);
    positives = hn::Add(positives, OneWhere(hn::Gt(finite, hn::Zero(dd))));
    zeros = hn::Add(zeros, OneWhere(hn::Eq(v, hn::Zero(dd))));
    total = hn::Add(total, finite);
  }
  *positive += hn::GetLane(hn::SumOfLanes(d64, positives));
  *zero += hn::GetLane(hn::SumOfLanes(d64, zeros));
  *sum += hn::GetLane(hn::SumOfLanes(dd, total));
  ScalarKernels()->units_within(values + i, count - i, positive, zero, sum);
}

#endif  // a SIMD target
}  // namespace luff::tensor::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // guard

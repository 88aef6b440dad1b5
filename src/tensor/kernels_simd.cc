// The kernels for every SIMD target, written once with Highway and compiled once per target by foreach_target.h.
//
// One pass gives everything. A loader turns elements of a dtype into lanes of float, double, int32, uint32 or int64;
// min and max stay in that width, sums are taken in float64 lanes, block by block: for n elements the error of a sum is
// at most (160 + n / 2^15) * 2^-53 of the sum of magnitudes, in practice some 1e-15, so that a variance is right even
// for mean 1e6 and deviation 1. The fast loop assumes that all
// elements are finite and finds out afterwards: a sum of squares of finite values below 2^512 is finite, one with a
// NaN or Inf is not. A block in which it is not is done again, lane by lane masked.
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tensor/element.h"
#include "tensor/kernel_table.h"

// Targets: SSE4, AVX2, AVX-512 (AVX3), NEON. Where none fits, kernels_scalar.cc serves.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels_simd.cc"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace luff::tensor::HWY_NAMESPACE {

// The baseline that Highway calls SCALAR or EMU128 is not used.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DD = hn::ScalableTag<double>;
using DFHalf = hn::Rebind<float, DD>;  // as many floats as a vector of doubles has lanes
using VF = hn::Vec<DF>;
using VD = hn::Vec<DD>;

template <typename T>
HWY_INLINE const T* As(const std::byte* from) {
  return reinterpret_cast<const T*>(from);
}

// ---- Loaders: T is the lane, kSize the bytes of one element in memory. ----

struct Float32 {
  using T = float;
  static constexpr std::size_t kSize = 4;
  static HWY_INLINE VF Load(const std::byte* from) { return hn::LoadU(DF(), As<float>(from)); }
};

struct BFloat16 {
  using T = float;
  static constexpr std::size_t kSize = 2;
  static HWY_INLINE VF Load(const std::byte* from) {
    const hn::Rebind<std::uint16_t, DF> d16;
    const hn::Rebind<std::uint32_t, DF> d32;
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, As<std::uint16_t>(from)))));
  }
};

struct Float16 {
  using T = float;
  static constexpr std::size_t kSize = 2;
  static HWY_INLINE VF Load(const std::byte* from) {
#if HWY_TARGET <= HWY_AVX2
    const hn::Rebind<hwy::float16_t, DF> d16;
    return hn::PromoteTo(DF(), hn::LoadU(d16, As<hwy::float16_t>(from)));
#else
    // Exponent and mantissa moved into place are 2^112 times too small, subnormals included; the product is exact.
    const hn::Rebind<std::uint16_t, DF> d16;
    const hn::Rebind<std::uint32_t, DF> d32;
    const auto half = hn::PromoteTo(d32, hn::LoadU(d16, As<std::uint16_t>(from)));
    const auto magnitude = hn::And(half, hn::Set(d32, 0x7fffu));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(half, magnitude));
    const auto scaled = hn::Mul(hn::BitCast(DF(), hn::ShiftLeft<13>(magnitude)), hn::Set(DF(), 0x1p112f));
    const hn::RebindToSigned<decltype(d32)> di32;
    const auto special = hn::Gt(hn::BitCast(di32, magnitude), hn::Set(di32, 0x7bff));
    const auto top = hn::IfThenElseZero(hn::RebindMask(d32, special), hn::Set(d32, 0x7f800000u));
    return hn::BitCast(DF(), hn::Or(hn::Or(hn::BitCast(d32, scaled), top), sign));
#endif
  }
};

template <const Float8Table& kTable>
struct Float8 {
  using T = float;
  static constexpr std::size_t kSize = 1;
  static HWY_INLINE VF Load(const std::byte* from) {
    const hn::Rebind<std::uint8_t, DF> d8;
    const hn::Rebind<std::int32_t, DF> d32;
    return hn::GatherIndex(DF(), kTable.data(), hn::PromoteTo(d32, hn::LoadU(d8, As<std::uint8_t>(from))));
  }
};

struct Float64 {
  using T = double;
  static constexpr std::size_t kSize = 8;
  static HWY_INLINE VD Load(const std::byte* from) { return hn::LoadU(DD(), As<double>(from)); }
};

struct Complex64 {
  using T = double;
  static constexpr std::size_t kSize = 8;
  static HWY_INLINE VD Load(const std::byte* from) {
    hn::Vec<DFHalf> re, im;
    hn::LoadInterleaved2(DFHalf(), As<float>(from), re, im);
    const VD r = hn::PromoteTo(DD(), re);
    const VD i = hn::PromoteTo(DD(), im);
    return hn::Sqrt(hn::MulAdd(r, r, hn::Mul(i, i)));  // squares of floats fit a double
  }
};

struct Complex128 {
  using T = double;
  static constexpr std::size_t kSize = 16;
  static HWY_INLINE VD Load(const std::byte* from) {
    VD re, im;
    hn::LoadInterleaved2(DD(), As<double>(from), re, im);
    re = hn::Abs(re);
    im = hn::Abs(im);
    // Squares of very large or small parts leave the range of a double: scale by a power of two, exactly.
    const VD big = hn::IfThenElse(hn::Gt(im, re), im, re);
    const VD one = hn::Set(DD(), 1.0);
    const auto huge = hn::Gt(big, hn::Set(DD(), 0x1p500));
    const auto tiny = hn::Lt(big, hn::Set(DD(), 0x1p-400));
    const VD down = hn::IfThenElse(huge, hn::Set(DD(), 0x1p-600), hn::IfThenElse(tiny, hn::Set(DD(), 0x1p600), one));
    const VD up = hn::IfThenElse(huge, hn::Set(DD(), 0x1p600), hn::IfThenElse(tiny, hn::Set(DD(), 0x1p-600), one));
    re = hn::Mul(re, down);
    im = hn::Mul(im, down);
    return hn::Mul(hn::Sqrt(hn::MulAdd(re, re, hn::Mul(im, im))), up);
  }
};

/// Integers of up to 32 bits, promoted to int32 lanes (uint32 and int64 stay what they are).
template <typename Element>
struct Integer {
  using T = std::conditional_t<sizeof(Element) == 8 || std::is_same_v<Element, std::uint32_t>, Element, std::int32_t>;
  static constexpr std::size_t kSize = sizeof(Element);
  static HWY_INLINE auto Load(const std::byte* from) {
    const hn::ScalableTag<T> d;
    const hn::Rebind<Element, decltype(d)> narrow;
    const auto v = hn::LoadU(narrow, As<Element>(from));
    if constexpr (std::is_same_v<T, Element>) return v;
    else return hn::PromoteTo(d, v);
  }
};

struct Bool {
  using T = std::int32_t;
  static constexpr std::size_t kSize = 1;
  static HWY_INLINE auto Load(const std::byte* from) {
    const hn::ScalableTag<T> d;
    return hn::Min(Integer<std::uint8_t>::Load(from), hn::Set(d, 1));
  }
};

// ---- Lanes to float64 ----

/// How many vectors of doubles one vector of T makes.
template <typename T>
inline constexpr std::size_t kParts = sizeof(double) / sizeof(T);

template <std::size_t kPart, class V, class T>
HWY_INLINE VD ToDoubles(V v, T /*lane*/) {
  if constexpr (std::is_same_v<T, double>) {
    return v;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return hn::ConvertTo(DD(), v);
  } else {
    const hn::Rebind<T, DD> half;
    const auto part = [&]() HWY_ATTR {
      if constexpr (kPart == 0) return hn::LowerHalf(half, v);
      else return hn::UpperHalf(half, v);
    }();
    if constexpr (std::is_same_v<T, std::uint32_t>) {
      // 2^52 + x is exact; its low bits are x.
      const hn::Rebind<std::uint64_t, DD> d64;
      const auto bits = hn::Or(hn::PromoteTo(d64, part), hn::Set(d64, 0x4330000000000000u));
      return hn::Sub(hn::BitCast(DD(), bits), hn::Set(DD(), 0x1p52));
    } else {
      return hn::PromoteTo(DD(), part);
    }
  }
}

// ---- The fused pass ----

template <class L>
class Pass {
  using T = typename L::T;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  using DCount = hn::RebindToSigned<D>;  // counters as wide as T
  using VCount = hn::Vec<DCount>;
  static constexpr bool kFloating = std::is_floating_point_v<T>;
  static constexpr std::size_t kLanes = hn::MaxLanes(D());
  // Independent chains of additions hide their latency; 16 registers allow two of each sum, 32 allow four.
  static constexpr std::size_t kChains = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM ? 4 : 2;
  static constexpr std::size_t kVectors = kChains == 4 && kParts<T> == 2 ? 4 : (kParts<T> == 2 ? 2 : 4);
  static constexpr std::size_t kStep = kVectors * kLanes;
  static constexpr std::size_t kBlock = 4096 / kStep * kStep;
  // Bytes of one step in memory, copied by full vectors where it has that many.
  using DCopy = hn::CappedTag<std::uint8_t, kStep * L::kSize>;
  static constexpr std::size_t kCopyLanes = hn::MaxLanes(DCopy());

 public:
  Pass() {
    low_ = hn::Set(D(), kFloating ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max());
    high_ = hn::Set(D(), kFloating ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest());
    zeros_ = hn::Zero(DCount());
    for (std::size_t k = 0; k < kChains; ++k) sum_[k] = sq_[k] = abs_[k] = hn::Zero(DD());
  }

  template <bool kCopy, bool kStream>
  HWY_INLINE void Run(const std::byte* from, std::size_t count, std::byte* to) {
    while (count >= kStep) {
      const std::size_t part = count < kBlock ? count / kStep * kStep : kBlock;
      if (!Fast<kCopy, kStream>(from, part, to)) {
        for (std::size_t i = 0; i < part; i += kLanes) Masked(L::Load(from + i * L::kSize), kLanes);
      }
      from += part * L::kSize;
      if (kCopy) to += part * L::kSize;
      count -= part;
    }
    if (kCopy && count != 0) std::memcpy(to, from, count * L::kSize);
    for (; count >= kLanes; count -= kLanes, from += kLanes * L::kSize) Masked(L::Load(from), kLanes);
    if (count != 0) {
      alignas(64) std::byte rest[kLanes * L::kSize] = {};
      std::memcpy(rest, from, count * L::kSize);
      Masked(L::Load(rest), count);
    }
  }

  void Join(std::size_t count, Summary* into) const {
    const DD dd;
    VD sum = sum_[0], sq = sq_[0], abs = abs_[0];
    for (std::size_t k = 1; k < kChains; ++k) {
      sum = hn::Add(sum, sum_[k]);
      sq = hn::Add(sq, sq_[k]);
      abs = hn::Add(abs, abs_[k]);
    }
    into->count += count;
    into->sum += hn::GetLane(hn::SumOfLanes(dd, sum));
    into->sum_sq += hn::GetLane(hn::SumOfLanes(dd, sq));
    into->abs_sum += hn::GetLane(hn::SumOfLanes(dd, abs));
    into->zero_count += static_cast<std::uint64_t>(hn::GetLane(hn::SumOfLanes(DCount(), zeros_)));
    into->nan_count += nan_;
    into->inf_count += inf_;
    T lows[kLanes], highs[kLanes];
    hn::StoreU(low_, D(), lows);
    hn::StoreU(high_, D(), highs);
    T low = lows[0], high = highs[0];
    for (std::size_t i = 1; i < kLanes; ++i) {
      low = lows[i] < low ? lows[i] : low;
      high = highs[i] > high ? highs[i] : high;
    }
    Widen(low, high, into);
  }

 private:
  static void Widen(T low, T high, Summary* into) {
    if constexpr (kFloating) {
      WidenAs<double>(static_cast<double>(low) + 0.0, static_cast<double>(high) + 0.0, into);
    } else if constexpr (DomainOfLoader() == Domain::kSigned) {
      WidenAs<std::int64_t>(low, high, into);
    } else if (low <= high) {  // uint8, uint16 and bool in int32 lanes: nothing seen would be negative
      WidenAs<std::uint64_t>(static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high), into);
    }
  }
  static constexpr Domain DomainOfLoader() {
    return std::is_same_v<L, Integer<std::int8_t>> || std::is_same_v<L, Integer<std::int16_t>> ||
                   std::is_same_v<L, Integer<std::int32_t>> || std::is_same_v<L, Integer<std::int64_t>>
               ? Domain::kSigned
               : Domain::kUnsigned;
  }
  template <typename B>
  static void WidenAs(B low, B high, Summary* into) {
    if (low < std::bit_cast<B>(into->min_bits)) into->min_bits = std::bit_cast<std::uint64_t>(low);
    if (high > std::bit_cast<B>(into->max_bits)) into->max_bits = std::bit_cast<std::uint64_t>(high);
  }

  /// Adds `count` elements, a multiple of kStep. False, with nothing added, if not all are finite.
  template <bool kCopy, bool kStream>
  HWY_INLINE bool Fast(const std::byte* from, std::size_t count, std::byte* to) {
    const D d;
    const DD dd;
    V low = low_, high = high_;
    VCount zeros = zeros_;
    VD sum[kChains], sq[kChains], abs[kChains];
    for (std::size_t k = 0; k < kChains; ++k) sum[k] = sq[k] = abs[k] = hn::Zero(dd);
    const V none = hn::Zero(d);
    const std::byte* const end = from + count * L::kSize;
    for (; from != end; from += kStep * L::kSize) {
      V v[kVectors];
      for (std::size_t k = 0; k < kVectors; ++k) v[k] = L::Load(from + k * kLanes * L::kSize);
      if constexpr (kCopy) {
        for (std::size_t k = 0; k < kStep * L::kSize; k += kCopyLanes) {
          const auto raw = hn::LoadU(DCopy(), As<std::uint8_t>(from + k));
          if constexpr (kStream && kCopyLanes >= 16) hn::Stream(raw, DCopy(), reinterpret_cast<std::uint8_t*>(to + k));
          else hn::StoreU(raw, DCopy(), reinterpret_cast<std::uint8_t*>(to + k));
        }
        to += kStep * L::kSize;
      }
      for (std::size_t k = 0; k < kVectors; k += 2) {
        low = hn::Min(low, hn::Min(v[k], v[k + 1]));
        high = hn::Max(high, hn::Max(v[k], v[k + 1]));
      }
      for (std::size_t k = 0; k < kVectors; ++k) {
        const auto zero = hn::RebindMask(DCount(), hn::Eq(v[k], none));
        zeros = hn::Sub(zeros, hn::VecFromMask(DCount(), zero));
        AddDoubles<0>(v[k], sum[(k * kParts<T>) % kChains], sq[(k * kParts<T>) % kChains],
                      abs[(k * kParts<T>) % kChains]);
        if constexpr (kParts<T> == 2) {
          AddDoubles<1>(v[k], sum[(k * 2 + 1) % kChains], sq[(k * 2 + 1) % kChains], abs[(k * 2 + 1) % kChains]);
        }
      }
    }
    if constexpr (kFloating) {
      VD total = sq[0];
      for (std::size_t k = 1; k < kChains; ++k) total = hn::Add(total, sq[k]);
      if (HWY_UNLIKELY(!hn::AllTrue(dd, hn::Lt(total, hn::Set(dd, std::numeric_limits<double>::infinity()))))) {
        return false;
      }
    }
    low_ = low;
    high_ = high;
    zeros_ = zeros;
    // A block starts at zero and is added as a whole: errors grow with the number of blocks, not of elements.
    for (std::size_t k = 0; k < kChains; ++k) {
      sum_[k] = hn::Add(sum_[k], sum[k]);
      sq_[k] = hn::Add(sq_[k], sq[k]);
      abs_[k] = hn::Add(abs_[k], abs[k]);
    }
    return true;
  }

  template <std::size_t kPart>
  static HWY_INLINE void AddDoubles(V v, VD& sum, VD& sq, VD& abs) {
    const VD x = ToDoubles<kPart>(v, T{});
    sum = hn::Add(sum, x);
    sq = hn::MulAdd(x, x, sq);
    abs = hn::Add(abs, hn::Abs(x));
  }

  /// Adds the first `valid` lanes of `v`, the others being zero; any value may be non-finite.
  HWY_INLINE void Masked(V v, std::size_t valid) {
    const D d;
    auto counted = hn::FirstN(d, valid);
    if constexpr (kFloating) {
      const auto finite = hn::And(counted, hn::IsFinite(v));
      if (HWY_UNLIKELY(hn::CountTrue(d, finite) != valid)) {
        const std::size_t nan = hn::CountTrue(d, hn::IsNaN(v));
        nan_ += nan;
        inf_ += valid - nan - hn::CountTrue(d, finite);
        v = hn::IfThenElseZero(finite, v);
        counted = finite;
      }
    }
    low_ = hn::Min(low_, hn::IfThenElse(counted, v, low_));
    high_ = hn::Max(high_, hn::IfThenElse(counted, v, high_));
    const auto zero = hn::And(counted, hn::Eq(v, hn::Zero(d)));
    zeros_ = hn::Sub(zeros_, hn::VecFromMask(DCount(), hn::RebindMask(DCount(), zero)));
    AddDoubles<0>(v, sum_[0], sq_[0], abs_[0]);
    if constexpr (kParts<T> == 2) AddDoubles<1>(v, sum_[1], sq_[1], abs_[1]);
  }

  V low_, high_;
  VCount zeros_;
  VD sum_[kChains], sq_[kChains], abs_[kChains];
  std::uint64_t nan_ = 0;
  std::uint64_t inf_ = 0;
};

template <class L>
void Summarize(const std::byte* from, std::size_t count, std::byte* to, bool stream, Summary* into) noexcept {
  // Counters of zeros are 32 bits wide in lanes of 32 bits: join before they could wrap.
  constexpr std::size_t kMost = std::size_t{1} << 30;
  while (count != 0) {
    const std::size_t part = count < kMost ? count : kMost;
    Pass<L> pass;
    std::size_t head = 0;
    if (to == nullptr) {
      pass.template Run<false, false>(from, part, nullptr);
    } else if (!stream) {
      pass.template Run<true, false>(from, part, to);
    } else {
      // Streaming stores must be aligned; elements before the first boundary are copied as usual.
      const std::size_t off = reinterpret_cast<std::uintptr_t>(to) % HWY_MAX_BYTES;
      const std::size_t gap = off == 0 ? 0 : HWY_MAX_BYTES - off;
      head = gap / L::kSize;
      if (gap % L::kSize != 0 || head >= part) {
        pass.template Run<true, false>(from, part, to);
      } else {
        pass.template Run<true, false>(from, head, to);
        pass.template Run<true, true>(from + head * L::kSize, part - head, to + head * L::kSize);
        hwy::FlushStream();
      }
      to += part * L::kSize;
    }
    if (to != nullptr && !stream) to += part * L::kSize;
    pass.Join(part, into);
    from += part * L::kSize;
    count -= part;
  }
}

// ---- Conversions ----

template <class L>
void ToDouble(const std::byte* from, std::size_t count, double* to) noexcept {
  using T = typename L::T;
  const DD dd;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr std::size_t kHalf = hn::MaxLanes(DD());
  const auto convert = [dd](const std::byte* at, double* target) HWY_ATTR {
    const auto v = L::Load(at);
    hn::StoreU(ToDoubles<0>(v, T{}), dd, target);
    if constexpr (kParts<T> == 2) hn::StoreU(ToDoubles<1>(v, T{}), dd, target + kHalf);
  };
  for (; count >= kLanes; count -= kLanes, from += kLanes * L::kSize, to += kLanes) convert(from, to);
  if (count != 0) {
    alignas(64) std::byte rest[kLanes * L::kSize] = {};
    double converted[kLanes];
    std::memcpy(rest, from, count * L::kSize);
    convert(rest, converted);
    std::memcpy(to, converted, count * sizeof(double));
  }
}

template <class L>
void ToFloat(const std::byte* from, std::size_t count, float* to) noexcept {
  using T = typename L::T;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr std::size_t kHalf = hn::MaxLanes(DD());
  const auto convert = [](const std::byte* at, float* target) HWY_ATTR {
    const auto v = L::Load(at);
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
  for (; count >= kLanes; count -= kLanes, from += kLanes * L::kSize, to += kLanes) convert(from, to);
  if (count != 0) {
    alignas(64) std::byte rest[kLanes * L::kSize] = {};
    float converted[kLanes];
    std::memcpy(rest, from, count * L::kSize);
    convert(rest, converted);
    std::memcpy(to, converted, count * sizeof(float));
  }
}

template <class L>
void Enter(KernelTable* table, DType dtype) {
  const auto i = static_cast<std::size_t>(dtype);
  table->summarize[i] = &Summarize<L>;
  table->to_double[i] = &ToDouble<L>;
  table->to_float[i] = &ToFloat<L>;
}

KernelTable MakeTable(const char* name, std::string_view setting, HashKernel hash) {
  KernelTable table = *ScalarKernels();  // uint64 and complex32 stay scalar
  table.name = name;
  table.setting = setting;
  table.hash = hash;
  Enter<Bool>(&table, DType::kBool);
  Enter<Integer<std::uint8_t>>(&table, DType::kUInt8);
  Enter<Integer<std::uint8_t>>(&table, DType::kString);
  Enter<Integer<std::int8_t>>(&table, DType::kInt8);
  Enter<Integer<std::uint16_t>>(&table, DType::kUInt16);
  Enter<Integer<std::int16_t>>(&table, DType::kInt16);
  Enter<Integer<std::uint32_t>>(&table, DType::kUInt32);
  Enter<Integer<std::int32_t>>(&table, DType::kInt32);
  Enter<Integer<std::int64_t>>(&table, DType::kInt64);
  Enter<Float16>(&table, DType::kFloat16);
  Enter<BFloat16>(&table, DType::kBFloat16);
  Enter<Float32>(&table, DType::kFloat32);
  Enter<Float64>(&table, DType::kFloat64);
  Enter<Complex64>(&table, DType::kComplex64);
  Enter<Complex128>(&table, DType::kComplex128);
  Enter<Float8<kFloat8E4M3FN>>(&table, DType::kFloat8E4M3FN);
  Enter<Float8<kFloat8E5M2>>(&table, DType::kFloat8E5M2);
  Enter<Float8<kFloat8E4M3FNUZ>>(&table, DType::kFloat8E4M3FNUZ);
  Enter<Float8<kFloat8E5M2FNUZ>>(&table, DType::kFloat8E5M2FNUZ);
  Enter<Float8<kFloat8E8M0FNU>>(&table, DType::kFloat8E8M0FNU);
  return table;
}

#endif  // a SIMD target

}  // namespace luff::tensor::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luff::tensor {

// Tables are made on first use, by a CPU that dispatch.cc has found able to run the code that makes them.
#if HWY_TARGETS & HWY_SSE4
const KernelTable* Sse4Kernels() noexcept {
  static const KernelTable table = N_SSE4::MakeTable("SSE4", "sse4", &HashBaseline);
  return &table;
}
#else
const KernelTable* Sse4Kernels() noexcept { return nullptr; }
#endif

#if HWY_TARGETS & HWY_AVX2
const KernelTable* Avx2Kernels() noexcept {
  static const KernelTable table = N_AVX2::MakeTable("AVX2", "avx2", &HashAvx2);
  return &table;
}
#else
const KernelTable* Avx2Kernels() noexcept { return nullptr; }
#endif

#if HWY_TARGETS & HWY_AVX3
const KernelTable* Avx3Kernels() noexcept {
  static const KernelTable table = N_AVX3::MakeTable("AVX3", "avx3", &HashAvx3);
  return &table;
}
#else
const KernelTable* Avx3Kernels() noexcept { return nullptr; }
#endif

#if HWY_TARGETS & HWY_NEON
const KernelTable* NeonKernels() noexcept {
  static const KernelTable table = N_NEON::MakeTable("NEON", "neon", &HashBaseline);
  return &table;
}
#else
const KernelTable* NeonKernels() noexcept { return nullptr; }
#endif

}  // namespace luff::tensor
#endif  // HWY_ONCE

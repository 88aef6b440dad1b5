// Elements of a dtype as lanes, and lanes as float64.
// Included once per SIMD target by kernels_simd.cc; the guard flips with each.
#if defined(LUFF_TENSOR_LOADERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUFF_TENSOR_LOADERS_INL_H_
#undef LUFF_TENSOR_LOADERS_INL_H_
#else
#define LUFF_TENSOR_LOADERS_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "tensor/element.h"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace luff::tensor::HWY_NAMESPACE {
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
  static constexpr bool kPlain = true;  // the lane is the element
  static constexpr std::size_t kSize = 4;
  static HWY_INLINE VF Load(const std::byte* from) { return hn::LoadU(DF(), As<float>(from)); }
};

struct BFloat16 {
  using T = float;
  static constexpr bool kPlain = false;
  static constexpr std::size_t kSize = 2;
  static HWY_INLINE VF Load(const std::byte* from) {
    const hn::Rebind<std::uint16_t, DF> d16;
    const hn::Rebind<std::uint32_t, DF> d32;
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, As<std::uint16_t>(from)))));
  }
};

/// The float16 numbers at `from` as lanes of `D`.
template <class D>
HWY_INLINE hn::Vec<D> HalvesToFloats(D df, hn::Vec<hn::Rebind<std::uint16_t, D>> bits) {
#if HWY_TARGET <= HWY_AVX2
  return hn::PromoteTo(df, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
#else
  // Exponent and mantissa moved into place are 2^112 times too small, subnormals included; the product is
  // exact.
  const hn::Rebind<std::uint32_t, D> d32;
  const auto half = hn::PromoteTo(d32, bits);
  const auto magnitude = hn::And(half, hn::Set(d32, 0x7fffu));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(half, magnitude));
  const auto scaled = hn::Mul(hn::BitCast(df, hn::ShiftLeft<13>(magnitude)), hn::Set(df, 0x1p112f));
  const hn::RebindToSigned<decltype(d32)> di32;
  const auto special = hn::Gt(hn::BitCast(di32, magnitude), hn::Set(di32, 0x7bff));
  const auto top = hn::IfThenElseZero(hn::RebindMask(d32, special), hn::Set(d32, 0x7f800000u));
  return hn::BitCast(df, hn::Or(hn::Or(hn::BitCast(d32, scaled), top), sign));
#endif
}

struct Float16 {
  using T = float;
  static constexpr bool kPlain = false;
  static constexpr std::size_t kSize = 2;
  static HWY_INLINE VF Load(const std::byte* from) {
    return HalvesToFloats(DF(), hn::LoadU(hn::Rebind<std::uint16_t, DF>(), As<std::uint16_t>(from)));
  }
};

template <const Float8Table& kTable>
struct Float8 {
  using T = float;
  static constexpr bool kPlain = false;
  static constexpr std::size_t kSize = 1;
  static HWY_INLINE VF Load(const std::byte* from) {
    const hn::Rebind<std::uint8_t, DF> d8;
    const hn::Rebind<std::int32_t, DF> d32;
    return hn::GatherIndex(DF(), kTable.data(), hn::PromoteTo(d32, hn::LoadU(d8, As<std::uint8_t>(from))));
  }
};

struct Float64 {
  using T = double;
  static constexpr bool kPlain = true;
  static constexpr std::size_t kSize = 8;
  static HWY_INLINE VD Load(const std::byte* from) { return hn::LoadU(DD(), As<double>(from)); }
};

struct Complex32 {
  using T = double;
  static constexpr bool kPlain = false;
  static constexpr std::size_t kSize = 4;
  static HWY_INLINE VD Load(const std::byte* from) {
    // One complex number is one 32-bit lane: the real part below, the imaginary part above.
    const hn::Rebind<std::uint32_t, DD> d32;
    const hn::Rebind<std::uint16_t, DD> d16;
    const auto both = hn::LoadU(d32, As<std::uint32_t>(from));
    const auto low = hn::And(both, hn::Set(d32, 0xffffu));
    const VD r = hn::PromoteTo(DD(), HalvesToFloats(DFHalf(), Narrow(d16, low)));
    const VD i = hn::PromoteTo(DD(), HalvesToFloats(DFHalf(), Narrow(d16, hn::ShiftRight<16>(both))));
    return hn::Sqrt(hn::MulAdd(r, r, hn::Mul(i, i)));
  }
  template <class D16, class V32>
  static HWY_INLINE hn::Vec<D16> Narrow(D16 d16, V32 v) {
    return hn::TruncateTo(d16, v);
  }
};

struct Complex64 {
  using T = double;
  static constexpr bool kPlain = false;
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
  static constexpr bool kPlain = false;
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
    const VD down =
        hn::IfThenElse(huge, hn::Set(DD(), 0x1p-600), hn::IfThenElse(tiny, hn::Set(DD(), 0x1p600), one));
    const VD up =
        hn::IfThenElse(huge, hn::Set(DD(), 0x1p600), hn::IfThenElse(tiny, hn::Set(DD(), 0x1p-600), one));
    re = hn::Mul(re, down);
    im = hn::Mul(im, down);
    return hn::Mul(hn::Sqrt(hn::MulAdd(re, re, hn::Mul(im, im))), up);
  }
};

/// Integers. Those of up to 32 bits are promoted to int32 lanes; uint32 and 64-bit types keep their own.
template <typename Element>
struct Integer {
  using T = std::conditional_t<sizeof(Element) == 8 || std::is_same_v<Element, std::uint32_t>, Element,
                               std::int32_t>;
  static constexpr bool kPlain = std::is_same_v<T, Element>;
  static constexpr bool kSigned = std::is_signed_v<Element>;
  static constexpr std::size_t kSize = sizeof(Element);
  static HWY_INLINE auto Load(const std::byte* from) {
    const hn::ScalableTag<T> d;
    const hn::Rebind<Element, decltype(d)> narrow;
    const auto v = hn::LoadU(narrow, As<Element>(from));
    if constexpr (std::is_same_v<T, Element>)
      return v;
    else
      return hn::PromoteTo(d, v);
  }
};

struct Bool {
  using T = std::int32_t;
  static constexpr bool kPlain = false;
  static constexpr bool kSigned = false;
  static constexpr std::size_t kSize = 1;
  static HWY_INLINE auto Load(const std::byte* from) {
    const hn::ScalableTag<T> d;
    return hn::Min(Integer<std::uint8_t>::Load(from), hn::Set(d, 1));
  }
};

// ---- Lanes to float64 ----

/// Number of vectors of doubles that one vector of T becomes.
template <typename T>
inline constexpr std::size_t kParts = sizeof(double) / sizeof(T);

template <std::size_t kPart, class V, class T>
HWY_INLINE VD ToDoubles(V v, T /*lane*/) {
  if constexpr (std::is_same_v<T, double>) {
    return v;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return hn::ConvertTo(DD(), v);
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    // The upper half as 2^84 + high * 2^32 and the lower as 2^52 + low are exact; only the last sum rounds.
    const hn::Rebind<std::uint64_t, DD> d64;
    const auto high = hn::Or(hn::ShiftRight<32>(v), hn::Set(d64, 0x4530000000000000u));
    const auto low = hn::Or(hn::And(v, hn::Set(d64, 0xffffffffu)), hn::Set(d64, 0x4330000000000000u));
    return hn::Add(hn::Sub(hn::BitCast(DD(), high), hn::Set(DD(), 0x1p84 + 0x1p52)), hn::BitCast(DD(), low));
  } else {
    const hn::Rebind<T, DD> half;
    const auto part = [&]() HWY_ATTR {
      if constexpr (kPart == 0)
        return hn::LowerHalf(half, v);
      else
        return hn::UpperHalf(half, v);
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

// ---- Fewer elements than a vector has ----

/// Copies fewer than 512 bytes. The compiler turns memcpy of unknown length into a string instruction here.
HWY_INLINE void CopyFew(const std::byte* from, std::size_t bytes, std::byte* to) {
  const auto copy = [](const std::byte* source, std::byte* target, auto chunk) {
    std::memcpy(&chunk, source, sizeof(chunk));
    std::memcpy(target, &chunk, sizeof(chunk));
  };
  const auto ends = [&](auto chunk) {  // two chunks that may overlap
    copy(from, to, chunk);
    copy(from + bytes - sizeof(chunk), to + bytes - sizeof(chunk), chunk);
  };
  struct Sixteen {
    std::uint64_t low, high;
  };
  if (bytes >= 16) {
    for (std::size_t i = 0; i + 16 <= bytes; i += 16) copy(from + i, to + i, Sixteen{});
    copy(from + bytes - 16, to + bytes - 16, Sixteen{});
  } else if (bytes >= 8) {
    ends(std::uint64_t{});
  } else if (bytes >= 4) {
    ends(std::uint32_t{});
  } else if (bytes >= 2) {
    ends(std::uint16_t{});
  } else if (bytes == 1) {
    *to = *from;
  }
}

/// Loads the first `count` elements at `from`, fewer than a vector of them. The other lanes hold the value of
/// zero bytes.
template <class L>
HWY_INLINE auto LoadFew(const std::byte* from, std::size_t count) {
  using T = typename L::T;
  const hn::ScalableTag<T> d;
#if HWY_TARGET <= HWY_AVX2
  // The processor does not touch masked-out lanes.
  if constexpr (L::kPlain) return hn::MaskedLoad(hn::FirstN(d, count), d, As<T>(from));
#endif
  alignas(64) std::byte rest[hn::MaxLanes(d) * L::kSize] = {};
  CopyFew(from, count * L::kSize, rest);
  return L::Load(rest);
}

#endif  // a SIMD target
}  // namespace luff::tensor::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // guard

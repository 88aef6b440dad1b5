// The kernels for every SIMD target, written once with Highway and compiled once per target by foreach_target.h.
//
// One pass gives everything. A loader turns elements of a dtype into lanes of float, double, int32, uint32 or int64;
// min and max stay in that width. How sums are taken:
//
// - in float64 lanes, block by block. The error for n elements is at most (160 + n / 2^15) * 2^-53 of the sum of
//   magnitudes.
// - lanes of float (float32, float16, bfloat16, float8), from the second block on, in float lanes of at most 16 terms
//   that are then joined in float64: half the instructions. The values are taken relative to a centre when the
//   tensor's mean is large against its deviation, so that the variance keeps its digits (mean 1e6, deviation 1).
//   The error is at most 1.1e-6 of the sum of magnitudes, in practice some 1e-8. Blocks whose squares would leave the
//   range of a float are done again in float64.
//
// Both loops assume that all elements are finite and find out afterwards: a sum of squares of finite values is finite,
// one with a NaN or Inf is not. A block in which it is not is done again, lane by lane masked.
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

struct Float16 {
  using T = float;
  static constexpr bool kPlain = false;
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
  static constexpr bool kPlain = std::is_same_v<T, Element>;
  static constexpr bool kSigned = std::is_signed_v<Element>;
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
  static constexpr bool kPlain = false;
  static constexpr bool kSigned = false;
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

/// Copies fewer than 512 bytes. The compiler's own memcpy of unknown length starts a string instruction here.
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

/// The first `count` elements at `from`, less than a vector of them; the other lanes hold whatever a 0 byte means.
template <class L>
HWY_INLINE auto LoadFew(const std::byte* from, std::size_t count) {
  using T = typename L::T;
  const hn::ScalableTag<T> d;
#if HWY_TARGET <= HWY_AVX2
  // Masked-out lanes are not touched by the processor.
  if constexpr (L::kPlain) return hn::MaskedLoad(hn::FirstN(d, count), d, As<T>(from));
#endif
  alignas(64) std::byte rest[hn::MaxLanes(d) * L::kSize] = {};
  CopyFew(from, count * L::kSize, rest);
  return L::Load(rest);
}

template <class L>
class Pass {
  using T = typename L::T;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  using DCount = hn::RebindToSigned<D>;  // counters as wide as T
  using VCount = hn::Vec<DCount>;
  static constexpr bool kFloating = std::is_floating_point_v<T>;
  static constexpr bool kFloat = std::is_same_v<T, float>;
  static constexpr std::size_t kLanes = hn::MaxLanes(D());
  // Independent chains of additions hide their latency; 16 registers allow two of each sum, 32 allow four.
  static constexpr std::size_t kChains = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM ? 4 : 2;
  static constexpr std::size_t kVectors = kParts<T> == 2 ? kChains : 4;
  static constexpr std::size_t kStep = kVectors * kLanes;
  static constexpr std::size_t kBlock = 4096 / kStep * kStep;
  // Float lanes: 16 terms in each before they are joined, a new centre every 64 blocks.
  static constexpr std::size_t kTerms = 16;
  static constexpr std::size_t kFloatBlock = kTerms * kStep;
  static constexpr std::size_t kFloatBlocks = 64;
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
    if constexpr (kFloat) {
      while (count >= 2 * kFloatBlock) {
        const std::size_t blocks = count / kFloatBlock < kFloatBlocks ? count / kFloatBlock : kFloatBlocks;
        RunCentred<kCopy, kStream>(from, blocks, to);
        from += blocks * kFloatBlock * L::kSize;
        if (kCopy) to += blocks * kFloatBlock * L::kSize;
        count -= blocks * kFloatBlock;
      }
    }
    while (count >= kStep) {
      const std::size_t part = count < kBlock ? count / kStep * kStep : kBlock;
      AddBlock<kCopy, kStream>(from, part, to);
      from += part * L::kSize;
      if (kCopy) to += part * L::kSize;
      count -= part;
    }
    if (kCopy) CopyFew(from, count * L::kSize, to);
    for (; count >= kLanes; count -= kLanes, from += kLanes * L::kSize) Masked(L::Load(from), kLanes);
    if (count != 0) Masked(LoadFew<L>(from, count), count);
  }

  HWY_INLINE void AddOne(const std::byte* from) { Masked(LoadFew<L>(from, 1), 1); }

  HWY_INLINE void Join(std::size_t count, Summary* into) const {
    into->count += count;
    into->sum += Total(sum_) + centred_sum_;
    into->sum_sq += Total(sq_) + centred_sq_;
    into->abs_sum += Total(abs_);
    into->zero_count += static_cast<std::uint64_t>(hn::GetLane(hn::SumOfLanes(DCount(), zeros_)));
    into->nan_count += nan_;
    into->inf_count += inf_;
    Widen(hn::GetLane(hn::MinOfLanes(D(), low_)), hn::GetLane(hn::MaxOfLanes(D(), high_)), into);
  }

 private:
  static HWY_INLINE double Total(const VD* v) {
    VD total = v[0];
    for (std::size_t k = 1; k < kChains; ++k) total = hn::Add(total, v[k]);
    return hn::GetLane(hn::SumOfLanes(DD(), total));
  }

  static HWY_INLINE void Widen(T low, T high, Summary* into) {
    if constexpr (kFloating) {
      // Adding 0 makes +0 of -0, so that all targets agree.
      WidenAs<double>(static_cast<double>(low) + 0.0, static_cast<double>(high) + 0.0, into);
    } else if constexpr (L::kSigned) {
      WidenAs<std::int64_t>(low, high, into);
    } else if (low <= high) {  // in int32 lanes the bounds of nothing would turn into large unsigned ones
      WidenAs<std::uint64_t>(static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high), into);
    }
  }
  template <typename B>
  static HWY_INLINE void WidenAs(B low, B high, Summary* into) {
    if (low < std::bit_cast<B>(into->min_bits)) into->min_bits = std::bit_cast<std::uint64_t>(low);
    if (high > std::bit_cast<B>(into->max_bits)) into->max_bits = std::bit_cast<std::uint64_t>(high);
  }

  /// Loads one step, and copies it.
  template <bool kCopy, bool kStream>
  static HWY_INLINE void LoadStep(const std::byte* from, std::byte*& to, V* v) {
    for (std::size_t k = 0; k < kVectors; ++k) v[k] = L::Load(from + k * kLanes * L::kSize);
    if constexpr (kCopy) {
      for (std::size_t k = 0; k < kStep * L::kSize; k += kCopyLanes) {
        const auto raw = hn::LoadU(DCopy(), As<std::uint8_t>(from + k));
        // Highway streams 16 bytes at least.
        if constexpr (kStream && kCopyLanes >= 16) hn::Stream(raw, DCopy(), reinterpret_cast<std::uint8_t*>(to + k));
        else hn::StoreU(raw, DCopy(), reinterpret_cast<std::uint8_t*>(to + k));
      }
      to += kStep * L::kSize;
    }
  }

  static HWY_INLINE void Bound(const V* v, V& low, V& high, VCount& zeros) {
    for (std::size_t k = 0; k < kVectors; k += 2) {
      low = hn::Min(low, hn::Min(v[k], v[k + 1]));
      high = hn::Max(high, hn::Max(v[k], v[k + 1]));
    }
    for (std::size_t k = 0; k < kVectors; ++k) {
      const auto zero = hn::RebindMask(DCount(), hn::Eq(v[k], hn::Zero(D())));
      zeros = hn::Sub(zeros, hn::VecFromMask(DCount(), zero));
    }
  }

  /// Adds `count` elements, a multiple of kStep, finite or not.
  template <bool kCopy, bool kStream>
  HWY_INLINE void AddBlock(const std::byte* from, std::size_t count, std::byte* to) {
    if (!AddFinite<kCopy, kStream>(from, count, to)) {
      for (std::size_t i = 0; i < count; i += kLanes) Masked(L::Load(from + i * L::kSize), kLanes);
    }
  }

  /// Adds `count` elements, a multiple of kStep. False, with nothing added (but copied), if not all are finite.
  template <bool kCopy, bool kStream>
  HWY_INLINE bool AddFinite(const std::byte* from, std::size_t count, std::byte* to) {
    const DD dd;
    V low = low_, high = high_;
    VCount zeros = zeros_;
    VD sum[kChains], sq[kChains], abs[kChains];
    for (std::size_t k = 0; k < kChains; ++k) sum[k] = sq[k] = abs[k] = hn::Zero(dd);
    const std::byte* const end = from + count * L::kSize;
    for (; from != end; from += kStep * L::kSize) {
      V v[kVectors];
      LoadStep<kCopy, kStream>(from, to, v);
      Bound(v, low, high, zeros);
      for (std::size_t k = 0; k < kVectors; ++k) {
        const std::size_t at = k * kParts<T> % kChains;
        AddDoubles<0>(v[k], sum[at], sq[at], abs[at]);
        if constexpr (kParts<T> == 2) AddDoubles<1>(v[k], sum[at + 1], sq[at + 1], abs[at + 1]);
      }
    }
    if constexpr (kFloating) {
      VD total = sq[0];
      for (std::size_t k = 1; k < kChains; ++k) total = hn::Add(total, sq[k]);
      if (!hn::AllTrue(dd, hn::Lt(total, hn::Set(dd, std::numeric_limits<double>::infinity())))) return false;
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

  /// Adds `blocks` blocks of kFloatBlock elements: the first in float64 lanes, which gives the centre of the others.
  template <bool kCopy, bool kStream>
  HWY_INLINE void RunCentred(const std::byte* from, std::size_t blocks, std::byte* to) {
    const double sum_before = Total(sum_), sq_before = Total(sq_);
    AddBlock<kCopy, kStream>(from, kFloatBlock, to);
    const double mean = (Total(sum_) - sum_before) / static_cast<double>(kFloatBlock);
    const double mean_sq = (Total(sq_) - sq_before) / static_cast<double>(kFloatBlock);
    // Any centre is right; one far from the values would cost digits. Below 2^-30 differences of neighbouring floats
    // could underflow when squared.
    const double size = mean < 0 ? -mean : mean;
    const bool offset = mean * mean > 0.95 * mean_sq && size > 0x1p-30 && size < 0x1p60;
    const float centre = offset ? static_cast<float>(mean) : 0.0f;

    VD sum[2] = {hn::Zero(DD()), hn::Zero(DD())}, sq[2] = {hn::Zero(DD()), hn::Zero(DD())};
    std::size_t accepted = 0;
    for (std::size_t b = 1; b < blocks; ++b) {
      from += kFloatBlock * L::kSize;
      if (kCopy) to += kFloatBlock * L::kSize;
      if (AddFloats<kCopy, kStream>(from, to, centre, sum, sq)) {
        ++accepted;
      } else {
        AddBlock<false, false>(from, kFloatBlock, nullptr);
      }
    }
    const double n = static_cast<double>(accepted * kFloatBlock);
    const double c = static_cast<double>(centre);
    const double deviation = hn::GetLane(hn::SumOfLanes(DD(), hn::Add(sum[0], sum[1])));
    centred_sum_ += deviation + c * n;
    centred_sq_ += hn::GetLane(hn::SumOfLanes(DD(), hn::Add(sq[0], sq[1]))) + 2 * c * deviation + c * c * n;
  }

  /// Adds one block in float lanes, relative to `centre`. False, with nothing added (but copied), if not all are
  /// finite or squares leave the range in which a float keeps its digits.
  template <bool kCopy, bool kStream>
  HWY_INLINE bool AddFloats(const std::byte* from, std::byte* to, float centre, VD* total_sum, VD* total_sq) {
    const D d;
    V low = low_, high = high_;
    VCount zeros = zeros_;
    V sum[kVectors], sq[kVectors], abs[kVectors];
    for (std::size_t k = 0; k < kVectors; ++k) sum[k] = sq[k] = abs[k] = hn::Zero(d);
    const V c = hn::Set(d, centre);
    for (std::size_t i = 0; i < kTerms; ++i, from += kStep * L::kSize) {
      V v[kVectors];
      LoadStep<kCopy, kStream>(from, to, v);
      Bound(v, low, high, zeros);
      for (std::size_t k = 0; k < kVectors; ++k) {
        const V x = hn::Sub(v[k], c);
        sum[k] = hn::Add(sum[k], x);
        sq[k] = hn::MulAdd(x, x, sq[k]);
        abs[k] = hn::Add(abs[k], hn::Abs(v[k]));
      }
    }
    for (std::size_t k = 1; k < kVectors; ++k) {
      sum[0] = hn::Add(sum[0], sum[k]);
      sq[0] = hn::Add(sq[0], sq[k]);
      abs[0] = hn::Add(abs[0], abs[k]);
    }
    // In lanes of all zeros nothing can have been lost; neither can it relative to a centre.
    const V least = hn::Set(d, centre == 0 ? 0x1p-90f : 0.0f);
    const auto kept = hn::Or(hn::Ge(sq[0], least), hn::Eq(abs[0], hn::Zero(d)));
    if (!hn::AllTrue(d, hn::And(kept, hn::Lt(sq[0], hn::Set(d, 0x1p100f))))) return false;
    low_ = low;
    high_ = high;
    zeros_ = zeros;
    total_sum[0] = hn::Add(total_sum[0], ToDoubles<0>(sum[0], T{}));
    total_sum[1] = hn::Add(total_sum[1], ToDoubles<1>(sum[0], T{}));
    total_sq[0] = hn::Add(total_sq[0], ToDoubles<0>(sq[0], T{}));
    total_sq[1] = hn::Add(total_sq[1], ToDoubles<1>(sq[0], T{}));
    abs_[0] = hn::Add(abs_[0], ToDoubles<0>(abs[0], T{}));
    abs_[1] = hn::Add(abs_[1], ToDoubles<1>(abs[0], T{}));
    return true;
  }

  template <std::size_t kPart>
  static HWY_INLINE void AddDoubles(V v, VD& sum, VD& sq, VD& abs) {
    const VD x = ToDoubles<kPart>(v, T{});
    sum = hn::Add(sum, x);
    sq = hn::MulAdd(x, x, sq);
    abs = hn::Add(abs, hn::Abs(x));
  }

  /// Adds the first `valid` lanes of `v`; any value may be non-finite.
  HWY_INLINE void Masked(V v, std::size_t valid) {
    const D d;
    auto counted = hn::FirstN(d, valid);
    if constexpr (kFloating) {
      const auto finite = hn::And(counted, hn::IsFinite(v));
      if (hn::CountTrue(d, finite) != valid) {
        const std::size_t nan = hn::CountTrue(d, hn::And(counted, hn::IsNaN(v)));
        nan_ += nan;
        inf_ += valid - nan - hn::CountTrue(d, finite);
        counted = finite;
      }
    }
    low_ = hn::Min(low_, hn::IfThenElse(counted, v, low_));
    high_ = hn::Max(high_, hn::IfThenElse(counted, v, high_));
    v = hn::IfThenElseZero(counted, v);
    const auto zero = hn::And(counted, hn::Eq(v, hn::Zero(d)));
    zeros_ = hn::Sub(zeros_, hn::VecFromMask(DCount(), hn::RebindMask(DCount(), zero)));
    AddDoubles<0>(v, sum_[0], sq_[0], abs_[0]);
    if constexpr (kParts<T> == 2) AddDoubles<1>(v, sum_[1], sq_[1], abs_[1]);
  }

  V low_, high_;
  VCount zeros_;
  VD sum_[kChains], sq_[kChains], abs_[kChains];
  double centred_sum_ = 0;
  double centred_sq_ = 0;
  std::uint64_t nan_ = 0;
  std::uint64_t inf_ = 0;
};

template <class L>
void Summarize(const std::byte* from, std::size_t count, std::byte* to, bool stream, Summary* into) noexcept {
  // Zeros are counted in lanes as wide as the elements': join before 32 bits could wrap.
  constexpr std::size_t kMost = std::size_t{1} << 30;
  while (count != 0) {
    const std::size_t part = count < kMost ? count : kMost;
    Pass<L> pass;
    if (to == nullptr) {
      pass.template Run<false, false>(from, part, nullptr);
    } else {
      // Streaming stores must be aligned; elements before the first boundary are copied as usual.
      const std::size_t off = reinterpret_cast<std::uintptr_t>(to) % HWY_MAX_BYTES;
      const std::size_t gap = off == 0 ? 0 : HWY_MAX_BYTES - off;
      const std::size_t head = gap / L::kSize;
      if (!stream || gap % L::kSize != 0 || head >= part) {
        pass.template Run<true, false>(from, part, to);
      } else {
        for (std::size_t i = 0; i < head; ++i) pass.AddOne(from + i * L::kSize);
        CopyFew(from, head * L::kSize, to);
        pass.template Run<true, true>(from + head * L::kSize, part - head, to + head * L::kSize);
        hwy::FlushStream();
      }
      to += part * L::kSize;
    }
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
  const auto convert = [dd](auto v, double* target) HWY_ATTR {
    hn::StoreU(ToDoubles<0>(v, T{}), dd, target);
    if constexpr (kParts<T> == 2) hn::StoreU(ToDoubles<1>(v, T{}), dd, target + kHalf);
  };
  for (; count >= kLanes; count -= kLanes, from += kLanes * L::kSize, to += kLanes) convert(L::Load(from), to);
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
  for (; count >= kLanes; count -= kLanes, from += kLanes * L::kSize, to += kLanes) convert(L::Load(from), to);
  if (count != 0) {
    float converted[kLanes];
    convert(LoadFew<L>(from, count), converted);
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

// The fused pass: reads the elements once, summarizes and copies them. Included once per SIMD target by
// kernels_simd.cc; the guard flips with each.
#if defined(LUFF_TENSOR_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LUFF_TENSOR_PASS_INL_H_
#undef LUFF_TENSOR_PASS_INL_H_
#else
#define LUFF_TENSOR_PASS_INL_H_
#endif

#include <bit>
#include <limits>

#include "tensor/loaders-inl.h"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace luff::tensor::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

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
  // The bytes of one step in memory are copied in full vectors, or in smaller ones if they do not fill one.
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
    } else if (low <= high) {  // else no element: initial int32 bounds would become large unsigned ones
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
        // Highway streams at least 16 bytes at a time.
        if constexpr (kStream && kCopyLanes >= 16)
          hn::Stream(raw, DCopy(), reinterpret_cast<std::uint8_t*>(to + k));
        else
          hn::StoreU(raw, DCopy(), reinterpret_cast<std::uint8_t*>(to + k));
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

  /// Adds `count` elements, a multiple of kStep. Returns false if not all are finite; then it has copied them
  /// but added nothing.
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
    // A block is summed from zero and added as a whole: errors grow with the number of blocks, not of
    // elements.
    for (std::size_t k = 0; k < kChains; ++k) {
      sum_[k] = hn::Add(sum_[k], sum[k]);
      sq_[k] = hn::Add(sq_[k], sq[k]);
      abs_[k] = hn::Add(abs_[k], abs[k]);
    }
    return true;
  }

  /// Adds `blocks` blocks of kFloatBlock elements. Adds the first in float64 lanes; its mean may become the
  /// centre of the others.
  template <bool kCopy, bool kStream>
  HWY_INLINE void RunCentred(const std::byte* from, std::size_t blocks, std::byte* to) {
    const double sum_before = Total(sum_), sq_before = Total(sq_);
    AddBlock<kCopy, kStream>(from, kFloatBlock, to);
    const double mean = (Total(sum_) - sum_before) / static_cast<double>(kFloatBlock);
    const double mean_sq = (Total(sq_) - sq_before) / static_cast<double>(kFloatBlock);
    // Any centre gives correct sums, but one far from the values costs digits. Below 2^-30, squared
    // differences of neighbouring floats could underflow.
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

  /// Adds one block in float lanes, relative to `centre`. Returns false if not all elements are finite, or if
  /// squares leave the range in which a float keeps its digits; then it has copied them but added nothing.
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
    // Nothing can have been lost in lanes of zeros, nor relative to a centre.
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
  // Zeros are counted in lanes as wide as the elements' lanes: join before 32 bits could wrap.
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

#endif  // a SIMD target
}  // namespace luff::tensor::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // guard

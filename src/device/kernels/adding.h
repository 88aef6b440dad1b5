#pragma once
// What one thread adds up.
//
// AddNumber takes any element, one at a time, in float64. Floats take sixteen elements at once of float32,
// float16, bfloat16 and float8, add them in float and join the sums in float64: a processor has few float64
// units. A tensor whose mean is large compared with its deviation is taken relative to a centre, so that the
// variance keeps its digits (mean 1e6, deviation 1). Sixteen elements whose sum of squares is not finite, or
// leaves the range in which a float keeps its digits, are refused; AddNumber takes them.
//
// Bounds, with u = 2^-24: a sum of 16 differences has at most 7 roundings, so is wrong by 7 u of the sum of
// |x - centre|, which is at most 2.2 times that of |x|. A sum of squares has at most 10. Both stay below
// 1e-6.

#include "device/kernels/vectors.h"

namespace luff::device::kernel {

/// Sums of a thread or a block are Statistics whose bounds are keys.
__device__ inline Statistics NoStatistics() { return {0, 0, 0, 0, ~0ull, 0, 0, 0, 0}; }

/// What AddNumber changes of them, in registers for the time of a loop.
struct Sums {
  double sum, sum_sq, abs_sum;
  U64 low, high;
  U32 zeros, nans, infs;
};
__device__ inline Sums SumsOf(const Statistics& s) {
  return {s.sum,
          s.sum_sq,
          s.abs_sum,
          s.min_bits,
          s.max_bits,
          static_cast<U32>(s.zeros),
          static_cast<U32>(s.nans),
          static_cast<U32>(s.infs)};
}
__device__ inline void Store(const Sums& t, Statistics* s) {
  s->sum = t.sum;
  s->sum_sq = t.sum_sq;
  s->abs_sum = t.abs_sum;
  s->min_bits = t.low;
  s->max_bits = t.high;
  s->zeros = t.zeros;
  s->nans = t.nans;
  s->infs = t.infs;
}

__device__ inline void AddNumber(Sums* t, Number n) {
  if (!IsFinite(n.value)) {
    if (IsNaN(n.value))
      ++t->nans;
    else
      ++t->infs;
    return;
  }
  t->zeros += n.value == 0 ? 1 : 0;
  t->low = n.key < t->low ? n.key : t->low;
  t->high = n.key > t->high ? n.key : t->high;
  t->sum += n.value;
  t->sum_sq = fma(n.value, n.value, t->sum_sq);
  t->abs_sum += fabs(n.value);
}

/// Turns four vectors by one place. Loops over them that are not unrolled use it, since registers cannot be
/// indexed.
__device__ inline void Rotate(uint4 (&x)[4]) {
  const uint4 first = x[0];
  x[0] = x[1];
  x[1] = x[2];
  x[2] = x[3];
  x[3] = first;
}

/// True for the dtypes that Floats take.
__device__ inline bool IsNarrowFloat(U32 dtype) {
  return (dtype >= kFloat16 && dtype <= kFloat32) || (dtype >= kFloat8E4M3FN && dtype <= kFloat8E5M2FNUZ);
}

class Floats {
 public:
  __device__ Floats(U32 dtype, U32 size) : dtype_(dtype), size_(size) {}

  /// Adds the elements of four vectors. Returns a bit for each vector that it did not add.
  __device__ U32 Add(uint4 (&x)[4]) {
    U32 refused = 0;
    const U32 taken = (1u << size_) - 1;  // 16 elements are `size` vectors
#pragma unroll 1
    for (U32 first = 0; first < 4;) {
      float f[16];
      switch (Anew(dtype_)) {
        case kFloat32:
#pragma unroll
          for (U32 i = 0; i < 16; ++i) f[i] = __uint_as_float(WordAt(x[i / 4], i % 4));
          break;
        case kBFloat16:
#pragma unroll
          for (U32 i = 0; i < 8; ++i) {
            const U32 pair = WordAt(x[i / 4], i % 4);
            f[i << 1] = __uint_as_float(pair << 16);
            f[i << 1 | 1] = __uint_as_float(pair & 0xffff0000);
          }
          break;
        case kFloat16:
#pragma unroll
          for (U32 i = 0; i < 8; ++i) {
            const U32 pair = WordAt(x[i / 4], i % 4);
            f[i << 1] = HalfToFloat(pair & 0xffff);
            f[i << 1 | 1] = HalfToFloat(pair >> 16);
          }
          break;
        default: {
          const Float8 format = Float8Of(dtype_);
#pragma unroll
          for (U32 i = 0; i < 16; ++i)
            f[i] = Float8ToFloat(WordAt(x[0], i / 4) >> (8 * (i % 4)) & 0xff, format);
        }
      }
      const Verdict verdict = Add16(f);
      if (verdict == kAgain) continue;
      if (verdict == kRefused) refused |= taken << first;
      first += size_;
      const U32 size = Anew(size_);
      if (size == 2) Rotate(x);
      if (size <= 2) Rotate(x);
    }
    return refused;
  }

  __device__ void AddTo(Statistics* t) const {
    const double c = centre_, n = added_;
    t->sum += deviation_ + c * n;
    t->sum_sq += deviation_sq_ + (2 * c * deviation_ + c * c * n);
    t->abs_sum += abs_sum_;
    t->zeros += zeros_;
    if (added_ == 0) return;
    const U64 low = KeyOfDouble(low_), high = KeyOfDouble(high_);
    t->min_bits = low < t->min_bits ? low : t->min_bits;
    t->max_bits = high > t->max_bits ? high : t->max_bits;
  }

 private:
  enum Verdict { kAdded, kRefused, kAgain };

  __device__ Verdict Add16(const float (&f)[16]) {
    float least = f[0], most = f[0], sum = 0, squares = 0, more_squares = 0, abs = 0;
    U32 zeros = 0;
#pragma unroll
    for (U32 i = 0; i < 16; i += 4) {
      float d[4];
#pragma unroll
      for (U32 j = 0; j < 4; ++j) {
        d[j] = f[i + j] - centre_;
        least = fminf(least, f[i + j]);
        most = fmaxf(most, f[i + j]);
        zeros += f[i + j] == 0;
      }
      squares = fmaf(d[0], d[0], fmaf(d[1], d[1], squares));
      more_squares = fmaf(d[2], d[2], fmaf(d[3], d[3], more_squares));
      sum += (d[0] + d[1]) + (d[2] + d[3]);
      abs += (fabsf(f[i]) + fabsf(f[i + 1])) + (fabsf(f[i + 2]) + fabsf(f[i + 3]));
    }
    squares += more_squares;
    if (!started_) {
      // The mean of the first sixteen becomes the centre if they lie close together and far from zero. A poor
      // centre costs digits or time, not correctness. Below 2^-30, squared differences of neighbouring floats
      // could underflow.
      started_ = true;
      const float mean = sum * 0.0625f, size = fabsf(mean);
      if (mean * mean > 0.95f * 0.0625f * squares && size > 0x1p-30f && size < 0x1p60f) {
        centre_ = mean;
        return kAgain;
      }
    }
    // Terms that underflow are wrong by 2^-150 each; nothing is lost in zeros, nor relative to a centre that
    // is close to the values.
    const bool kept = centre_ == 0 ? squares >= 0x1p-120f || abs == 0 : abs >= 14.5f * fabsf(centre_);
    if (!kept || !(squares < 0x1p100f)) return kRefused;
    low_ = fminf(low_, least);
    high_ = fmaxf(high_, most);
    zeros_ += zeros;
    deviation_ += sum;
    deviation_sq_ += squares;
    abs_sum_ += abs;
    added_ += 16;
    return kAdded;
  }

  U32 dtype_, size_;
  bool started_ = false;
  float centre_ = 0;
  U32 added_ = 0, zeros_ = 0;
  float low_ = __uint_as_float(0x7f800000), high_ = __uint_as_float(0xff800000);
  double deviation_ = 0, deviation_sq_ = 0;  // relative to the centre
  double abs_sum_ = 0;
};

}  // namespace luff::device::kernel

#pragma once
// What elements mean: every dtype as float64, and as the keys by which min and max are found. Agrees with
// tensor/element.h; the tests compare the two.

#include "device/kernels/arguments.h"

/// Code that is used at several places and not in a hurry: compiled once.
#ifdef __CUDACC_RTC__
#define LUFF_ONCE __noinline__
#else
#define LUFF_ONCE inline
#endif

namespace luff::device::kernel {

/// Returns `value`, and hides from the compiler that it is always the same. Without it a loop is compiled
/// once for each outcome of the conditions in it that do not change.
__device__ inline U32 Anew(U32 value) {
#ifdef __CUDACC_RTC__
  asm volatile("" : "+r"(value));
#endif
  return value;
}

/// Codes of luff::DType (testing/launch.cc compares them).
enum : U32 {
  kBool = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kUInt16 = 4,
  kInt16 = 5,
  kUInt32 = 6,
  kInt32 = 7,
  kUInt64 = 8,
  kInt64 = 9,
  kFloat16 = 10,
  kBFloat16 = 11,
  kFloat32 = 12,
  kFloat64 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
  kFloat8E4M3FN = 16,
  kFloat8E5M2 = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2FNUZ = 19,
  kFloat8E8M0FNU = 20,
  kComplex32 = 21,
  kString = 22,
};

/// Bytes of an element are 2 to the power of this; 0 for a code that is none.
__device__ inline U32 SizeBitsOf(U32 dtype) {
  constexpr U64 kLow = 0x4332'1133'2211'0000ull;  // four bits for each of the codes 0 .. 15
  return dtype < 16 ? kLow >> (4 * dtype) & 15 : dtype == kComplex32 ? 2 : 0;
}
__device__ inline U32 SizeOf(U32 dtype) { return 1u << SizeBitsOf(dtype); }

/// Which of the three meanings min_bits has.
enum : U32 { kFloating, kSigned, kUnsigned };
__device__ inline U32 DomainOf(U32 dtype) {
  if (dtype >= kFloat16 && dtype != kString) return kFloating;
  return dtype >= kInt8 && dtype % 2 == 1 ? kSigned : kUnsigned;
}

// ---- Parts of a vector. Where `k` is a constant, nothing remains of the choice. ----

__device__ inline U32 WordAt(const uint4& x, U32 k) {
  return k < 2 ? (k == 0 ? x.x : x.y) : (k == 2 ? x.z : x.w);
}
__device__ inline U64 LongAt(const uint4& x, U32 k) {
  return k == 0 ? static_cast<U64>(x.y) << 32 | x.x : static_cast<U64>(x.w) << 32 | x.z;
}

/// The bytes of one element, the rest zero. `high` belongs to complex128 only.
struct Element {
  U64 low, high;
};

__device__ inline Element ElementAt(const uint4& x, U32 k, U32 size) {
  const U32 byte = k * size;
  if (size == 16) return {LongAt(x, 0), LongAt(x, 1)};
  const U64 half = LongAt(x, byte >> 3) >> (8 * (byte & 7));
  return {size == 8 ? half : half & ((1ull << (8 * size)) - 1), 0};
}

// ---- Floating-point formats ----

/// float16 to float32. Subnormals exact, NaN stays NaN.
__device__ inline float HalfToFloat(U32 half) {
#ifdef __CUDACC_RTC__
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(static_cast<U16>(half)));
  return f;
#else
  // Exponent and mantissa moved into place are 2^112 times too small, subnormals included; the product is
  // exact.
  const U32 magnitude = half & 0x7fff;
  U32 bits = __float_as_uint(__uint_as_float(magnitude << 13) * 0x1p112f);
  if (magnitude >= 0x7c00) bits |= 0x7f800000;
  return __uint_as_float(bits | (half & 0x8000) << 16);
#endif
}

/// How to read one of the 8-bit formats with a sign.
struct Float8 {
  U32 shift;    // moves exponent and mantissa to where float32 has them
  float scale;  // corrects the bias of the exponent; the product is exact, for subnormals too
  U32 special;  // magnitudes from here on are Inf or NaN, as the remaining bits say
  U32 nan;      // the one code that is NaN, in the family "fnuz"; 256: none
};

__device__ inline Float8 Float8Of(U32 dtype) {
  const bool e5m2 = dtype == kFloat8E5M2 || dtype == kFloat8E5M2FNUZ, fnuz = dtype >= kFloat8E4M3FNUZ;
  // The bias of float32 less that of the format: 7 for e4m3fn, 15 for e5m2, one more in the family "fnuz".
  const float scale = __uint_as_float((127u + 120 - (e5m2 ? 8 : 0) - (fnuz ? 1 : 0)) << 23);
  return {e5m2 ? 21u : 20u, scale, fnuz ? 256u : e5m2 ? 0x7cu : 0x7fu, fnuz ? 0x80u : 256u};
}

__device__ inline float Float8ToFloat(U32 code, const Float8& format) {
  const U32 magnitude = code & 0x7f;
  U32 bits = __float_as_uint(__uint_as_float(magnitude << format.shift) * format.scale);
  if (magnitude >= format.special) bits = 0x7f800000 | (magnitude << format.shift & 0x7fffff);
  if (code == format.nan) bits = 0x7fc00000;
  return __uint_as_float(bits | (code & 0x80) << 24);
}

/// e8m0fnu: only an exponent.
__device__ inline float ExponentToFloat(U32 code) {
  if (code == 0) return 0x1p-127f;
  return __uint_as_float(code == 255 ? 0x7fc00000 : code << 23);
}

// ---- float64 and complex numbers ----

__device__ inline double AsDouble(U64 bits) { return __longlong_as_double(static_cast<I64>(bits)); }
__device__ inline U64 AsBits(double d) { return static_cast<U64>(__double_as_longlong(d)); }
__device__ inline bool IsFinite(double d) {
  return (AsBits(d) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
}
__device__ inline bool IsNaN(double d) { return !(d == d); }

struct Complex {
  double re, im;
};
__device__ inline Complex Minus(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
__device__ inline bool IsComplex(U32 dtype) {
  return dtype == kComplex32 || dtype == kComplex64 || dtype == kComplex128;
}

__device__ inline Complex ComplexOf(Element e, U32 dtype) {
  if (dtype == kComplex128) return {AsDouble(e.low), AsDouble(e.high)};
  const U32 half = static_cast<U32>(e.low);
  if (dtype == kComplex64) return {__uint_as_float(half), __uint_as_float(static_cast<U32>(e.low >> 32))};
  return {HalfToFloat(half & 0xffff), HalfToFloat(half >> 16)};
}

/// NaN if either part is NaN, else Inf if either is infinite. Squares of parts that are very large or small
/// would leave the range of a double: they are scaled by a power of two, exactly.
__device__ inline double Magnitude(Complex z) {
  const double re = fabs(z.re), im = fabs(z.im);
  if (IsNaN(re) || IsNaN(im)) return AsDouble(0x7ff8000000000000ull);
  const double big = im > re ? im : re;
  if (!IsFinite(big)) return big;
  const double down = big > 0x1p500 ? 0x1p-600 : big < 0x1p-400 ? 0x1p600 : 1.0;
  const double up = big > 0x1p500 ? 0x1p600 : big < 0x1p-400 ? 0x1p-600 : 1.0;
  const double a = re * down, b = im * down;
  return sqrt(fma(a, a, b * b)) * up;
}

// ---- Any element ----

/// The key of what Summary::min_bits would hold, and back. Keys of a domain compare as unsigned numbers.
__device__ inline U64 KeyOf(U64 bits, U32 domain) {
  constexpr U64 kTop = 1ull << 63;
  if (domain == kUnsigned) return bits;
  if (domain == kSigned) return bits ^ kTop;
  return (bits & kTop) != 0 ? ~bits : bits | kTop;
}
__device__ inline U64 BitsOf(U64 key, U32 domain) {
  constexpr U64 kTop = 1ull << 63;
  if (domain == kUnsigned) return key;
  if (domain == kSigned) return key ^ kTop;
  return (key & kTop) != 0 ? key & ~kTop : ~key;
}
/// -0 becomes +0, as on the CPU.
__device__ inline U64 KeyOfDouble(double d) { return KeyOf(AsBits(d + 0.0), kFloating); }

struct Number {
  double value;  // complex: magnitude; bool: 0 or 1
  U64 key;
};

LUFF_ONCE __device__ Number NumberOf(U64 low, U64 high, U32 dtype) {
  const U32 small = static_cast<U32>(low);
  double d;
  switch (dtype) {
    case kFloat32: d = __uint_as_float(small); break;
    case kBFloat16: d = __uint_as_float(small << 16); break;
    case kFloat16: d = HalfToFloat(small); break;
    case kFloat64: d = AsDouble(low); break;
    case kComplex32:
    case kComplex64:
    case kComplex128: d = Magnitude(ComplexOf({low, high}, dtype)); break;
    case kFloat8E4M3FN:
    case kFloat8E5M2:
    case kFloat8E4M3FNUZ:
    case kFloat8E5M2FNUZ: d = Float8ToFloat(small, Float8Of(dtype)); break;
    case kFloat8E8M0FNU: d = ExponentToFloat(small); break;
    default: {
      if (DomainOf(dtype) == kUnsigned) {
        if (dtype == kBool) low = low != 0 ? 1 : 0;
        return {static_cast<double>(low), low};
      }
      const U32 unused = 64 - 8 * SizeOf(dtype);
      const I64 i = static_cast<I64>(low << unused) >> unused;
      return {static_cast<double>(i), KeyOf(static_cast<U64>(i), kSigned)};
    }
  }
  return {d, KeyOfDouble(d)};
}

}  // namespace luff::device::kernel

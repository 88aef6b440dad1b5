#pragma once
// Reads one element at a time, in plain C++. Defines the meaning of every dtype; all kernels must agree with
// it.
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "luff/tensor/dtype.h"

namespace luff::tensor {

template <typename T>
[[nodiscard]] inline T LoadAs(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

/// float16 to float32: IEEE binary16, subnormals exact, NaN stays NaN.
[[nodiscard]] constexpr float HalfToFloat(std::uint16_t half) noexcept {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -tiny : tiny;
}

[[nodiscard]] constexpr float BFloat16ToFloat(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// One of the 8-bit formats of OCP MX and of the "fnuz" family. Bits: sign, `exponent_bits`, the rest
/// mantissa.
struct Float8Format {
  int exponent_bits;
  int bias;
  bool ieee;  // top exponent is Inf and NaN; otherwise only one or two codes are NaN, and there is no Inf
  bool fnuz;  // 0x80 is the only NaN, there is no -0
};

[[nodiscard]] constexpr float Float8ToFloat(std::uint8_t code, Float8Format format) noexcept {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const int mantissa_bits = 7 - format.exponent_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int exponent = (code >> mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const bool negative = (code & 0x80) != 0;
  const int top = (1 << format.exponent_bits) - 1;
  if (format.fnuz && code == 0x80) return kNan;
  if (format.ieee && exponent == top) {
    if (mantissa != 0) return kNan;
    return negative ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  }
  if (!format.ieee && !format.fnuz && (code & 0x7f) == 0x7f) return kNan;
  float value =
      exponent == 0 ? static_cast<float>(mantissa) : static_cast<float>(mantissa + (1 << mantissa_bits));
  int power = (exponent == 0 ? 1 : exponent) - format.bias - mantissa_bits;
  for (; power > 0; --power) value *= 2;
  for (; power < 0; ++power) value /= 2;
  return negative ? -value : value;
}

using Float8Table = std::array<float, 256>;

[[nodiscard]] constexpr Float8Table MakeFloat8Table(Float8Format format) noexcept {
  Float8Table table{};
  for (std::size_t i = 0; i < 256; ++i) table[i] = Float8ToFloat(static_cast<std::uint8_t>(i), format);
  return table;
}

/// e8m0fnu: only an exponent, 2^(code - 127); 0xff is NaN; no zero and no sign.
[[nodiscard]] constexpr Float8Table MakeE8M0Table() noexcept {
  Float8Table table{};
  table[0] = 0x1p-127f;
  for (std::size_t i = 1; i < 255; ++i) table[i] = std::bit_cast<float>(static_cast<std::uint32_t>(i) << 23);
  table[255] = std::numeric_limits<float>::quiet_NaN();
  return table;
}

inline constexpr Float8Table kFloat8E4M3FN =
    MakeFloat8Table({.exponent_bits = 4, .bias = 7, .ieee = false, .fnuz = false});
inline constexpr Float8Table kFloat8E5M2 =
    MakeFloat8Table({.exponent_bits = 5, .bias = 15, .ieee = true, .fnuz = false});
inline constexpr Float8Table kFloat8E4M3FNUZ =
    MakeFloat8Table({.exponent_bits = 4, .bias = 8, .ieee = false, .fnuz = true});
inline constexpr Float8Table kFloat8E5M2FNUZ =
    MakeFloat8Table({.exponent_bits = 5, .bias = 16, .ieee = false, .fnuz = true});
inline constexpr Float8Table kFloat8E8M0FNU = MakeE8M0Table();

/// Magnitude of a complex number: NaN if either part is NaN, else Inf if either is infinite.
[[nodiscard]] inline double Magnitude(double re, double im) noexcept {
  if (std::isnan(re) || std::isnan(im)) return std::numeric_limits<double>::quiet_NaN();
  return std::hypot(re, im);
}

/// The element at `from` as float64 (complex: magnitude; bool: 0 or 1).
template <DType kType>
[[nodiscard]] inline double ReadElement(const std::byte* from) noexcept {
  const auto byte = [from] { return static_cast<std::size_t>(*from); };
  if constexpr (kType == DType::kBool)
    return byte() != 0 ? 1.0 : 0.0;
  else if constexpr (kType == DType::kUInt8 || kType == DType::kString)
    return static_cast<double>(byte());
  else if constexpr (kType == DType::kInt8)
    return LoadAs<std::int8_t>(from);
  else if constexpr (kType == DType::kUInt16)
    return LoadAs<std::uint16_t>(from);
  else if constexpr (kType == DType::kInt16)
    return LoadAs<std::int16_t>(from);
  else if constexpr (kType == DType::kUInt32)
    return LoadAs<std::uint32_t>(from);
  else if constexpr (kType == DType::kInt32)
    return LoadAs<std::int32_t>(from);
  else if constexpr (kType == DType::kUInt64)
    return static_cast<double>(LoadAs<std::uint64_t>(from));
  else if constexpr (kType == DType::kInt64)
    return static_cast<double>(LoadAs<std::int64_t>(from));
  else if constexpr (kType == DType::kFloat16)
    return static_cast<double>(HalfToFloat(LoadAs<std::uint16_t>(from)));
  else if constexpr (kType == DType::kBFloat16)
    return static_cast<double>(BFloat16ToFloat(LoadAs<std::uint16_t>(from)));
  else if constexpr (kType == DType::kFloat32)
    return static_cast<double>(LoadAs<float>(from));
  else if constexpr (kType == DType::kFloat64)
    return LoadAs<double>(from);
  else if constexpr (kType == DType::kComplex64) {
    return Magnitude(static_cast<double>(LoadAs<float>(from)), static_cast<double>(LoadAs<float>(from + 4)));
  } else if constexpr (kType == DType::kComplex128) {
    return Magnitude(LoadAs<double>(from), LoadAs<double>(from + 8));
  } else if constexpr (kType == DType::kComplex32) {
    return Magnitude(static_cast<double>(HalfToFloat(LoadAs<std::uint16_t>(from))),
                     static_cast<double>(HalfToFloat(LoadAs<std::uint16_t>(from + 2))));
  } else if constexpr (kType == DType::kFloat8E4M3FN)
    return static_cast<double>(kFloat8E4M3FN[byte()]);
  else if constexpr (kType == DType::kFloat8E5M2)
    return static_cast<double>(kFloat8E5M2[byte()]);
  else if constexpr (kType == DType::kFloat8E4M3FNUZ)
    return static_cast<double>(kFloat8E4M3FNUZ[byte()]);
  else if constexpr (kType == DType::kFloat8E5M2FNUZ)
    return static_cast<double>(kFloat8E5M2FNUZ[byte()]);
  else if constexpr (kType == DType::kFloat8E8M0FNU)
    return static_cast<double>(kFloat8E8M0FNU[byte()]);
  else
    return 0.0;
}

/// Which of the three meanings Summary::min_bits has.
enum class Domain : std::uint8_t { kFloat, kSigned, kUnsigned };

[[nodiscard]] constexpr Domain DomainOf(DType dtype) noexcept {
  switch (dtype) {
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64: return Domain::kSigned;
    case DType::kBool:
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
    case DType::kString: return Domain::kUnsigned;
    default: return Domain::kFloat;
  }
}

}  // namespace luff::tensor

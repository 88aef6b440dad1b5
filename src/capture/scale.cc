#include "capture/scale.h"

#include <bit>
#include <cstdint>
#include <cstring>

namespace luff::capture {
namespace {

template <typename T>
T Load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <typename T>
void Store(std::byte* at, T value) noexcept {
  std::memcpy(at, &value, sizeof value);
}

std::uint16_t RoundToBFloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U)
    return static_cast<std::uint16_t>((bits >> 16) | 0x40U);  // NaN stays NaN
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}
float FromBFloat16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

float FromFloat16(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = half >> 10 & 0x1FU;
  const std::uint32_t mantissa = half & 0x3FFU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | mantissa << 13);
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}
std::uint16_t RoundToFloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // rounds to infinity
  if (magnitude < 0x38800000U) {  // subnormal: adding 0.5 makes the FPU round to multiples of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t rounded = magnitude - (112U << 23) + 0xFFFU + (magnitude >> 13 & 1U);
  return static_cast<std::uint16_t>(sign | rounded >> 13);
}

}  // namespace

bool ScaleInPlace(DType dtype, std::byte* data, std::size_t count, double factor) noexcept {
  const auto narrow = static_cast<float>(factor);
  switch (dtype) {
    case DType::kFloat32:
      for (std::size_t i = 0; i < count; ++i) Store(data + 4 * i, Load<float>(data + 4 * i) * narrow);
      return true;
    case DType::kFloat64:
      for (std::size_t i = 0; i < count; ++i) Store(data + 8 * i, Load<double>(data + 8 * i) * factor);
      return true;
    case DType::kBFloat16:
      for (std::size_t i = 0; i < count; ++i) {
        Store(data + 2 * i, RoundToBFloat16(FromBFloat16(Load<std::uint16_t>(data + 2 * i)) * narrow));
      }
      return true;
    case DType::kFloat16:
      for (std::size_t i = 0; i < count; ++i) {
        Store(data + 2 * i, RoundToFloat16(FromFloat16(Load<std::uint16_t>(data + 2 * i)) * narrow));
      }
      return true;
    default: return false;
  }
}

bool ToBFloat16(DType dtype, const std::byte* from, std::size_t count, std::byte* to) noexcept {
  if (dtype == DType::kFloat32) {
    for (std::size_t i = 0; i < count; ++i) Store(to + 2 * i, RoundToBFloat16(Load<float>(from + 4 * i)));
    return true;
  }
  if (dtype == DType::kFloat64) {
    for (std::size_t i = 0; i < count; ++i) {
      Store(to + 2 * i, RoundToBFloat16(static_cast<float>(Load<double>(from + 8 * i))));
    }
    return true;
  }
  return false;
}

}  // namespace luff::capture

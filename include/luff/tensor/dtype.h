#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "luff/base/result.h"

namespace luff {

/// Element types of all frameworks. Stored on disk: permanent, never renumber.
enum class DType : std::uint8_t {
  kInvalid = 0,
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
  kComplex64 = 14,   // two float32
  kComplex128 = 15,  // two float64
  kFloat8E4M3FN = 16,
  kFloat8E5M2 = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2FNUZ = 19,
  kFloat8E8M0FNU = 20,
  kComplex32 = 21,  // two float16
  kString = 22,     // UTF-8 bytes; rank 1, one dimension = number of bytes
};
inline constexpr int kDTypeCount = 23;

/// Bytes of one element; 0 for kInvalid.
[[nodiscard]] std::size_t DTypeSize(DType dtype) noexcept;
/// Stable lower-case name, e.g. "float32", "bfloat16", "float8_e4m3fn".
[[nodiscard]] std::string_view DTypeName(DType dtype) noexcept;
/// Errors: kInvalidArgument for an unknown name.
[[nodiscard]] Result<DType> ParseDType(std::string_view name);
/// True if `code` (a byte from disk) names a type other than kInvalid.
[[nodiscard]] bool IsKnownDType(std::uint8_t code) noexcept;

[[nodiscard]] bool IsFloating(DType dtype) noexcept;  // float8 .. float64, not complex
[[nodiscard]] bool IsComplex(DType dtype) noexcept;
[[nodiscard]] bool IsSignedInteger(DType dtype) noexcept;
[[nodiscard]] bool IsUnsignedInteger(DType dtype) noexcept;  // bool included

}  // namespace luff

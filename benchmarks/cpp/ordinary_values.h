#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "luff/tensor/dtype.h"

namespace luff {

/// Fills a multiple of 4 bytes with ordinary values, finite in any dtype (float32: uniform in [-1, 1)) and
/// always the same.
inline void FillOrdinary(DType dtype, std::vector<std::byte>* memory) {
  std::uint64_t state = 88172645463325252u;
  const std::size_t size = DTypeSize(dtype);
  for (std::size_t i = 0; i + 4 <= memory->size(); i += 4) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const float value = static_cast<float>(state % 2000) / 1000.0f - 1.0f;
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const auto random = static_cast<std::uint32_t>(state);
    if (dtype == DType::kBFloat16) bits = (bits & 0xffff0000u) | (bits >> 16);
    if (size == 1) bits = random & 0x37373737u;
    if (dtype == DType::kFloat16 || dtype == DType::kComplex32) bits = random & 0xbbffbbffu;
    if (dtype == DType::kFloat8E8M0FNU) bits = 0x78787878u | (random & 0x07070707u);
    if (dtype == DType::kBool) bits = random & 0x01010101u;
    std::memcpy(memory->data() + i, &bits, 4);
  }
}

}  // namespace luff

#pragma once
// A row of the table as vectors of 16 bytes: where they are, how they are read and written.

#include "device/kernels/elements.h"

namespace luff::device::kernel {

/// A quotient; 64-bit division takes a hundred instructions, 32-bit division twenty.
LUFF_ONCE __device__ U64 Divide(U64 a, U64 b) {
  if (((a | b) >> 32) == 0) return static_cast<U32>(a) / static_cast<U32>(b);
  return a / b;
}

/// Where elements are.
struct Elements {
  U64 data;
  const Loops* loops;  // read only if depth is not 0
  U32 depth;
  U32 size;  // bytes of an element
};

__device__ inline U64 AddressOf(const Elements& e, U64 index) {
  if (e.depth == 0) return e.data + index * e.size;
  U64 address = e.data;
#pragma unroll 1
  for (U32 level = e.depth - 1; level != 0; --level) {
    const U64 count = e.loops->count[level];
    const U64 outer = Divide(index, count);
    address += static_cast<U64>(e.loops->stride[level]) * (index - outer * count);
    index = outer;
  }
  return address + static_cast<U64>(e.loops->stride[0]) * index;
}

/// Reads 1, 2, 4 or 8 bytes at any address.
__device__ inline U64 ReadPiece(U64 address, U32 bytes) {
  if ((address & (bytes - 1)) == 0) {
    switch (bytes) {
      case 1: return *reinterpret_cast<const U8*>(address);
      case 2: return *reinterpret_cast<const U16*>(address);
      case 4: return *reinterpret_cast<const U32*>(address);
      default: return *reinterpret_cast<const U64*>(address);
    }
  }
  U64 value = 0;
#pragma unroll 1
  for (U32 i = 0; i < bytes; ++i)
    value |= static_cast<U64>(*reinterpret_cast<const U8*>(address + i)) << (8 * i);
  return value;
}

__device__ inline void WritePiece(U64 address, U32 bytes, U64 value) {
  if ((address & (bytes - 1)) == 0) {
    switch (bytes) {
      case 1: *reinterpret_cast<U8*>(address) = static_cast<U8>(value); return;
      case 2: *reinterpret_cast<U16*>(address) = static_cast<U16>(value); return;
      case 4: *reinterpret_cast<U32*>(address) = static_cast<U32>(value); return;
      default: *reinterpret_cast<U64*>(address) = value; return;
    }
  }
#pragma unroll 1
  for (U32 i = 0; i < bytes; ++i) *reinterpret_cast<U8*>(address + i) = static_cast<U8>(value >> (8 * i));
}

/// Reads the element at any address.
LUFF_ONCE __device__ Element ReadElement(U64 address, U32 size) {
  if (size < 16) return {ReadPiece(address, size), 0};
  return {ReadPiece(address, 8), ReadPiece(address + 8, 8)};
}

/// Collects elements `index` + first .. `index` + last - 1 into places first .. last - 1 of a vector; the
/// others are zero. For the ends of a stream, strided memory and memory that is not aligned. (`index` may
/// have wrapped below 0.)
__device__ inline uint4 Gather(const Elements& e, U64 index, U32 first, U32 last) {
  U64 low = 0, high = 0;
#pragma unroll 1
  for (U32 k = first; k < last; ++k) {
    const Element element = ReadElement(AddressOf(e, index + k), e.size);
    const U32 bit = 8 * e.size * k;
    if (bit < 64)
      low |= element.low << bit;
    else
      high |= element.low << (bit - 64);
    high |= element.high;
  }
  uint4 x;
  x.x = static_cast<U32>(low);
  x.y = static_cast<U32>(low >> 32);
  x.z = static_cast<U32>(high);
  x.w = static_cast<U32>(high >> 32);
  return x;
}

/// Writes places first .. last - 1 of a vector whose place 0 belongs at `address`, whatever its alignment.
__device__ inline void Scatter(U64 address, U32 size, const uint4& x, U32 first, U32 last) {
  const U32 piece = size < 8 ? size : 8;
#pragma unroll 1
  for (U32 byte = first * size; byte < last * size; byte += piece)
    WritePiece(address + byte, piece, LongAt(x, byte >> 3) >> (8 * (byte & 7)));
}

/// Reads a vector that is used once: it should not drive the training's data out of the caches.
__device__ inline uint4 ReadVector(U64 address) { return __ldcs(reinterpret_cast<const uint4*>(address)); }
__device__ inline void WriteVector(U64 address, const uint4& x) {
  __stcs(reinterpret_cast<uint4*>(address), x);
}

}  // namespace luff::device::kernel

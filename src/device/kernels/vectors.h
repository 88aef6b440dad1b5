#pragma once
// A row of the table as vectors of 16 bytes: where they are, how they are read and written.

#include "device/kernels/elements.h"

namespace luff::device::kernel {

/// a / b. 64-bit division is a hundred instructions long, and rare here: bit by bit it takes little room.
LUFF_ONCE __device__ U64 Divide(U64 a, U64 b) {
  if (((a | b) >> 32) == 0) return static_cast<U32>(a) / static_cast<U32>(b);
  U64 quotient = 0, rest = 0;
#pragma unroll 1
  for (U32 bit = 64; bit-- != 0;) {
    const bool over = (rest >> 63) != 0;
    rest = rest << 1 | (a >> bit & 1);
    quotient <<= 1;
    if (over || rest >= b) {
      rest -= b;
      quotient |= 1;
    }
  }
  return quotient;
}

// Addresses are numbers in the tables that the host writes.
// NOLINTBEGIN(performance-no-int-to-ptr)

/// Where elements are.
struct Elements {
  U64 data;
  const Loops* loops;  // read only if depth is not 0
  U32 depth;
  U32 size, size_bits;  // bytes of an element: 2 to the power of size_bits
};

__device__ inline U64 AddressOf(const Elements& e, U64 index) {
  const U32 depth = Anew(e.depth);
  if (depth == 0) return e.data + index * e.size;
  U64 address = e.data;
#pragma unroll 1
  for (U32 level = depth - 1; level != 0; --level) {
    const U64 count = e.loops->count[level];
    const U64 outer = Divide(index, count);
    address += static_cast<U64>(e.loops->stride[level]) * (index - outer * count);
    index = outer;
  }
  return address + static_cast<U64>(e.loops->stride[0]) * index;
}

/// The largest piece of memory that an element at `address` can be read and written in: 1, 2, 4 or 8 bytes.
__device__ inline U32 PieceOf(U64 address, U32 size) {
  const U32 bits = static_cast<U32>(address) | Anew(size) | 8;
  return bits & (~bits + 1);
}

__device__ inline U64 ReadPiece(U64 address, U32 bytes) {
  if (bytes == 4) return *reinterpret_cast<const U32*>(address);
  if (bytes == 2) return *reinterpret_cast<const U16*>(address);
  if (bytes == 1) return *reinterpret_cast<const U8*>(address);
  return *reinterpret_cast<const U64*>(address);
}

__device__ inline void WritePiece(U64 address, U32 bytes, U64 value) {
  if (bytes == 4)
    *reinterpret_cast<U32*>(address) = static_cast<U32>(value);
  else if (bytes == 2)
    *reinterpret_cast<U16*>(address) = static_cast<U16>(value);
  else if (bytes == 1)
    *reinterpret_cast<U8*>(address) = static_cast<U8>(value);
  else
    *reinterpret_cast<U64*>(address) = value;
}

/// Collects elements `index` + first .. `index` + last - 1 into places first .. last - 1 of a vector; the
/// others are zero. For the ends of a stream, strided memory and memory that is not aligned. (`index` may
/// have wrapped below 0.)
__device__ inline Element Gather(const Elements& e, U64 index, U32 first, U32 last) {
  Element x = {0, 0};
#pragma unroll 1
  for (U32 byte = first * e.size; byte < last * e.size;) {
    const U64 address = AddressOf(e, index + (byte >> e.size_bits)) + (byte & (e.size - 1));
    const U32 piece = PieceOf(address | byte, e.size);  // does not cross an element's end
    const U64 value = ReadPiece(address, piece) << (8 * (byte & 7));
    x.low |= byte < 8 ? value : 0;
    x.high |= byte < 8 ? 0 : value;
    byte += piece;
  }
  return x;
}

__device__ inline uint4 VectorOf(Element x) {
  uint4 v;
  v.x = static_cast<U32>(x.low);
  v.y = static_cast<U32>(x.low >> 32);
  v.z = static_cast<U32>(x.high);
  v.w = static_cast<U32>(x.high >> 32);
  return v;
}

/// Writes places first .. last - 1 of a vector whose place 0 belongs at `address`, whatever its alignment.
__device__ inline void Scatter(U64 address, U32 size, const uint4& x, U32 first, U32 last) {
  const U32 piece = PieceOf(address, size);
#pragma unroll 1
  for (U32 byte = first * size; byte < last * size; byte += piece)
    WritePiece(address + byte, Anew(piece), LongAt(x, byte >> 3) >> (8 * (byte & 7)));
}

/// Reads a vector that is used once: it should not drive the training's data out of the caches.
__device__ inline uint4 ReadVector(U64 address) { return __ldcs(reinterpret_cast<const uint4*>(address)); }
__device__ inline void WriteVector(U64 address, const uint4& x) {
  __stcs(reinterpret_cast<uint4*>(address), x);
}

// NOLINTEND(performance-no-int-to-ptr)

}  // namespace luff::device::kernel

#pragma once
// Adding up what the threads of a block know, in a fixed order.

#include "device/kernels/adding.h"

namespace luff::device::kernel {

/// How the 64-bit members of a struct are added up: bit i of a mask belongs to member i. Members without a
/// bit are integers whose sum is wanted.
template <class T>
struct Rules;

template <>
struct Rules<Statistics> {
  static constexpr U32 kDoubles = 0x00e, kMin = 0x010, kMax = 0x020;  // sums; min_bits; max_bits (keys)
};
template <>
struct Rules<Differences> {
  static constexpr U32 kDoubles = 0x033, kMin = 0, kMax = 0x004;  // a positive double compares as its bits do
};

/// Adds `other` to `t`. A loop over members that is not unrolled: this code is at many places.
template <class T>
__device__ inline void Add(T* t, const T* other) {
  static_assert(sizeof(T) % 8 == 0, "64-bit members");
  U64* to = reinterpret_cast<U64*>(t);
  const U64* from = reinterpret_cast<const U64*>(other);
#pragma unroll 1
  for (U32 i = 0; i < sizeof(T) / 8; ++i) {
    const U64 a = to[i], b = from[i];
    U64 sum = a + b;
    if ((Rules<T>::kDoubles >> i & 1) != 0) sum = AsBits(AsDouble(a) + AsDouble(b));
    if ((Rules<T>::kMin >> i & 1) != 0) sum = a < b ? a : b;
    if ((Rules<T>::kMax >> i & 1) != 0) sum = a > b ? a : b;
    to[i] = sum;
  }
}

/// The same at once, for members that luff_statistics fills: every block waits for it.
__device__ inline void AddPlain(Statistics* t, const Statistics* other) {
  const Statistics a = *t, b = *other;
  t->sum = a.sum + b.sum;
  t->sum_sq = a.sum_sq + b.sum_sq;
  t->abs_sum = a.abs_sum + b.abs_sum;
  t->min_bits = b.min_bits < a.min_bits ? b.min_bits : a.min_bits;
  t->max_bits = b.max_bits > a.max_bits ? b.max_bits : a.max_bits;
  t->zeros = a.zeros + b.zeros;
  t->nans = a.nans + b.nans;
  t->infs = a.infs + b.infs;
}

/// Adds up what each thread has put into `room[threadIdx.x]`, in shared memory; room[0] is then the sum. All
/// threads of the block must call it; those from `used` on have nothing. `kAdd` adds the second to the first.
template <class T, void (*kAdd)(T*, const T*) = Add<T>>
__device__ inline void AddUpBlock(T* room, U32 used = kBlockThreads) {
#pragma unroll 1
  for (U32 half = kBlockThreads / 2; half != 0; half /= 2) {
    if (half >= used) continue;
    __syncthreads();
    if (threadIdx.x < half) kAdd(&room[threadIdx.x], &room[threadIdx.x + half]);
  }
  __syncthreads();
}

/// Turns the keys of a sum into what Summary has.
__device__ inline void KeysToBits(Statistics* s, U32 dtype) {
  const bool any = s->count != s->nans + s->infs;
  s->min_bits = any ? BitsOf(s->min_bits, DomainOf(dtype)) : 0;
  s->max_bits = any ? BitsOf(s->max_bits, DomainOf(dtype)) : 0;
}
/// The other way round.
__device__ inline void BitsToKeys(Statistics* s, U32 dtype) {
  const bool any = s->count != s->nans + s->infs;
  s->min_bits = any ? KeyOf(s->min_bits, DomainOf(dtype)) : ~0ull;
  s->max_bits = any ? KeyOf(s->max_bits, DomainOf(dtype)) : 0;
}

/// Copies a struct; in a loop, for the size of the code.
template <class T>
__device__ inline void Copy(const T* from, T* to) {
#pragma unroll 1
  for (U32 i = 0; i < sizeof(T) / 8; ++i)
    reinterpret_cast<U64*>(to)[i] = reinterpret_cast<const U64*>(from)[i];
}

}  // namespace luff::device::kernel

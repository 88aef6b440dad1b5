#pragma once
// The device hash: a fingerprint of a tensor's bytes that any number of blocks can compute in any order.
//
// The stream of elements is cut into vectors of two 64-bit words, the last one filled up with zeros. Each
// vector is mixed with its number into two words by invertible steps, and these are added up modulo 2^64 over
// all vectors. So the hash of a tensor does not depend on how it was divided, and equal bytes of equal dtype
// and count always have equal hashes. Two different vectors at one place never mix to the same pair; two
// random tensors meet with 2^-128. It is no cryptographic hash, and not XXH3: hashes of the two kinds must
// not be compared.
//
// The multipliers are those of SplitMix64 (Steele, Lea, Flood 2014) and of MurmurHash3's finalizer.

#include "device/kernels/arguments.h"

#ifndef __CUDACC_RTC__
#ifndef __device__
#define LUFF_HASH_ON_HOST
#define __device__
#endif
#endif

namespace luff::device {

/// Adds vector number `vector`, whose words are `a` and `b`, to a hash.
__device__ inline void AddToHash(U64 a, U64 b, U64 vector, U64* low, U64* high) {
  U64 p = a + (vector + 1) * 0x9e3779b97f4a7c15ull;
  p = (p ^ (p >> 30)) * 0xbf58476d1ce4e5b9ull;
  p ^= p >> 27;
  U64 q = b + p;
  q = (q ^ (q >> 31)) * 0x94d049bb133111ebull;
  q ^= q >> 29;
  *low += q;
  *high += (p ^ (q << 17 | q >> 47)) * 0xff51afd7ed558ccdull;
}

}  // namespace luff::device

#ifdef LUFF_HASH_ON_HOST
#undef LUFF_HASH_ON_HOST
#undef __device__
#endif

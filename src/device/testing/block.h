#pragma once
// What the kernels need of CUDA, for the compiler of the host. Include it before device/kernels/kernels.cu.
//
// Blocks run one after another on the calling thread, so that shared memory is one variable for each thread
// of the operating system, and atomic operations are those of several such threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "device/testing/fibre_block.h"

// The names are CUDA's.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming, google-global-names-in-headers)
#define __device__
#define __global__
#define __shared__ static thread_local
#define __launch_bounds__(...)

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct LuffIndex {
  unsigned x = 0, y = 0, z = 0;
};
inline thread_local LuffIndex threadIdx;
inline thread_local LuffIndex blockIdx;

inline void __syncthreads() {
  const LuffIndex mine = threadIdx;  // other threads of the block run meanwhile
  luff::device::testing::Barrier();
  threadIdx = mine;
}

template <class T>
inline T atomicAdd(T* at, T by) {
  return __atomic_fetch_add(at, by, __ATOMIC_RELAXED);
}
template <class T>
inline T __ldcs(const T* at) {
  return *at;
}
template <class T>
inline void __stcs(T* at, const T& value) {
  *at = value;
}

template <class To, class From>
inline To LuffBits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline unsigned __float_as_uint(float f) { return LuffBits<unsigned>(f); }
inline float __uint_as_float(unsigned u) { return LuffBits<float>(u); }
inline long long __double_as_longlong(double d) { return LuffBits<long long>(d); }
inline double __longlong_as_double(long long i) { return LuffBits<double>(i); }

using std::fabs;
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming, google-global-names-in-headers)

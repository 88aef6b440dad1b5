// Reads memory as luff_statistics does, and adds it up in the cheapest way: what the hardware allows, for
// benchmarks.

#include "device/kernels/vectors.h"

extern "C" __global__ void __launch_bounds__(256) luff_read(const luff::device::ReadArguments a) {
  using namespace luff::device;
  using namespace luff::device::kernel;
  const U64 begin = static_cast<U64>(blockIdx.x) * kChunkVectors;
  const U64 end = a.vectors - begin < kChunkVectors ? a.vectors : begin + kChunkVectors;
  U32 sum = 0;
#pragma unroll 4
  for (U64 vector = begin + threadIdx.x; vector < end; vector += kBlockThreads) {
    const uint4 x = ReadVector(a.data + vector * kVectorBytes);
    sum ^= x.x ^ x.y ^ x.z ^ x.w;
  }
  if (sum == 0x9e3779b9) *reinterpret_cast<U32*>(a.sink) = sum;
}

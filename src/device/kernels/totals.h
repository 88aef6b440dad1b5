#pragma once
// Adding up what the threads of a block know, in a fixed order.

#include "device/kernels/adding.h"

namespace luff::device::kernel {

__device__ inline void Add(Totals* t, const Totals& other) {
  t->sum += other.sum;
  t->sum_sq += other.sum_sq;
  t->abs_sum += other.abs_sum;
  t->low = other.low < t->low ? other.low : t->low;
  t->high = other.high > t->high ? other.high : t->high;
  t->counts += other.counts;
}

__device__ inline void Add(Differences* t, const Differences& other) {
  t->l1 += other.l1;
  t->sum_sq += other.sum_sq;
  t->max = other.max > t->max ? other.max : t->max;
  t->changed += other.changed;
  t->previous_l1 += other.previous_l1;
  t->previous_sum_sq += other.previous_sum_sq;
}

/// Adds up what each thread has put into `room[threadIdx.x]`, in shared memory; room[0] is then the sum. All
/// threads of the block must call it.
template <class T>
__device__ inline void AddUpBlock(T* room) {
#pragma unroll 1
  for (U32 half = kBlockThreads / 2; half != 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) Add(&room[threadIdx.x], room[threadIdx.x + half]);
  }
  __syncthreads();
}

}  // namespace luff::device::kernel

// Results of rows of more than one chunk: the partial rows in a fixed order.

#include "device/kernels/totals.h"

namespace luff::device::kernel {

__device__ inline U64 ChunksOf(const Row& row) {
  const U64 bytes = (row.count + row.lead) << SizeBitsOf(row.dtype);
  return (bytes + kChunkBytes - 1) / kChunkBytes;
}

/// Totals of a tensor; the counts of Totals are those of one chunk.
struct Whole {
  Totals totals;
  U64 count, zeros, nans, infs, hash_low, hash_high;
};
__device__ inline void Add(Whole* t, const Whole& other) {
  Add(&t->totals, other.totals);
  t->count += other.count;
  t->zeros += other.zeros;
  t->nans += other.nans;
  t->infs += other.infs;
  t->hash_low += other.hash_low;
  t->hash_high += other.hash_high;
}

}  // namespace luff::device::kernel

extern "C" __global__ void __launch_bounds__(256) luff_reduce(const luff::device::ReduceArguments a) {
  using namespace luff::device;
  using namespace luff::device::kernel;
  __shared__ Whole wholes[kBlockThreads];
  __shared__ Differences differences[kBlockThreads];
  const Row& row = reinterpret_cast<const Row*>(a.rows)[reinterpret_cast<const U32*>(a.joined)[blockIdx.x]];
  const U32 domain = DomainOf(row.dtype);
  const U64 chunks = ChunksOf(row);
  const Statistics* partials = reinterpret_cast<const Statistics*>(a.partials) + row.first_partial;
  Whole mine = {NoTotals(), 0, 0, 0, 0, 0, 0};
#pragma unroll 1
  for (U64 i = threadIdx.x; i < chunks; i += kBlockThreads) {
    const Statistics& s = partials[i];
    const bool any = s.count != s.nans + s.infs;
    const U64 low = any ? KeyOf(s.min_bits, domain) : ~0ull, high = any ? KeyOf(s.max_bits, domain) : 0;
    Add(&mine, {{s.sum, s.sum_sq, s.abs_sum, low, high, 0},
                s.count,
                s.zeros,
                s.nans,
                s.infs,
                s.hash_low,
                s.hash_high});
  }
  wholes[threadIdx.x] = mine;
  AddUpBlock(wholes);
  if (threadIdx.x == 0) {
    const Whole& w = wholes[0];
    const bool any = w.count != w.nans + w.infs;
    Statistics& to = reinterpret_cast<Statistics*>(a.results)[row.result];
    to.count = w.count;
    to.sum = w.totals.sum;
    to.sum_sq = w.totals.sum_sq;
    to.abs_sum = w.totals.abs_sum;
    to.min_bits = any ? BitsOf(w.totals.low, domain) : 0;
    to.max_bits = any ? BitsOf(w.totals.high, domain) : 0;
    to.zeros = w.zeros;
    to.nans = w.nans;
    to.infs = w.infs;
    to.hash_low = w.hash_low;
    to.hash_high = w.hash_high;
    to.unused = 0;
  }
  if (row.previous == 0) return;
  const Differences* parts = reinterpret_cast<const Differences*>(a.difference_partials) + row.first_partial;
  Differences sums = {0, 0, 0, 0, 0, 0};
#pragma unroll 1
  for (U64 i = threadIdx.x; i < chunks; i += kBlockThreads) Add(&sums, parts[i]);
  differences[threadIdx.x] = sums;
  AddUpBlock(differences);
  if (threadIdx.x == 0) reinterpret_cast<Differences*>(a.differences)[row.difference] = differences[0];
}

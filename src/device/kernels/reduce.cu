// Results of rows of more than one chunk: the partial rows in a fixed order.

#include "device/kernels/totals.h"

namespace luff::device::kernel {

__device__ inline U64 ChunksOf(const Row& row) {
  const U64 bytes = (row.count + row.lead) << SizeBitsOf(row.dtype);
  return (bytes + kChunkBytes - 1) / kChunkBytes;
}

}  // namespace luff::device::kernel

extern "C" __global__ void __launch_bounds__(256) luff_reduce(const luff::device::ReduceArguments a) {
  using namespace luff::device;
  using namespace luff::device::kernel;
  __shared__ Statistics room[kBlockThreads];
  __shared__ Differences difference_room[kBlockThreads];
  const Row& row = reinterpret_cast<const Row*>(a.rows)[reinterpret_cast<const U32*>(a.joined)[blockIdx.x]];
  const U64 chunks = ChunksOf(row);
  const Statistics* partials = reinterpret_cast<const Statistics*>(a.partials) + row.first_partial;
  // No table, no pointer into it: a row without a previous value has none.
  const Differences* differences =
      row.previous != 0 ? reinterpret_cast<const Differences*>(a.difference_partials) + row.first_partial
                        : nullptr;
  const U32 differs = row.previous != 0 ? 1 : 0;
  Statistics* mine = &room[threadIdx.x];
  *mine = NoStatistics();
  difference_room[threadIdx.x] = {0, 0, 0, 0, 0, 0};
#pragma unroll 1
  for (U64 i = threadIdx.x; i < chunks; i += kBlockThreads) {
    Statistics partial = partials[i];
    BitsToKeys(&partial, Anew(row.dtype));
    Add(mine, &partial);
    if (Anew(differs) != 0) Add(&difference_room[threadIdx.x], &differences[i]);
  }
  AddUpBlock(room);
  AddUpBlock(difference_room);
  if (threadIdx.x != 0) return;
  KeysToBits(mine, row.dtype);
  Copy(mine, reinterpret_cast<Statistics*>(a.results) + row.result);
  if (row.previous != 0)
    Copy(difference_room, reinterpret_cast<Differences*>(a.differences) + row.difference);
}

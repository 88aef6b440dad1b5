// Counts and sums of each unit (neuron, channel) of a tensor. A block has some units to itself, so nothing is
// added atomically.

#include "device/kernels/totals.h"

namespace luff::device::kernel {

__device__ inline void AddCount(UnitCount* t, const UnitCount& other) {
  t->positive += other.positive;
  t->zero += other.zero;
  t->sum += other.sum;
}

/// Adds element number `index` of the stream.
__device__ inline void AddElement(const Elements& elements, U32 dtype, U64 index, UnitCount* t) {
  const Element e = Gather(elements, index, 0, 1);
  const double value = NumberOf(e.low, e.high, dtype).value;
  if (value == 0) ++t->zero;
  if (!IsFinite(value)) return;
  if (value > 0) ++t->positive;
  t->sum += value;
}

/// Number of position `p` of unit `u`.
__device__ inline U64 IndexOf(const UnitsRow& row, U64 u, U64 p) {
  const U64 outer = Divide(p, row.inner);
  return (outer * row.units + u) * row.inner + (p - outer * row.inner);
}

__device__ inline UnitCount* UnitTarget(const UnitsRow& row, U32 split, U64 unit) {
  if (row.splits == 1) return reinterpret_cast<UnitCount*>(row.results) + unit;
  return reinterpret_cast<UnitCount*>(row.partials) + split * row.units + unit;
}

}  // namespace luff::device::kernel

extern "C" __global__ void __launch_bounds__(256) luff_units(const luff::device::UnitsArguments a) {
  using namespace luff::device;
  using namespace luff::device::kernel;
  __shared__ UnitCount room[kBlockThreads];
  const UnitsWork work = reinterpret_cast<const UnitsWork*>(a.work)[blockIdx.x];
  const UnitsRow row = reinterpret_cast<const UnitsRow*>(a.rows)[work.row];
  const bool across = row.form == kUnitsAcross;
  const U32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // The threads of a unit: one in each warp, or all of one warp.
  const U32 place = across ? warp : lane, places = across ? kBlockThreads / 32 : 32, apart = across ? 32 : 1;
  const U64 unit = work.first_unit + (across ? lane : warp);
  const U64 length = across ? kAcrossPositions : kWithinPositions;
  const U64 positions = row.outer * row.inner, begin = work.split * length;
  const U64 end = positions - begin < length ? positions : begin + length;
  UnitCount count = {0, 0, 0};
  if (unit < row.units) {
    const Elements elements = {row.data, reinterpret_cast<const Loops*>(a.loops) + row.loops, row.depth,
                               SizeOf(row.dtype), SizeBitsOf(row.dtype)};
#pragma unroll 1
    for (U64 p = begin + place; p < end; p += places)
      AddElement(elements, Anew(row.dtype), IndexOf(row, unit, p), &count);
  }
  room[threadIdx.x] = count;
#pragma unroll 1
  for (U32 half = places / 2; half != 0; half /= 2) {
    __syncthreads();
    if (place < half) AddCount(&room[threadIdx.x], room[threadIdx.x + half * apart]);
  }
  if (place == 0 && unit < row.units) *UnitTarget(row, work.split, unit) = room[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(256)
    luff_reduce_units(const luff::device::ReduceUnitsArguments a) {
  using namespace luff::device;
  using namespace luff::device::kernel;
  const UnitsWork work = reinterpret_cast<const UnitsWork*>(a.work)[blockIdx.x];
  const UnitsRow row = reinterpret_cast<const UnitsRow*>(a.rows)[work.row];
  const U64 unit = work.first_unit + threadIdx.x;
  if (unit >= row.units) return;
  const UnitCount* partials = reinterpret_cast<const UnitCount*>(row.partials) + unit;
  UnitCount count = {0, 0, 0};
#pragma unroll 1
  for (U32 split = 0; split < row.splits; ++split) AddCount(&count, partials[split * row.units]);
  reinterpret_cast<UnitCount*>(row.results)[unit] = count;
}

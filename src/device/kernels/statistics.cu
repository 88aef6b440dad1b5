// Statistics of all tensors of a step in one launch: a block a chunk. luff_forms also does what only some
// rows ask for.

#include "device/kernels/totals.h"

namespace luff::device::kernel {

/// A row and the part of it that this block reads.
struct Chunk {
  Elements elements;
  U32 per_vector, vector_bits;  // elements of a vector: 2 to the power of vector_bits
  U64 slots;                    // elements of the stream, and `lead`
  U64 base;                     // where vector 0 is, if the row is dense
  U64 begin, end;               // vectors of the chunk
  U64 group_begin;              // vectors that are read in groups of four by every thread
  U32 groups;                   // how many groups each thread reads
  U64 copy_to;                  // of vector 0, if `copies`
  bool copies, copy_aligned;
};

__device__ inline Chunk ChunkOf(const Row& row, const Loops* loops, U32 chunk) {
  Chunk c;
  const U32 size_bits = SizeBitsOf(row.dtype), size = 1u << size_bits;
  c.elements = {row.data, loops + row.loops, row.depth, size, size_bits};
  c.vector_bits = 4 - size_bits;
  c.per_vector = 1u << c.vector_bits;
  c.slots = row.count == 0 ? 0 : row.count + row.lead;
  const U64 vectors = (c.slots + c.per_vector - 1) >> c.vector_bits;
  c.begin = static_cast<U64>(chunk) * kChunkVectors;
  c.begin = c.begin < vectors ? c.begin : vectors;
  c.end = vectors - c.begin < kChunkVectors ? vectors : c.begin + kChunkVectors;
  c.base = row.data - row.lead * size;
  c.copies = row.copy_to != 0;
  c.copy_to = row.copy_to - row.lead * size;
  c.copy_aligned = c.copy_to % kVectorBytes == 0;
  // Whole vectors only: the first may lack its beginning, the last its end.
  c.group_begin = c.begin + (c.begin == 0 && row.lead != 0 ? 1 : 0);
  const U64 whole_end = c.end == vectors && (c.slots & (c.per_vector - 1)) != 0 ? c.end - 1 : c.end;
  const bool aligned = row.depth == 0 && c.base % kVectorBytes == 0;
  const bool fast = aligned && (!c.copies || c.copy_aligned) && whole_end > c.group_begin;
  c.groups = fast ? static_cast<U32>((whole_end - c.group_begin) / (4 * kBlockThreads)) : 0;
  return c;
}

/// The part of a row's elements that lies in vectors [begin, end).
__device__ inline U64 CountOf(const Chunk& c, U32 lead) {
  const U64 last = c.end << c.vector_bits < c.slots ? c.end << c.vector_bits : c.slots;
  const U64 first = c.begin == 0 ? lead : c.begin << c.vector_bits;
  return last > first ? last - first : 0;
}

/// What luff_forms does besides: nothing in luff_statistics.
struct NoForms {
  static constexpr bool kAny = false;
};

struct Forms {
  static constexpr bool kAny = true;
  const Row* row;
  U32* bins;                // in shared memory; null without a histogram
  Differences differences;  // this thread's

  /// Adds elements [first, last) of vector number `vector` to `t` and to the other forms.
  __device__ void Add(const Chunk& c, U64 vector, const uint4& x, U32 first, U32 last, Sums* t) {
    const U32 size = c.elements.size, differs = row->previous != 0 ? 1 : 0;
    const U32 counts = bins != nullptr ? 1 : 0;
    uint4 y = x;
    const U64 at = row->previous + vector * kVectorBytes;
    const bool whole = last == c.per_vector && row->previous % kVectorBytes == 0;
    if (Anew(differs) != 0) {  // then lead is 0
      const Elements before = {row->previous, nullptr, 0, size, c.elements.size_bits};
      y = whole ? ReadVector(at) : VectorOf(Gather(before, vector << c.vector_bits, 0, last));
      if ((row->flags & kRowReplacePrevious) != 0) {
        if (whole)
          WriteVector(at, x);
        else
          Scatter(at, size, x, 0, last);
      }
    }
#pragma unroll 1
    for (U32 k = first; k < last; ++k) {
      const U32 dtype = Anew(row->dtype);
      const Element now = ElementAt(x, k, size);
      const Number number = NumberOf(now.low, now.high, dtype);
      AddNumber(t, number);
      if (Anew(counts) != 0) Count(number.value);
      if (Anew(differs) == 0) continue;
      const Element then = ElementAt(y, k, size);
      const double value = NumberOf(then.low, then.high, dtype).value;
      double distance = number.value - value;
      if (IsComplex(dtype)) distance = Magnitude(Minus(ComplexOf(now, dtype), ComplexOf(then, dtype)));
      AddDifference(fabs(distance), fabs(value));
      differences.changed += now.low != then.low || now.high != then.high ? 1 : 0;
    }
  }

 private:
  __device__ void Count(double d) {
    constexpr double kMost = 0x1.fffffep127;  // finite values beyond float32 become its largest
    if (!IsFinite(d)) return;
    d = d > kMost ? kMost : d < -kMost ? -kMost : d;
    atomicAdd(&bins[__float_as_uint(static_cast<float>(d)) >> 20], 1u);
  }

  __device__ void AddDifference(double distance, double value) {
    if (IsFinite(distance)) {
      differences.l1 += distance;
      differences.sum_sq = fma(distance, distance, differences.sum_sq);
      differences.max = distance > differences.max ? distance : differences.max;
    }
    if (IsFinite(value)) {
      differences.previous_l1 += value;
      differences.previous_sum_sq = fma(value, value, differences.previous_sum_sq);
    }
  }
};

/// Reads and copies a vector that may be incomplete, strided or not aligned. Its elements are [*first,
/// *last).
__device__ inline uint4 ReadOne(const Chunk& c, const Row& row, U64 vector, U32* first, U32* last) {
  const U64 slot = vector << c.vector_bits;
  *first = vector == 0 ? row.lead : 0;
  *last = c.slots - slot < c.per_vector ? static_cast<U32>(c.slots - slot) : c.per_vector;
  const bool whole = *first == 0 && *last == c.per_vector;
  const U64 address = c.base + vector * kVectorBytes;
  const bool direct = whole && c.elements.depth == 0 && address % kVectorBytes == 0;
  const uint4 x = direct ? ReadVector(address) : VectorOf(Gather(c.elements, slot - row.lead, *first, *last));
  if (c.copies) {
    const U64 to = c.copy_to + vector * kVectorBytes;
    if (whole && c.copy_aligned)
      WriteVector(to, x);
    else
      Scatter(to, c.elements.size, x, *first, *last);
  }
  return x;
}

/// Reads this thread's vectors of the chunk (luff_forms adds with care always): first in groups of four, then
/// all others, one at a time: what lies before the groups, and what follows them.
template <class F>
__device__ inline void Read(const Chunk& c, const Row& row, Statistics* totals, F* forms) {
  const U32 rest = static_cast<U32>(c.end - c.begin) - c.groups * (4 * kBlockThreads);
  const U32 singles = rest > threadIdx.x ? (rest - threadIdx.x + kBlockThreads - 1) / kBlockThreads : 0;
  const U32 dtype = row.dtype, copies = c.copies ? 1 : 0;
  const U32 narrow = !F::kAny && IsNarrowFloat(dtype) ? 1 : 0;
  Floats floats(dtype, c.elements.size);
  U64 vector = c.group_begin + threadIdx.x;
#pragma unroll 1
  for (U32 i = 0; i < c.groups + singles; ++i) {
    uint4 x[4];
    U32 vectors = 4, first = 0, last = c.per_vector;
    U32 refused = 15;  // vectors that are added with care
    if (i < c.groups) {
      const U64 address = c.base + vector * kVectorBytes;
#pragma unroll
      for (U32 j = 0; j < 4; ++j) x[j] = ReadVector(address + j * (kBlockThreads * kVectorBytes));
      if (Anew(copies) != 0) {
        const U64 to = c.copy_to + vector * kVectorBytes;
#pragma unroll
        for (U32 j = 0; j < 4; ++j) WriteVector(to + j * (kBlockThreads * kVectorBytes), x[j]);
      }
      if (Anew(narrow) != 0) refused = floats.Add(x);
      if (refused == 0) {
        vector += 4 * kBlockThreads;
        continue;
      }
    } else {
      const U32 number = threadIdx.x + (i - c.groups) * kBlockThreads;
      const U32 before = static_cast<U32>(c.group_begin - c.begin);
      const U32 grouped = number < before ? 0 : c.groups * (4 * kBlockThreads);
      vector = c.begin + number + grouped;
      vectors = 1;
      x[0] = ReadOne(c, row, vector, &first, &last);
    }
#pragma unroll 1
    for (U32 j = 0; j < vectors; ++j) {
      Sums t = SumsOf(*totals);
      if constexpr (F::kAny) {
        forms->Add(c, vector, x[0], first, last, &t);
      } else if ((refused >> j & 1) != 0) {
#pragma unroll 1
        for (U32 k = first; k < last; ++k) {
          const Element e = ElementAt(x[0], k, c.elements.size);
          AddNumber(&t, NumberOf(e.low, e.high, Anew(dtype)));
        }
      }
      Store(t, totals);
      vector += kBlockThreads;
      Rotate(x);
    }
  }
  if (narrow != 0) floats.AddTo(totals);
}

/// Where the statistics of a chunk go: to the result if there is no other chunk.
__device__ inline bool IsOnlyChunk(const Chunk& c) {
  return c.slots <= static_cast<U64>(kChunkVectors) << c.vector_bits;
}

__device__ inline void WriteStatistics(const StatisticsArguments& a, const Row& row, const Chunk& chunk,
                                       U32 number, Statistics* sum) {
  sum->count = CountOf(chunk, row.lead);
  KeysToBits(sum, row.dtype);
  Copy(sum, IsOnlyChunk(chunk) ? reinterpret_cast<Statistics*>(a.results) + row.result
                               : reinterpret_cast<Statistics*>(a.partials) + row.first_partial + number);
}

}  // namespace luff::device::kernel

extern "C" __global__ void __launch_bounds__(256, 3)
    luff_statistics(const luff::device::StatisticsArguments a) {
  using namespace luff::device;
  using namespace luff::device::kernel;
  __shared__ Row row;
  __shared__ Chunk chunk;
  __shared__ Statistics totals[kBlockThreads];
  const Work work = reinterpret_cast<const Work*>(a.work)[blockIdx.x];
  if (threadIdx.x == 0) {
    row = reinterpret_cast<const Row*>(a.rows)[work.row];
    chunk = ChunkOf(row, reinterpret_cast<const Loops*>(a.loops), work.chunk);
  }
  __syncthreads();
  totals[threadIdx.x] = NoStatistics();
  Read<NoForms>(chunk, row, &totals[threadIdx.x], nullptr);
  const U64 vectors = chunk.end - chunk.begin;
  AddUpBlock<Statistics, AddPlain>(totals,
                                   vectors < kBlockThreads ? static_cast<U32>(vectors) : kBlockThreads);
  if (threadIdx.x == 0) WriteStatistics(a, row, chunk, work.chunk, totals);
}

extern "C" __global__ void __launch_bounds__(256, 2) luff_forms(const luff::device::StatisticsArguments a) {
  using namespace luff::device;
  using namespace luff::device::kernel;
  __shared__ Row row;
  __shared__ Chunk chunk;
  __shared__ Statistics totals[kBlockThreads];
  __shared__ U32 bins[kHistogramCounters];
  const Work work = reinterpret_cast<const Work*>(a.work)[blockIdx.x];
  if (threadIdx.x == 0) {
    row = reinterpret_cast<const Row*>(a.rows)[work.row];
    chunk = ChunkOf(row, reinterpret_cast<const Loops*>(a.loops), work.chunk);
  }
  __syncthreads();
  const bool histogram = row.histogram != 0;
  if (histogram) {
#pragma unroll 1
    for (U32 i = threadIdx.x; i < kHistogramCounters; i += kBlockThreads) bins[i] = 0;
    __syncthreads();
  }
  totals[threadIdx.x] = NoStatistics();
  Forms forms = {&row, histogram ? bins : nullptr, {0, 0, 0, 0, 0, 0}};
  Read(chunk, row, &totals[threadIdx.x], &forms);
  AddUpBlock(totals);  // behind its barriers the bins are complete
  if (histogram) {
    U64* to = reinterpret_cast<U64*>(row.histogram);
#pragma unroll 1
    for (U32 i = threadIdx.x; i < kHistogramCounters; i += kBlockThreads) {
      if (bins[i] != 0) atomicAdd(&to[i], static_cast<U64>(bins[i]));
    }
  }
  if (threadIdx.x == 0) WriteStatistics(a, row, chunk, work.chunk, totals);
  if (row.previous == 0) return;
  __syncthreads();
  // The same shared memory again.
  Differences* differences = reinterpret_cast<Differences*>(totals);
  differences[threadIdx.x] = forms.differences;
  AddUpBlock(differences);
  if (threadIdx.x != 0) return;
  Copy(differences, IsOnlyChunk(chunk) ? reinterpret_cast<Differences*>(a.differences) + row.difference
                                       : reinterpret_cast<Differences*>(a.difference_partials) +
                                             row.first_partial + work.chunk);
}

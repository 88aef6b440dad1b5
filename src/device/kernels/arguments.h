#pragma once
// What the host and the kernels share: tables in device memory, arguments of kernels, shapes of launches.
// Compiled by NVRTC, by the host's compiler in the library, and by it again where tests run kernels on the
// CPU; therefore it includes nothing.
//
// A step that reads tensors on a device:
//
//   1. The host builds rows, loops and work (tables.h does it from views) and uploads them when they changed.
//   2. Histograms of rows that want one are set to zero (cuMemsetD8Async).
//   3. luff_statistics over the work of rows that want statistics, with or without a copy; luff_forms over
//   the work of
//      rows that want more. Either is left out when its list is empty.
//   4. luff_reduce over the rows that have more than one chunk. All others have their result by now.
//   5. luff_units, then luff_reduce_units, where units were asked for.
//   6. Results, differences, histograms and units are copied to the host. tables.h turns them into the types
//   of
//      luff/tensor/summary.h.
//
// All launches of a step go to one stream, in this order. Each kernel takes one struct by value, so
// kernelParams of cuLaunchKernel is the address of one pointer to it. No kernel uses dynamic shared memory,
// local heap or printf. The same input gives the same bits in every run: sums are added in a fixed order, and
// only integers are added atomically.

namespace luff::device {

using U8 = unsigned char;
using U16 = unsigned short;
using U32 = unsigned int;
using U64 = unsigned long long;
using I64 = long long;
static_assert(sizeof(U16) == 2 && sizeof(U32) == 4 && sizeof(U64) == 8, "widths that CUDA has everywhere");

#ifndef __CUDACC_RTC__
/// Names of the kernels in the fat binary, for cuModuleGetFunction.
inline constexpr const char* kStatisticsKernel = "luff_statistics";     // StatisticsArguments
inline constexpr const char* kFormsKernel = "luff_forms";               // StatisticsArguments
inline constexpr const char* kReduceKernel = "luff_reduce";             // ReduceArguments
inline constexpr const char* kUnitsKernel = "luff_units";               // UnitsArguments
inline constexpr const char* kReduceUnitsKernel = "luff_reduce_units";  // ReduceUnitsArguments
inline constexpr const char* kReadKernel = "luff_read";                 // ReadArguments; for benchmarks
#endif

/// Threads of a block, in x, of every kernel. The grid is one-dimensional: one block for each entry of the
/// list that a kernel works on. An empty list must not be launched (CUDA refuses a grid of 0).
inline constexpr U32 kBlockThreads = 256;

/// Memory is read in vectors. An element never crosses the border of one.
inline constexpr U32 kVectorBytes = 16;
/// One block reads one chunk: 8,192 vectors, 32 of them in each thread. Source: enough blocks for 132
/// processors from 32 MiB on; a partial row for each chunk is 0.05 % of what is read.
inline constexpr U32 kChunkVectors = 8192;
inline constexpr U32 kChunkBytes = kChunkVectors * kVectorBytes;
inline constexpr U32 kHistogramCounters = 4096;  // luff::kHistogramBins
inline constexpr U32 kMaxLoops = 8;              // luff::kMaxRank

/// Flags of Row.
inline constexpr U16 kRowReplacePrevious = 1;  // luff_forms overwrites `previous` with the elements

/// One tensor. Addresses are device addresses; 0 means "none".
///
/// The elements are read as a stream of `count` elements: side by side from `data` if `depth` is 0, else in
/// the order of the loops. The stream is cut into vectors, the vectors into chunks. `lead` elements are
/// missing at the beginning of the first vector: a dense row whose `data` is not aligned to 16 bytes begins
/// in the middle of a vector, so that all others are aligned. A row with a difference has lead 0, since that
/// depends on how the stream is cut; it is then read in smaller pieces if it is not aligned.
struct alignas(16) Row {
  U64 data;       // the first element. Any alignment
  U64 count;      // elements, not 0: an empty tensor has no row
  U64 copy_to;    // where the stream is copied, side by side; (copy_to - data) % 16 == 0 is fastest
  U64 previous;   // the last value, side by side, `count` elements, aligned to 16: asks for the difference
  U64 histogram;  // kHistogramCounters counters (U64), zero before the launch; the kernel adds
  U32 first_partial;  // partials [first_partial, first_partial + chunks) belong to the row, if chunks > 1
  U32 loops;          // index of the row's Loops; read only if depth is not 0
  U32 result;         // index of its Statistics
  U32 difference;     // index of its Differences; read only if `previous` is not 0
  U8 dtype;           // luff::DType
  U8 depth;           // number of loops; 0: dense
  U16 flags;
  U32 lead;  // elements of the first vector that do not belong to the row: 0 .. 16 / element size - 1
};
static_assert(sizeof(Row) == 64, "the host uploads it as it is");

/// The loops over a strided tensor, outermost first. Strides in bytes, of any sign, 0 too.
struct Loops {
  U64 count[kMaxLoops];
  I64 stride[kMaxLoops];
};
static_assert(sizeof(Loops) == 128, "the host uploads it as it is");

/// One block's work.
struct Work {
  U32 row;
  U32 chunk;
};
static_assert(sizeof(Work) == 8, "the host uploads it as it is");

/// Statistics of a chunk (a partial row) or of a tensor (a result). Means what luff::Summary means.
struct Statistics {
  U64 count;
  double sum;
  double sum_sq;
  double abs_sum;
  U64 min_bits;  // as in Summary: bits of a double, an int64 or a uint64; 0 if nothing is finite
  U64 max_bits;
  U64 zeros;
  U64 nans;
  U64 infs;
};
static_assert(sizeof(Statistics) == 72, "the host reads it as it is");

/// Difference from the last value; means what luff::Difference means. Sums are taken in float64.
struct Differences {
  double l1;
  double sum_sq;
  double max;
  U64 changed;
  double previous_l1;
  double previous_sum_sq;
};
static_assert(sizeof(Differences) == 48, "the host reads it as it is");

/// luff_statistics and luff_forms: one block for each entry of `work`.
///
/// luff_statistics ignores `histogram`, `previous` and `flags`; a row that has any of them belongs into the
/// list of luff_forms. A row's chunks all belong into the same list.
struct StatisticsArguments {
  U64 rows;                 // Row*
  U64 loops;                // Loops*; may be 0 if every depth is 0
  U64 work;                 // Work*
  U64 partials;             // Statistics*; as many as all rows of more than one chunk have chunks
  U64 results;              // Statistics*; one for each row
  U64 difference_partials;  // Differences*; same indices as partials; may be 0 if no row has `previous`
  U64 differences;          // Differences*
};

/// luff_reduce: one block for each entry of `joined`.
struct ReduceArguments {
  U64 rows;
  U64 joined;  // U32*: rows of more than one chunk
  U64 partials;
  U64 results;
  U64 difference_partials;
  U64 differences;
};

/// Counts of one unit; means what one entry of luff::UnitCounts means.
struct UnitCount {
  U64 positive;
  U64 zero;
  double sum;
};
static_assert(sizeof(UnitCount) == 24, "the host reads it as it is");

/// How a block divides units among its threads.
inline constexpr U8 kUnitsAcross =
    0;  // neighbours in memory are neighbouring units: a lane a unit, 32 units a block
inline constexpr U8 kUnitsWithin =
    1;  // neighbours in memory belong to one unit: a warp a unit, 8 units a block
inline constexpr U32 kAcrossUnits = 32;
inline constexpr U32 kWithinUnits = kBlockThreads / 32;
/// Positions of each unit that one block reads at most; more are divided among splits.
inline constexpr U32 kAcrossPositions = 2048;
inline constexpr U32 kWithinPositions = 8192;

/// One tensor seen as (outer, units, inner); element (o, u, i) belongs to unit u and is number
/// (o * units + u) * inner + i of the stream.
struct alignas(16) UnitsRow {
  U64 data;
  U64 outer;
  U64 units;
  U64 inner;
  U64 partials;  // UnitCount[splits][units]; read only if splits > 1
  U64 results;   // UnitCount[units]
  U32 loops;     // index of the row's Loops; read only if depth is not 0
  U32 splits;    // ceil(outer * inner / positions of a block)
  U8 dtype;
  U8 depth;
  U8 form;  // kUnitsAcross or kUnitsWithin
  U8 unused[5];
};
static_assert(sizeof(UnitsRow) == 64, "the host uploads it as it is");

struct UnitsWork {
  U32 row;
  U32 split;
  U64 first_unit;  // a multiple of the units of a block; of kBlockThreads for luff_reduce_units
};
static_assert(sizeof(UnitsWork) == 16, "the host uploads it as it is");

/// luff_units: one block for each entry of `work`.
struct UnitsArguments {
  U64 rows;   // UnitsRow*
  U64 loops;  // Loops*
  U64 work;   // UnitsWork*
};

/// luff_reduce_units: one block for each entry of `work`; rows of more than one split only, `split` is
/// ignored.
struct ReduceUnitsArguments {
  U64 rows;  // UnitsRow*
  U64 work;  // UnitsWork*
};

/// luff_read: reads `vectors` vectors and does next to nothing with them: the bandwidth that luff_statistics
/// is compared with. One block for each kChunkVectors vectors.
struct ReadArguments {
  U64 data;  // aligned to 16
  U64 vectors;
  U64 sink;  // U32*; written if a sum has one certain value, so that no load is left out
};

}  // namespace luff::device

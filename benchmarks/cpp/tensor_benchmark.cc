// Measures the tensor kernels, and memcpy and a plain sum in the same run for comparison. Sizes from 16 bytes
// to 256 MiB.
//
//   luff_tensor_benchmark --benchmark_filter='float32.*/4194304' --benchmark_min_time=0.2
//   LUFF_SIMD=avx2 luff_tensor_benchmark ...
//
// Compare rows of one run (bytes_per_second): absolute times depend on the machine and its other load.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "luff/tensor/hash.h"
#include "luff/tensor/summary.h"
#include "ordinary_values.h"

namespace luff {
namespace {

constexpr std::int64_t kLargest = std::int64_t{256} << 20;

/// Memory of one size, filled so that every dtype sees ordinary, finite values.
struct Buffers {
  explicit Buffers(std::size_t bytes, DType dtype = DType::kFloat32)
      : from(bytes + 64),
        to(bytes + 64, std::byte{1}) {
    FillOrdinary(dtype, &from);
  }
  std::vector<std::byte> from, to;
};

TensorView FlatView(const Buffers& buffers, DType dtype, std::size_t bytes) {
  const std::int64_t dims[] = {static_cast<std::int64_t>(bytes / DTypeSize(dtype))};
  return {buffers.from.data(), Layout::Contiguous(dtype, dims).value()};
}

void SetBytes(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(bytes));
}

void Memcpy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Buffers buffers(bytes);
  for (auto _ : state) {
    std::memcpy(buffers.to.data(), buffers.from.data(), bytes);
    benchmark::ClobberMemory();
  }
  SetBytes(state, bytes);
}

/// Only reads and adds: a bound for anything that reads the tensor once.
__attribute__((optimize("O3", "fast-math"), target_clones("arch=x86-64-v4", "avx2", "default"))) float
PlainSum(const float* from, std::size_t count) {
  float lanes[128] = {};
  for (std::size_t i = 0; i + 128 <= count; i += 128) {
    for (std::size_t k = 0; k < 128; ++k) lanes[k] += from[i + k];
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

void Sum(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Buffers buffers(bytes);
  for (auto _ : state) {
    benchmark::DoNotOptimize(PlainSum(reinterpret_cast<const float*>(buffers.from.data()), bytes / 4));
    benchmark::ClobberMemory();
  }
  SetBytes(state, bytes);
}

enum class What {
  kSummary,
  kSummaryCopy,
  kHistogram,
  kDifference,
  kUnits,
  kExtra,
  kHash,
  kTransposed,
  kTransposedCopy
};

void Kernel(benchmark::State& state, DType dtype, What what) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Buffers buffers(bytes, dtype);
  TensorView view = FlatView(buffers, dtype, bytes);
  if (what == What::kTransposed || what == What::kTransposedCopy) {
    const std::int64_t rows = 64;
    const std::int64_t dims[] = {static_cast<std::int64_t>(bytes / DTypeSize(dtype)) / rows, rows};
    const std::int64_t strides[] = {1, dims[0]};
    view.layout = Layout::Strided(dtype, dims, strides).value();
  }
  if (what == What::kUnits) {
    const std::int64_t dims[] = {static_cast<std::int64_t>(bytes / DTypeSize(dtype)) / 64, 64};
    view.layout = Layout::Contiguous(dtype, dims).value();
  }
  std::vector<std::uint64_t> dense(kHistogramBins);
  Summary summary;
  Difference difference;
  ExtraReductions extra;
  UnitCounts units;
  for (auto _ : state) {
    switch (what) {
      case What::kSummary:
      case What::kTransposed: Summarize(view, &summary); break;
      case What::kSummaryCopy:
      case What::kTransposedCopy: Summarize(view, &summary, buffers.to.data()); break;
      case What::kHistogram: SummarizeWithHistogram(view, &summary, dense); break;
      case What::kDifference: ComputeDifference(view, buffers.to.data(), true, &difference); break;
      case What::kUnits: ComputeUnits(view, UnitAxis::kLast, &units); break;
      case What::kExtra: ComputeExtra(view, &extra); break;
      case What::kHash: benchmark::DoNotOptimize(ContentHash(view)); break;
    }
    benchmark::DoNotOptimize(summary);
    benchmark::ClobberMemory();
  }
  SetBytes(state, bytes);
}

void Register(const std::string& name, DType dtype, What what, const std::vector<std::int64_t>& sizes) {
  auto* entry =
      benchmark::RegisterBenchmark((name + "/" + std::string(DTypeName(dtype))).c_str(),
                                   [dtype, what](benchmark::State& state) { Kernel(state, dtype, what); });
  for (const std::int64_t size : sizes) entry->Arg(size);
}

}  // namespace
}  // namespace luff

int main(int argc, char** argv) {
  using luff::DType;
  using luff::What;
  const std::vector<std::int64_t> all = {16,    64,      256,     1024,     4096,
                                         65536, 1 << 20, 4 << 20, 64 << 20, luff::kLargest};
  for (const std::int64_t size : all) {
    benchmark::RegisterBenchmark("memcpy", luff::Memcpy)->Arg(size);
    benchmark::RegisterBenchmark("plain_sum", luff::Sum)->Arg(size);
  }
  luff::Register("summary", DType::kFloat32, What::kSummary, all);
  luff::Register("summary_copy", DType::kFloat32, What::kSummaryCopy, all);
  luff::Register("summary_histogram", DType::kFloat32, What::kHistogram, all);
  luff::Register("hash", DType::kFloat32, What::kHash, all);
  for (const What what :
       {What::kDifference, What::kUnits, What::kExtra, What::kTransposed, What::kTransposedCopy}) {
    static const char* const names[] = {"",      "", "",           "difference",     "units",
                                        "extra", "", "transposed", "transposed_copy"};
    luff::Register(names[static_cast<int>(what)], DType::kFloat32, what, {65536, 4 << 20});
  }
  for (int i = 1; i < luff::kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype == DType::kFloat32) continue;
    luff::Register("summary", dtype, What::kSummary, {64, 65536, 4 << 20});
    luff::Register("summary_histogram", dtype, What::kHistogram, {4 << 20});
  }
  benchmark::AddCustomContext("simd_target", luff::SimdTarget());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

// Runs one kernel once over fixed memory. benchmarks/kernels.py counts its instructions under callgrind,
// which a busy machine does not disturb. Usage: luff_kernel_count KERNEL COUNT; without arguments it lists
// the kernels.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "luff/tensor/hash.h"
#include "luff/tensor/summary.h"
#include "ordinary_values.h"

namespace {

using luff::DType;
using luff::Layout;
using luff::TensorView;

struct Bench {
  std::vector<std::byte> from, to;
  std::vector<std::uint64_t> dense = std::vector<std::uint64_t>(luff::kHistogramBins);
  luff::Summary summary;
  luff::Difference difference;
  luff::ExtraReductions extra;
  luff::UnitCounts units;
  std::uint64_t hash = 0;
};

using Kernel = std::function<void(Bench&, const TensorView&)>;

std::vector<std::pair<std::string, std::pair<DType, Kernel>>> Kernels() {
  const Kernel summary = [](Bench& b, const TensorView& v) { luff::Summarize(v, &b.summary); };
  const Kernel copy = [](Bench& b, const TensorView& v) { luff::Summarize(v, &b.summary, b.to.data()); };
  const Kernel histogram = [](Bench& b, const TensorView& v) {
    luff::SummarizeWithHistogram(v, &b.summary, b.dense);
  };
  const Kernel difference = [](Bench& b, const TensorView& v) {
    luff::ComputeDifference(v, b.to.data(), true, &b.difference);
  };
  const Kernel units = [](Bench& b, const TensorView& v) {  // 16 units
    TensorView rows = v;
    const std::int64_t dims[] = {v.layout.dims[0] / 16, 16};
    rows.layout = Layout::Contiguous(v.layout.dtype, dims).value();
    luff::ComputeUnits(rows, luff::UnitAxis::kLast, &b.units);
  };
  const Kernel extra = [](Bench& b, const TensorView& v) { luff::ComputeExtra(v, &b.extra); };
  const Kernel hash = [](Bench& b, const TensorView& v) { b.hash = luff::ContentHash(v); };
  const Kernel transposed = [](Bench& b, const TensorView& v) {
    TensorView t = v;
    const std::int64_t rows = v.layout.dims[0] >= 64 ? 64 : 1;
    const std::int64_t dims[] = {v.layout.dims[0] / rows, rows};
    const std::int64_t strides[] = {1, dims[0]};
    t.layout = Layout::Strided(v.layout.dtype, dims, strides).value();
    luff::Summarize(t, &b.summary, b.to.data());
  };
  std::vector<std::pair<std::string, std::pair<DType, Kernel>>> all;
  for (int i = 1; i < luff::kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    all.push_back({"summary/" + std::string(luff::DTypeName(dtype)), {dtype, summary}});
  }
  all.push_back({"summary_copy/float32", {DType::kFloat32, copy}});
  all.push_back({"summary_histogram/float32", {DType::kFloat32, histogram}});
  all.push_back({"summary_histogram/bfloat16", {DType::kBFloat16, histogram}});
  all.push_back({"difference/float32", {DType::kFloat32, difference}});
  all.push_back({"units/float32", {DType::kFloat32, units}});
  all.push_back({"extra/float32", {DType::kFloat32, extra}});
  all.push_back({"hash/float32", {DType::kFloat32, hash}});
  all.push_back({"transposed_copy/float32", {DType::kFloat32, transposed}});
  return all;
}

}  // namespace

// callgrind counts inside this function only (--toggle-collect).
extern "C" [[gnu::noinline]] void LuffCountedRegion(const Kernel& kernel, Bench& bench,
                                                    const TensorView& view) {
  kernel(bench, view);
  asm volatile("" : : "r"(&bench) : "memory");
}

int main(int argc, char** argv) {
  const auto kernels = Kernels();
  if (argc != 3) {
    std::printf("simd %s\n", luff::SimdTarget());
    for (const auto& [name, entry] : kernels) std::printf("%s\n", name.c_str());
    return 0;
  }
  const long count = std::strtol(argv[2], nullptr, 10);
  if (count <= 0 || count > (1L << 26)) {
    std::fprintf(stderr, "count %s is not between 1 and 2^26\n", argv[2]);
    return 2;
  }
  for (const auto& [name, entry] : kernels) {
    if (name != argv[1]) continue;
    const auto& [dtype, kernel] = entry;
    Bench bench;
    const std::size_t bytes = static_cast<std::size_t>(count) * luff::DTypeSize(dtype);
    bench.from.resize(bytes);
    bench.to.resize(bytes);
    luff::FillOrdinary(dtype, &bench.from);
    const std::int64_t dims[] = {count};
    const TensorView view{bench.from.data(), Layout::Contiguous(dtype, dims).value()};
    kernel(bench, view);  // a first call chooses the SIMD target and sizes vectors
    LuffCountedRegion(kernel, bench, view);
    return 0;
  }
  std::fprintf(stderr, "no kernel is named %s; without arguments all are listed\n", argv[1]);
  return 2;
}

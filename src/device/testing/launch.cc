#include "device/testing/block.h"
// The kernels, after what they need of CUDA.
#include "device/kernels/kernels.cu"

#include "device/testing/launch.h"
#include "luff/tensor/summary.h"

namespace luff::device::testing {
namespace {

#define LUFF_SAME(name) \
  static_assert(static_cast<unsigned>(DType::name) == static_cast<unsigned>(kernel::name))
LUFF_SAME(kBool);
LUFF_SAME(kUInt8);
LUFF_SAME(kInt8);
LUFF_SAME(kUInt16);
LUFF_SAME(kInt16);
LUFF_SAME(kUInt32);
LUFF_SAME(kInt32);
LUFF_SAME(kUInt64);
LUFF_SAME(kInt64);
LUFF_SAME(kFloat16);
LUFF_SAME(kBFloat16);
LUFF_SAME(kFloat32);
LUFF_SAME(kFloat64);
LUFF_SAME(kComplex64);
LUFF_SAME(kComplex128);
LUFF_SAME(kFloat8E4M3FN);
LUFF_SAME(kFloat8E5M2);
LUFF_SAME(kFloat8E4M3FNUZ);
LUFF_SAME(kFloat8E5M2FNUZ);
LUFF_SAME(kFloat8E8M0FNU);
LUFF_SAME(kComplex32);
LUFF_SAME(kString);
#undef LUFF_SAME
static_assert(kHistogramCounters == kHistogramBins);
static_assert(kMaxLoops == static_cast<unsigned>(kMaxRank));

template <class Arguments>
void Run(void (*entry)(const Arguments), unsigned grid, ThreadOrder order, void** parameters) {
  const auto& arguments = *static_cast<const Arguments*>(parameters[0]);
  for (unsigned i = 0; i < grid; ++i) {
    const unsigned block = order == ThreadOrder::kForwards ? i : grid - 1 - i;
    RunBlock(kBlockThreads, order, [&](unsigned thread) {
      blockIdx = {block, 0, 0};
      threadIdx = {thread, 0, 0};
      entry(arguments);
    });
  }
}

}  // namespace

bool LaunchByName(std::string_view name, unsigned grid, unsigned block, void** parameters,
                  ThreadOrder order) {
  if (grid == 0 || block != kBlockThreads || parameters == nullptr || parameters[0] == nullptr) return false;
  const auto run = [&](auto entry) {
    Run(entry, grid, order, parameters);
    return true;
  };
  if (name == kStatisticsKernel) return run(&luff_statistics);
  if (name == kFormsKernel) return run(&luff_forms);
  if (name == kReduceKernel) return run(&luff_reduce);
  if (name == kUnitsKernel) return run(&luff_units);
  if (name == kReduceUnitsKernel) return run(&luff_reduce_units);
  if (name == kReadKernel) return run(&luff_read);
  return false;
}

}  // namespace luff::device::testing

// The kernels for every SIMD target, written once with Highway and compiled once per target by
// foreach_target.h.
//
// One pass computes everything. A loader turns elements of a dtype into lanes of float, double, int32,
// uint32, int64 or uint64; min and max stay in that width. Sums are taken:
//
// - in float64 lanes, block by block. The error for n elements is at most (160 + n / 2^15) * 2^-53 of the sum
//   of magnitudes.
// - for lanes of float (float32, float16, bfloat16, float8), from the second block on, in float lanes of at
//   most 16 terms that are then joined in float64: half the instructions. The values are taken relative to a
//   centre when the tensor's mean is large compared with its deviation, so that the variance keeps its digits
//   (mean 1e6, deviation 1). The error is at most 1.1e-6 of the sum of magnitudes, in practice some 1e-8.
//   Blocks whose squares would leave the range of a float are repeated in float64.
//
// Both loops assume that all elements are finite and check it afterwards: a sum of squares of finite values
// is finite, one with a NaN or Inf is not. If it is not finite, the block is repeated with non-finite lanes
// masked out.
#include "tensor/element.h"
#include "tensor/kernel_table.h"

// Targets: SSE4, AVX2, AVX-512 (AVX3), NEON. Other CPUs use kernels_scalar.cc.
#ifdef LUFF_SIMD_AVX2_ONLY
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels_simd.cc"
#include <hwy/foreach_target.h>

#include "tensor/forms-inl.h"
#include "tensor/loaders-inl.h"
#include "tensor/pass-inl.h"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace luff::tensor::HWY_NAMESPACE {

// The baseline that Highway calls SCALAR or EMU128 is not used.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

template <class L>
void Enter(KernelTable* table, DType dtype) {
  const auto i = static_cast<std::size_t>(dtype);
  table->summarize[i] = &Summarize<L>;
  table->to_double[i] = &ToDouble<L>;
  table->to_float[i] = &ToFloat<L>;
  table->difference[i] = &Differ<L>;
}

KernelTable MakeTable(const char* name, std::string_view setting, HashKernel hash) {
  KernelTable table = *ScalarKernels();
  table.name = name;
  table.setting = setting;
  table.hash = hash;
  table.units_across = &UnitsAcross;
  table.units_within = &UnitsWithin;
  Enter<Bool>(&table, DType::kBool);
  Enter<Integer<std::uint8_t>>(&table, DType::kUInt8);
  Enter<Integer<std::uint8_t>>(&table, DType::kString);
  Enter<Integer<std::int8_t>>(&table, DType::kInt8);
  Enter<Integer<std::uint16_t>>(&table, DType::kUInt16);
  Enter<Integer<std::int16_t>>(&table, DType::kInt16);
  Enter<Integer<std::uint32_t>>(&table, DType::kUInt32);
  Enter<Integer<std::int32_t>>(&table, DType::kInt32);
  Enter<Integer<std::uint64_t>>(&table, DType::kUInt64);
  Enter<Integer<std::int64_t>>(&table, DType::kInt64);
  Enter<Float16>(&table, DType::kFloat16);
  Enter<BFloat16>(&table, DType::kBFloat16);
  Enter<Float32>(&table, DType::kFloat32);
  Enter<Float64>(&table, DType::kFloat64);
  Enter<Complex32>(&table, DType::kComplex32);
  Enter<Complex64>(&table, DType::kComplex64);
  Enter<Complex128>(&table, DType::kComplex128);
  Enter<Float8<kFloat8E4M3FN>>(&table, DType::kFloat8E4M3FN);
  Enter<Float8<kFloat8E5M2>>(&table, DType::kFloat8E5M2);
  Enter<Float8<kFloat8E4M3FNUZ>>(&table, DType::kFloat8E4M3FNUZ);
  Enter<Float8<kFloat8E5M2FNUZ>>(&table, DType::kFloat8E5M2FNUZ);
  Enter<Float8<kFloat8E8M0FNU>>(&table, DType::kFloat8E8M0FNU);
  for (const DType complex : {DType::kComplex32, DType::kComplex64, DType::kComplex128}) {
    // |x - y| needs both parts, and the loaders give magnitudes.
    table.difference[static_cast<std::size_t>(complex)] =
        ScalarKernels()->difference[static_cast<std::size_t>(complex)];
  }
  return table;
}

#endif  // a SIMD target

}  // namespace luff::tensor::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace luff::tensor {

// Tables are made on first use, after dispatch.cc has found that the CPU can run the code that makes them.
#if HWY_TARGETS & HWY_SSE4
const KernelTable* Sse4Kernels() noexcept {
  static const KernelTable table = N_SSE4::MakeTable("SSE4", "sse4", &HashBaseline);
  return &table;
}
#else
const KernelTable* Sse4Kernels() noexcept { return nullptr; }
#endif

#if HWY_TARGETS & HWY_AVX2
const KernelTable* Avx2Kernels() noexcept {
  static const KernelTable table = N_AVX2::MakeTable("AVX2", "avx2", &HashAvx2);
  return &table;
}
#else
const KernelTable* Avx2Kernels() noexcept { return nullptr; }
#endif

#if HWY_TARGETS & HWY_AVX3
const KernelTable* Avx3Kernels() noexcept {
  static const KernelTable table = N_AVX3::MakeTable("AVX3", "avx3", &HashAvx3);
  return &table;
}
#else
const KernelTable* Avx3Kernels() noexcept { return nullptr; }
#endif

#if HWY_TARGETS & HWY_NEON
const KernelTable* NeonKernels() noexcept {
  static const KernelTable table = N_NEON::MakeTable("NEON", "neon", &HashBaseline);
  return &table;
}
#else
const KernelTable* NeonKernels() noexcept { return nullptr; }
#endif

}  // namespace luff::tensor
#endif  // HWY_ONCE

// XXH3 with its AVX2 loop. Called only after dispatch.cc has found that the CPU supports it.
#include <cstring>

#include "tensor/kernel_table.h"

#if defined(__x86_64__)
#include <immintrin.h>

// This macro selects the loop, whose functions need the target's instructions. The headers that xxhash.h
// includes are included above, so that none of their functions is compiled for this target.
#define XXH_VECTOR 2
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi2")
#endif
#include <xxhash.h>

namespace luff::tensor {

std::uint64_t HashAvx2(const void* from, std::size_t bytes) noexcept { return XXH3_64bits(from, bytes); }

}  // namespace luff::tensor

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else

namespace luff::tensor {

std::uint64_t HashAvx2(const void* from, std::size_t bytes) noexcept { return HashBaseline(from, bytes); }

}  // namespace luff::tensor

#endif

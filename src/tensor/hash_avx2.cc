// XXH3 with its AVX2 loop. Only called after dispatch.cc has seen that the CPU has it.
#include <cstring>

#include "tensor/kernel_table.h"

#if defined(__x86_64__)
#include <immintrin.h>

// The loop is chosen by this macro, and its functions need the target's instructions; the headers that xxhash
// includes are already in, so no function of theirs is compiled with them.
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

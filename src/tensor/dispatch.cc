#include <atomic>
#include <cstdlib>
#include <limits>

#include "tensor/element.h"
#include "tensor/kernel_table.h"

namespace luff::tensor {
namespace {

struct Usable {
  std::array<const KernelTable*, 5> tables{};
  std::size_t count = 0;

  Usable() noexcept {
    Add(ScalarKernels());
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool sse4 = __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.2") &&
                      __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes");
    // f16c is implied: every CPU with AVX2 has it.
    const bool avx2 = sse4 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    const bool avx3 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (sse4) Add(Sse4Kernels());
    if (avx2) Add(Avx2Kernels());
    if (avx3) Add(Avx3Kernels());
#endif
    Add(NeonKernels());
  }

  void Add(const KernelTable* table) noexcept {
    if (table != nullptr) tables[count++] = table;
  }
};

const Usable& AllUsable() noexcept {
  static const Usable usable;
  return usable;
}

std::atomic<const KernelTable*> chosen{nullptr};

[[gnu::noinline]] const KernelTable& Choose() noexcept {
  const Usable& usable = AllUsable();
  const KernelTable* best = usable.tables[usable.count - 1];
  if (const char* wanted = std::getenv("LUFF_SIMD"); wanted != nullptr) {
    for (std::size_t i = 0; i < usable.count; ++i) {
      if (usable.tables[i]->setting == wanted) best = usable.tables[i];
    }
  }
  chosen.store(best, std::memory_order_release);
  return *best;
}

}  // namespace

const KernelTable& Kernels() noexcept {
  const KernelTable* table = chosen.load(std::memory_order_acquire);
  return table != nullptr ? *table : Choose();
}

std::span<const KernelTable* const> UsableKernels() noexcept {
  const Usable& usable = AllUsable();
  return {usable.tables.data(), usable.count};
}

void SetKernels(const KernelTable* table) noexcept { chosen.store(table, std::memory_order_release); }

Summary Begin(DType dtype) noexcept {
  Summary summary;
  switch (DomainOf(dtype)) {
    case Domain::kFloat:
      summary.min_bits = std::bit_cast<std::uint64_t>(std::numeric_limits<double>::infinity());
      summary.max_bits = std::bit_cast<std::uint64_t>(-std::numeric_limits<double>::infinity());
      break;
    case Domain::kSigned:
      summary.min_bits = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
      summary.max_bits = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::min());
      break;
    case Domain::kUnsigned:
      summary.min_bits = std::numeric_limits<std::uint64_t>::max();
      summary.max_bits = 0;
      break;
  }
  return summary;
}

}  // namespace luff::tensor

namespace luff {

const char* SimdTarget() noexcept { return tensor::Kernels().name; }

}  // namespace luff

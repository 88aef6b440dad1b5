#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace luff {

/// Gets the pages of fresh memory from the kernel at once. Touched one by one, each page interrupts the
/// program, which in a virtual machine costs several times as much. What the memory holds stays as it is. A
/// hint: kernels before 5.14 ignore it, and small memory is left alone.
inline void Populate(void* memory, std::size_t bytes) noexcept {
  constexpr std::size_t kWorthPages = 8;
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + bytes) / page * page;
  if (first >= last || (last - first) / page < kWorthPages) return;
  (void)madvise(reinterpret_cast<void*>(first), last - first, kPopulateWrite);
}

}  // namespace luff

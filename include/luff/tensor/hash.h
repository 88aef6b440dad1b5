#pragma once
#include <cstddef>
#include <cstdint>

namespace luff {

/// XXH3-64 of bytes, seed 0: checksum of the run format and content hash of tensors.
///
/// Threads: safe. Cost: the fastest loop the CPU has (about memory bandwidth). `data` may be null when `size`
/// is 0. Source: XXH3 of xxHash 0.8; stable since 0.8.0.
[[nodiscard]] std::uint64_t HashBytes(const void* data, std::size_t size) noexcept;

}  // namespace luff

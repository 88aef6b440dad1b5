// XXH3 for the CPU that every build may assume (SSE2 or NEON), in one call and in pieces.
#include <new>

#include <xxhash.h>

#include "tensor/kernel_table.h"
#include "tensor/xxh3_stream.h"

namespace luff::tensor {

std::uint64_t HashBaseline(const void* from, std::size_t bytes) noexcept { return XXH3_64bits(from, bytes); }

Xxh3Stream::Xxh3Stream() noexcept {
  static_assert(sizeof(XXH3_state_t) <= sizeof(state_) && alignof(XXH3_state_t) <= 64);
  XXH3_64bits_reset(::new (static_cast<void*>(state_)) XXH3_state_t);
}

void Xxh3Stream::Add(const void* data, std::size_t bytes) noexcept {
  XXH3_64bits_update(std::launder(reinterpret_cast<XXH3_state_t*>(state_)), data, bytes);
}

std::uint64_t Xxh3Stream::Digest() const noexcept {
  return XXH3_64bits_digest(std::launder(reinterpret_cast<const XXH3_state_t*>(state_)));
}

}  // namespace luff::tensor

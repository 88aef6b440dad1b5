#pragma once
#include <cstddef>
#include <cstdint>

namespace luff::tensor {

/// XXH3-64 (seed 0) of bytes that arrive in pieces. About 600 bytes on the stack, no allocation.
class Xxh3Stream {
 public:
  Xxh3Stream() noexcept;
  void Add(const void* data, std::size_t bytes) noexcept;
  [[nodiscard]] std::uint64_t Digest() const noexcept;

 private:
  alignas(64) std::byte state_[640];
};

}  // namespace luff::tensor

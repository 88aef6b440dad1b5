#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace luff {

/// Reads little-endian values from borrowed bytes that may be hostile.
///
/// **Thread-compatible.** Every read checks the bound first and answers false without moving when the bytes
/// end too early. Lifetime: the bytes must outlive the cursor and every span it hands out.
class ByteCursor {
 public:
  explicit ByteCursor(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  [[nodiscard]] std::size_t position() const noexcept { return position_; }
  [[nodiscard]] std::size_t remaining() const noexcept { return bytes_.size() - position_; }
  [[nodiscard]] bool at_end() const noexcept { return remaining() == 0; }

  template <typename T>
  [[nodiscard]] bool Read(T* out) noexcept {
    static_assert(std::is_trivially_copyable_v<T>);
    if (remaining() < sizeof(T)) return false;
    std::memcpy(out, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }
  [[nodiscard]] bool ReadBytes(std::uint64_t count, std::span<const std::byte>* out) noexcept {
    if (remaining() < count) return false;
    *out = bytes_.subspan(position_, static_cast<std::size_t>(count));
    position_ += static_cast<std::size_t>(count);
    return true;
  }
  [[nodiscard]] bool ReadText(std::uint64_t count, std::string_view* out) noexcept {
    std::span<const std::byte> bytes;
    if (!ReadBytes(count, &bytes)) return false;
    *out = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    return true;
  }
  /// LEB128, at most ten bytes; false also for a value beyond 64 bits.
  [[nodiscard]] bool ReadVarint(std::uint64_t* out) noexcept {
    std::uint64_t value = 0;
    std::size_t at = position_;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at == bytes_.size()) return false;
      const auto byte = static_cast<std::uint64_t>(bytes_[at++]);
      if (shift == 63 && byte > 1) return false;
      value |= (byte & 0x7FU) << shift;
      if ((byte & 0x80U) == 0) {
        *out = value;
        position_ = at;
        return true;
      }
    }
    return false;
  }
  /// Moves to the next multiple of `alignment` (a power of two), counted from the beginning of the bytes.
  [[nodiscard]] bool Align(std::size_t alignment) noexcept {
    const std::size_t to = (position_ + alignment - 1) & ~(alignment - 1);
    if (to < position_ || to > bytes_.size()) return false;
    position_ = to;
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
};

/// Rounds up to a multiple of `alignment`, a power of two. The caller makes sure that it fits into 64 bits.
[[nodiscard]] constexpr std::uint64_t AlignUp(std::uint64_t value, std::uint64_t alignment) noexcept {
  return (value + alignment - 1) & ~(alignment - 1);
}

}  // namespace luff

#include "capture/stacks/code_lines.h"

#include <optional>

namespace luff::capture {
namespace {

constexpr int kVersion310 = 0x030A;
constexpr std::int64_t kMostLines = 1 << 30;

/// Bytes of a table, one after the other.
struct Bytes {
  std::span<const std::byte> left;
  [[nodiscard]] std::optional<std::uint8_t> Next() noexcept {
    if (left.empty()) return std::nullopt;
    const auto byte = static_cast<std::uint8_t>(left.front());
    left = left.subspan(1);
    return byte;
  }
  void Skip(std::size_t bytes) noexcept { left = left.subspan(bytes < left.size() ? bytes : left.size()); }
  /// Six bits a byte, the lowest first; bit 6 says that more follow.
  [[nodiscard]] std::optional<std::uint32_t> Varint() noexcept {
    std::uint32_t value = 0;
    for (unsigned shift = 0; shift < 30; shift += 6) {
      const auto byte = Next();
      if (!byte) return std::nullopt;
      value |= (*byte & 63U) << shift;
      if ((*byte & 64U) == 0) return value;
    }
    return std::nullopt;
  }
  [[nodiscard]] std::optional<std::int64_t> SignedVarint() noexcept {
    const auto value = Varint();
    if (!value) return std::nullopt;
    const auto magnitude = static_cast<std::int64_t>(*value >> 1U);
    return (*value & 1U) != 0 ? -magnitude : magnitude;
  }
};

int LineOr(std::int64_t line) noexcept { return line < 0 || line > kMostLines ? -1 : static_cast<int>(line); }

int LineOf310(Bytes bytes, std::int64_t line, std::int64_t instruction) noexcept {
  constexpr int kNoLine = -128;
  std::int64_t end = 0;  // in bytes
  for (;;) {
    const auto length = bytes.Next();
    const auto step = bytes.Next();
    if (!length || !step) return -1;
    const int delta = static_cast<std::int8_t>(*step);
    if (delta != kNoLine) line += delta;
    end += *length;
    if (2 * instruction < end) return delta == kNoLine ? -1 : LineOr(line);
  }
}

}  // namespace

int LineOfUntrusted(std::span<const std::byte> table, int version, int first_line,
                    std::int64_t instruction) noexcept {
  if (instruction < 0) return LineOr(first_line);  // the frame has not begun
  Bytes bytes{table};
  std::int64_t line = first_line;
  if (version == kVersion310) return LineOf310(bytes, line, instruction);
  std::int64_t end = 0;  // in units of two bytes
  for (;;) {
    const auto head = bytes.Next();
    if (!head || (*head & 0x80U) == 0) return -1;
    const unsigned code = *head >> 3U & 15U;
    end += (*head & 7U) + 1;
    switch (code) {
      case 15: break;  // no line
      case 14:
      case 13: {
        const auto delta = bytes.SignedVarint();
        if (!delta) return -1;
        line += *delta;
        for (int i = 0; code == 14 && i < 3; ++i) {
          if (!bytes.Varint()) return -1;
        }
        break;
      }
      case 12:
      case 11:
      case 10:
        line += code - 10;
        bytes.Skip(2);
        break;
      default: bytes.Skip(1);
    }
    if (instruction < end) return code == 15 ? -1 : LineOr(line);
  }
}

}  // namespace luff::capture

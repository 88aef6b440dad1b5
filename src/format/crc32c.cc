#include <array>
#include <cstring>

#include "luff/format/event_file.h"

namespace luff::format {
namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0);
    tables[0][i] = crc;
  }
  for (std::size_t t = 1; t < 8; ++t) {
    for (std::size_t i = 0; i < 256; ++i)
      tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xFFU];
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

/// Eight bytes at a time ("slicing by 8", Kounavis and Berry 2005).
std::uint32_t ExtendByTable(std::uint32_t crc, const std::byte* p, std::size_t n) noexcept {
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    word ^= crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][(word >> (8 * i)) & 0xFFU];
  }
  for (; n > 0; --n, ++p) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<std::uint32_t>(*p)) & 0xFFU];
  return crc;
}

#if defined(__x86_64__)
[[gnu::target("sse4.2")]] std::uint32_t ExtendByInstruction(std::uint32_t crc, const std::byte* p,
                                                            std::size_t n) noexcept {
  std::uint64_t state = crc;
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    state = __builtin_ia32_crc32di(state, word);
  }
  crc = static_cast<std::uint32_t>(state);
  for (; n > 0; --n, ++p) crc = __builtin_ia32_crc32qi(crc, static_cast<unsigned char>(*p));
  return crc;
}
const auto kExtend = __builtin_cpu_supports("sse4.2") != 0 ? ExtendByInstruction : ExtendByTable;
#else
const auto kExtend = ExtendByTable;
#endif

}  // namespace

std::uint32_t Crc32c(std::span<const std::byte> bytes) noexcept {
  return kExtend(0xFFFFFFFFU, bytes.data(), bytes.size()) ^ 0xFFFFFFFFU;
}

std::uint32_t MaskedCrc32c(std::span<const std::byte> bytes) noexcept {
  const std::uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

}  // namespace luff::format

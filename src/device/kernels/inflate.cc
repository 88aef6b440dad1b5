#include "device/kernels/inflate.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace luff::device {
namespace {

constexpr unsigned kMostBits = 15;

/// A stream of bits, lowest first. After the end it gives zeros and remembers it.
class Bits {
 public:
  explicit Bits(std::span<const unsigned char> bytes) noexcept : bytes_(bytes) {}

  unsigned Take(unsigned count) noexcept {
    unsigned value = 0;
    for (unsigned i = 0; i < count; ++i) value |= One() << i;
    return value;
  }
  unsigned One() noexcept {
    const std::size_t at = position_ / 8;
    if (at >= bytes_.size()) {
      ended_ = true;
      return 0;
    }
    return bytes_[at] >> (position_++ % 8) & 1u;
  }
  void SkipToByte() noexcept { position_ = (position_ + 7) / 8 * 8; }
  [[nodiscard]] bool ended() const noexcept { return ended_; }

 private:
  std::span<const unsigned char> bytes_;
  std::size_t position_ = 0;
  bool ended_ = false;
};

/// A canonical Huffman code: codes of a length are consecutive numbers, in the order of the symbols.
class Code {
 public:
  /// `lengths`: bits of each symbol's code, 0 for none. Returns false if more codes are asked for than there
  /// are.
  bool Set(std::span<const std::uint8_t> lengths) noexcept {
    count_.fill(0);
    for (const std::uint8_t length : lengths) ++count_[length];
    count_[0] = 0;
    int left = 1;
    std::array<std::uint16_t, kMostBits + 2> next{};
    for (unsigned bits = 1; bits <= kMostBits; ++bits) {
      left = 2 * left - count_[bits];
      if (left < 0) return false;
      next[bits + 1] = static_cast<std::uint16_t>(next[bits] + count_[bits]);
    }
    for (std::size_t symbol = 0; symbol < lengths.size(); ++symbol) {
      if (lengths[symbol] != 0) symbol_[next[lengths[symbol]]++] = static_cast<std::uint16_t>(symbol);
    }
    return true;
  }

  /// Returns the next symbol, or -1 if the bits are no code.
  int Read(Bits& bits) const noexcept {
    int code = 0, first = 0, index = 0;
    for (unsigned length = 1; length <= kMostBits; ++length) {
      code |= static_cast<int>(bits.One());
      const int count = count_[length];
      if (code - first < count) return symbol_[static_cast<std::size_t>(index + code - first)];
      index += count;
      first = 2 * (first + count);
      code *= 2;
    }
    return -1;
  }

 private:
  std::array<std::uint16_t, kMostBits + 1> count_{};
  std::array<std::uint16_t, 288> symbol_{};
};

/// RFC 1951, 3.2.5: base and number of further bits of a length or a distance.
struct Step {
  std::uint16_t base;
  std::uint8_t bits;
};
constexpr std::array<Step, 29> kLengths = [] {
  std::array<Step, 29> steps{};
  unsigned base = 3;
  for (unsigned i = 0; i < 28; ++i) {
    const unsigned bits = i < 8 ? 0 : i / 4 - 1;
    steps[i] = {static_cast<std::uint16_t>(base), static_cast<std::uint8_t>(bits)};
    base += 1u << bits;
  }
  steps[28] = {258, 0};
  return steps;
}();
constexpr std::array<Step, 30> kDistances = [] {
  std::array<Step, 30> steps{};
  unsigned base = 1;
  for (unsigned i = 0; i < 30; ++i) {
    const unsigned bits = i < 4 ? 0 : i / 2 - 1;
    steps[i] = {static_cast<std::uint16_t>(base), static_cast<std::uint8_t>(bits)};
    base += 1u << bits;
  }
  return steps;
}();

struct Codes {
  Code literals, distances;
};

bool SetFixed(Codes* codes) noexcept {
  std::array<std::uint8_t, 288> lengths;
  std::fill(lengths.begin(), lengths.end(), std::uint8_t{8});
  std::fill(lengths.begin() + 144, lengths.begin() + 256, std::uint8_t{9});
  std::fill(lengths.begin() + 256, lengths.begin() + 280, std::uint8_t{7});
  std::array<std::uint8_t, 30> distances;
  distances.fill(5);
  return codes->literals.Set(lengths) && codes->distances.Set(distances);
}

bool ReadCodes(Bits& bits, Codes* codes) noexcept {
  constexpr std::array<std::uint8_t, 19> kOrder = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                   11, 4,  12, 3, 13, 2, 14, 1, 15};
  const unsigned literals = bits.Take(5) + 257, distances = bits.Take(5) + 1, known = bits.Take(4) + 4;
  if (literals > 286 || distances > 30) return false;
  std::array<std::uint8_t, 19> short_lengths{};
  for (unsigned i = 0; i < known; ++i) short_lengths[kOrder[i]] = static_cast<std::uint8_t>(bits.Take(3));
  Code code;
  if (!code.Set(short_lengths)) return false;
  std::array<std::uint8_t, 286 + 30> lengths{};
  for (unsigned at = 0; at < literals + distances;) {
    const int symbol = code.Read(bits);
    if (symbol < 0 || bits.ended()) return false;
    if (symbol < 16) {
      lengths[at++] = static_cast<std::uint8_t>(symbol);
      continue;
    }
    if (symbol == 16 && at == 0) return false;
    const std::uint8_t repeated = symbol == 16 ? lengths[at - 1] : std::uint8_t{0};
    const unsigned times = symbol == 16   ? 3 + bits.Take(2)
                           : symbol == 17 ? 3 + bits.Take(3)
                                          : 11 + bits.Take(7);
    if (times > literals + distances - at) return false;
    std::fill_n(lengths.begin() + at, times, repeated);
    at += times;
  }
  const std::span<const std::uint8_t> all(lengths);
  return codes->literals.Set(all.first(literals)) && codes->distances.Set(all.subspan(literals, distances));
}

}  // namespace

bool InflateUntrusted(std::span<const unsigned char> packed, std::span<unsigned char> out) noexcept {
  Bits bits(packed);
  std::size_t done = 0;
  for (bool last = false; !last;) {
    last = bits.One() != 0;
    const unsigned kind = bits.Take(2);
    if (kind == 0) {  // bytes as they are
      bits.SkipToByte();
      const unsigned count = bits.Take(16), check = bits.Take(16);
      if ((count ^ check) != 0xffff || count > out.size() - done) return false;
      for (unsigned i = 0; i < count; ++i) out[done++] = static_cast<unsigned char>(bits.Take(8));
      if (bits.ended()) return false;
      continue;
    }
    Codes codes;
    if (kind == 3 || !(kind == 1 ? SetFixed(&codes) : ReadCodes(bits, &codes))) return false;
    for (;;) {
      const int symbol = codes.literals.Read(bits);
      if (symbol < 0 || bits.ended()) return false;
      if (symbol == 256) break;
      if (symbol < 256) {
        if (done == out.size()) return false;
        out[done++] = static_cast<unsigned char>(symbol);
        continue;
      }
      const auto length_step = static_cast<std::size_t>(symbol - 257);
      if (length_step >= kLengths.size()) return false;
      const std::size_t length = kLengths[length_step].base + bits.Take(kLengths[length_step].bits);
      const int distance_symbol = codes.distances.Read(bits);
      if (distance_symbol < 0 || distance_symbol >= static_cast<int>(kDistances.size())) return false;
      const Step step = kDistances[static_cast<std::size_t>(distance_symbol)];
      const std::size_t distance = step.base + bits.Take(step.bits);
      if (bits.ended() || distance > done || length > out.size() - done) return false;
      for (std::size_t i = 0; i < length; ++i, ++done) out[done] = out[done - distance];
    }
  }
  return done == out.size();
}

}  // namespace luff::device

#pragma once
// Counts into the 4,096 bins. Increments of one bin wait for each other (a load must see the store before
// it), and neighbours in a tensor often share a bin. So large tensors count into four tables in turn, which
// are added up at the end.
#include <bit>
#include <cstring>
#include <memory>
#include <span>

#include "luff/tensor/summary.h"
#include "tensor/kernel_table.h"

namespace luff::tensor {

/// Counts elements of one dtype into `dense`, which is complete after the destructor. 64 KiB on the stack, no
/// allocation.
class HistogramCounters {
 public:
  /// `expected`: roughly how many elements will come; small tensors are not worth clearing the tables.
  HistogramCounters(DType dtype, std::uint64_t expected, std::span<std::uint64_t> dense) noexcept
      : to_float_(Kernels().to_float[static_cast<std::size_t>(dtype)]),
        size_(DTypeSize(dtype)),
        is_float32_(dtype == DType::kFloat32),
        interleaved_(expected >= kWorthTables),
        dense_(dense) {
    if (interleaved_) std::memset(tables_, 0, sizeof(tables_));
  }
  ~HistogramCounters() {
    if (interleaved_) Join();
    // NaN and Inf have the largest exponent; their bins must stay empty.
    for (std::size_t i = 0; i < 8; ++i) dense_[0x7f8 + i] = dense_[0xff8 + i] = 0;
  }
  HistogramCounters(const HistogramCounters&) = delete;
  HistogramCounters& operator=(const HistogramCounters&) = delete;

  void Add(const std::byte* data, std::uint64_t count) noexcept {
    constexpr std::uint64_t kChunk = 2048;
    if (is_float32_) {
      // 2^31 at a time, so that 32-bit counters cannot wrap.
      for (; count > kJoinAfter; count -= kJoinAfter, data += kJoinAfter * 4) Count(data, kJoinAfter);
      Count(data, count);
      return;
    }
    alignas(64) float values[kChunk];
    while (count != 0) {
      const std::uint64_t part = count < kChunk ? count : kChunk;
      to_float_(data, part, values);
      Count(reinterpret_cast<const std::byte*>(values), part);
      data += part * size_;
      count -= part;
    }
  }

 private:
  static constexpr int kShift = 20;
  static constexpr std::uint64_t kWorthTables = 16384;
  static constexpr std::uint64_t kJoinAfter = std::uint64_t{1} << 31;

  [[gnu::noinline]] void Count(const std::byte* at, std::uint64_t count) noexcept {
    const std::byte* const end = at + count * 4;
    if (!interleaved_) {
      for (; at != end; at += 4) ++dense_[Bits32(at) >> kShift];
      return;
    }
    if (counted_ + count > kJoinAfter) Join();
    counted_ += count;
    for (const std::byte* const whole = at + count / 8 * 32; at != whole; at += 32) {
      const std::uint64_t a = Bits64(at), b = Bits64(at + 8), c = Bits64(at + 16), d = Bits64(at + 24);
      ++tables_[0][Low(a)];
      ++tables_[1][High(a)];
      ++tables_[2][Low(b)];
      ++tables_[3][High(b)];
      ++tables_[0][Low(c)];
      ++tables_[1][High(c)];
      ++tables_[2][Low(d)];
      ++tables_[3][High(d)];
    }
    for (; at != end; at += 4) ++tables_[0][Bits32(at) >> kShift];
  }

  void Join() noexcept {
    for (std::size_t i = 0; i < kHistogramBins; ++i) {
      dense_[i] += std::uint64_t{tables_[0][i]} + tables_[1][i] + tables_[2][i] + tables_[3][i];
    }
    std::memset(tables_, 0, sizeof(tables_));
    counted_ = 0;
  }

  static std::uint32_t Bits32(const std::byte* at) noexcept {
    std::uint32_t bits;
    std::memcpy(&bits, at, 4);
    return bits;
  }
  static std::uint64_t Bits64(const std::byte* at) noexcept {
    std::uint64_t bits;
    std::memcpy(&bits, at, 8);
    return bits;
  }
  // Which half is the first element does not matter for counting.
  static std::size_t Low(std::uint64_t pair) noexcept { return static_cast<std::uint32_t>(pair) >> kShift; }
  static std::size_t High(std::uint64_t pair) noexcept { return pair >> (32 + kShift); }

  ToFloatKernel to_float_;
  std::size_t size_;
  bool is_float32_;
  bool interleaved_;
  std::uint64_t counted_ = 0;
  std::span<std::uint64_t> dense_;
  std::uint32_t tables_[4][kHistogramBins];
};

}  // namespace luff::tensor

#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "luff/tensor/dtype.h"

namespace luff {

inline constexpr int kMaxRank = 8;

/// dtype, dimensions and strides of a tensor. Immutable once built. Rank 0 is a scalar.
///
/// Shape: `dims` in elements; `strides` in elements (not bytes), row-major if contiguous.
struct Layout {
  DType dtype = DType::kInvalid;
  std::uint8_t rank = 0;
  std::array<std::int64_t, kMaxRank> dims{};
  std::array<std::int64_t, kMaxRank> strides{};

  /// Contiguous layout. Errors: kInvalidArgument for rank > 8, negative dimensions or more than 2^62 bytes.
  [[nodiscard]] static Result<Layout> Contiguous(DType dtype, std::span<const std::int64_t> dims);
  /// Errors: as Contiguous, and when `dims` and `strides` differ in size.
  [[nodiscard]] static Result<Layout> Strided(DType dtype, std::span<const std::int64_t> dims,
                                              std::span<const std::int64_t> strides);
  [[nodiscard]] std::uint64_t element_count() const noexcept;
  [[nodiscard]] std::uint64_t byte_count() const noexcept { return element_count() * DTypeSize(dtype); }
  [[nodiscard]] bool is_contiguous() const noexcept;
  [[nodiscard]] std::span<const std::int64_t> shape() const noexcept { return {dims.data(), rank}; }
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// Borrowed memory of one tensor. Lifetime: the memory must outlive the call it is passed to.
struct TensorView {
  const std::byte* data = nullptr;
  Layout layout;
};

}  // namespace luff

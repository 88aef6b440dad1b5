#pragma once
// Walks a view of any strides in contiguous pieces, so that kernels see only contiguous elements.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "luff/tensor/view.h"

namespace luff::tensor {

/// Bytes of a tile on the stack: half of the smallest first-level cache in use.
inline constexpr std::size_t kTileBytes = std::size_t{16} * 1024;

/// The loops over a view, outermost first, with byte strides. Adjacent loops are merged where possible.
struct Loops {
  const std::byte* base = nullptr;
  int depth = 0;
  std::array<std::uint64_t, kMaxRank> count{};
  std::array<std::int64_t, kMaxRank> stride{};  // bytes

  /// True if the elements lie side by side in the order of the loops.
  [[nodiscard]] bool is_dense(std::size_t element_size) const noexcept {
    return depth == 0 || (depth == 1 && stride[0] == static_cast<std::int64_t>(element_size));
  }
};

/// True if the view has data of a known dtype; views come from outside.
[[nodiscard]] inline bool IsMeasurable(const TensorView& view) noexcept {
  return view.data != nullptr && IsKnownDType(static_cast<std::uint8_t>(view.layout.dtype));
}

/// Element count and contiguity, which almost every call needs, found in one pass over the dimensions.
struct Extent {
  std::uint64_t count = 1;
  bool contiguous = true;
};
[[nodiscard]] inline Extent ExtentOf(const Layout& layout) noexcept {
  Extent extent;
  for (std::size_t i = layout.rank; i-- > 0;) {
    const std::int64_t dim = layout.dims[i];
    extent.contiguous =
        extent.contiguous && (dim == 1 || layout.strides[i] == static_cast<std::int64_t>(extent.count));
    extent.count *= static_cast<std::uint64_t>(dim);
  }
  return extent;
}

/// `any_order`: the caller does not care about the order of elements, so loops are sorted by stride and run
/// forwards; a transposed or flipped tensor then becomes one dense loop. Precondition: no dimension is 0.
[[nodiscard]] Loops MakeLoops(const TensorView& view, bool any_order) noexcept;

/// Copies `count` elements in the order of `loops`, starting at element `first`, side by side to `to`.
void PackRange(const Loops& loops, std::size_t element_size, std::uint64_t first, std::uint64_t count,
               std::byte* to) noexcept;

/// ForEachPiece for views that are not contiguous. `total`: number of elements, not 0.
template <typename Fn>
[[gnu::noinline]] void ForEachStridedPiece(const TensorView& view, std::uint64_t total, bool any_order,
                                           std::byte* copy_to, Fn&& fn) noexcept {
  const std::size_t size = DTypeSize(view.layout.dtype);
  const Loops loops = MakeLoops(view, any_order && copy_to == nullptr);
  if (loops.is_dense(size)) {
    fn(loops.base, total, copy_to);
    return;
  }
  const std::uint64_t tile = kTileBytes / size;
  const std::uint64_t row = loops.count[static_cast<std::size_t>(loops.depth) - 1];
  if (loops.stride[static_cast<std::size_t>(loops.depth) - 1] == static_cast<std::int64_t>(size) &&
      row * size >= 1024) {
    // Long rows are worth a kernel call each.
    std::array<std::uint64_t, kMaxRank> index{};
    const std::byte* from = loops.base;
    for (std::uint64_t done = 0; done < total; done += row) {
      fn(from, row, copy_to == nullptr ? nullptr : copy_to + done * size);
      for (int level = loops.depth - 2; level >= 0; --level) {
        const auto l = static_cast<std::size_t>(level);
        from += loops.stride[l];
        if (++index[l] < loops.count[l]) break;
        from -= loops.stride[l] * static_cast<std::int64_t>(loops.count[l]);
        index[l] = 0;
      }
    }
    return;
  }
  alignas(64) std::byte scratch[kTileBytes];
  for (std::uint64_t done = 0; done < total; done += tile) {
    const std::uint64_t count = std::min(tile, total - done);
    std::byte* to = copy_to == nullptr ? scratch : copy_to + done * size;
    PackRange(loops, size, done, count, to);
    fn(static_cast<const std::byte*>(to), count, static_cast<std::byte*>(nullptr));
  }
}

/// Calls `fn(data, count, to)` for contiguous pieces that together make up the view.
///
/// When `copy_to` is null, `to` is null. Otherwise `to` is where `fn` has to copy the piece, or null if it is
/// already there. Pieces come in row-major order unless `any_order` is set and `copy_to` is null. Never
/// allocates.
template <typename Fn>
inline void ForEachPiece(const TensorView& view, bool any_order, std::byte* copy_to, Fn&& fn) noexcept {
  const Extent extent = ExtentOf(view.layout);
  if (extent.count == 0) return;
  if (extent.contiguous) {
    fn(view.data, extent.count, copy_to);
    return;
  }
  ForEachStridedPiece(view, extent.count, any_order, copy_to, fn);
}

}  // namespace luff::tensor

#pragma once
#include <algorithm>
#include <cstdint>

#include "luff/tensor/view.h"

namespace luff::capture {

/// Calls `piece(view)` for disjoint parts of a tensor, in row-major order, of at most `max_bytes` each. Never
/// allocates.
template <typename F>
void ForEachPiece(const TensorView& view, std::uint64_t max_bytes, F&& piece) {
  const std::size_t width = DTypeSize(view.layout.dtype);
  const std::uint64_t count = view.layout.element_count();
  if (count * width <= max_bytes) {
    piece(view);
    return;
  }
  if (view.layout.is_contiguous()) {
    const std::uint64_t step = max_bytes / width;
    for (std::uint64_t at = 0; at < count; at += step) {
      const auto n = static_cast<std::int64_t>(std::min(step, count - at));
      TensorView part;
      part.data = view.data + at * width;
      part.layout.dtype = view.layout.dtype;
      part.layout.rank = 1;
      part.layout.dims[0] = n;
      part.layout.strides[0] = 1;
      piece(part);
    }
    return;
  }
  // Pieces are as many rows of the first dimension as fit; a row that is too large is divided itself.
  const std::int64_t rows = view.layout.dims[0];
  const std::uint64_t row_bytes = count / static_cast<std::uint64_t>(rows) * width;
  const std::ptrdiff_t stride = view.layout.strides[0] * static_cast<std::ptrdiff_t>(width);
  const std::int64_t together = std::max<std::int64_t>(1, static_cast<std::int64_t>(max_bytes / row_bytes));
  for (std::int64_t row = 0; row < rows; row += together) {
    TensorView part = view;
    part.data = view.data + row * stride;
    part.layout.dims[0] = std::min(together, rows - row);
    if (row_bytes <= max_bytes || view.layout.rank == 1) {
      piece(part);
      continue;
    }
    TensorView inner;
    inner.data = part.data;
    inner.layout.dtype = view.layout.dtype;
    inner.layout.rank = static_cast<std::uint8_t>(view.layout.rank - 1);
    for (std::size_t i = 0; i < inner.layout.rank; ++i) {
      inner.layout.dims[i] = view.layout.dims[i + 1];
      inner.layout.strides[i] = view.layout.strides[i + 1];
    }
    ForEachPiece(inner, max_bytes, piece);
  }
}

}  // namespace luff::capture

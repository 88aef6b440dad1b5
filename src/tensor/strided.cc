#include "tensor/strided.h"

#include <cstring>

namespace luff::tensor {
namespace {

template <std::size_t kSize>
void PackRow(const std::byte* from, std::int64_t stride, std::uint64_t count, std::byte* to) noexcept {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::memcpy(to, from, kSize);
    from += stride;
    to += kSize;
  }
}

void PackRow(const std::byte* from, std::int64_t stride, std::uint64_t count, std::size_t size,
             std::byte* to) noexcept {
  if (stride == static_cast<std::int64_t>(size)) {
    std::memcpy(to, from, count * size);
    return;
  }
  switch (size) {
    case 1: return PackRow<1>(from, stride, count, to);
    case 2: return PackRow<2>(from, stride, count, to);
    case 4: return PackRow<4>(from, stride, count, to);
    case 8: return PackRow<8>(from, stride, count, to);
    default: return PackRow<16>(from, stride, count, to);
  }
}

}  // namespace

Loops MakeLoops(const TensorView& view, bool any_order) noexcept {
  const Layout& layout = view.layout;
  const auto size = static_cast<std::int64_t>(DTypeSize(layout.dtype));
  Loops loops;
  loops.base = view.data;
  for (std::size_t i = 0; i < layout.rank; ++i) {
    if (layout.dims[i] == 1) continue;
    auto at = static_cast<std::size_t>(loops.depth++);
    auto count = static_cast<std::uint64_t>(layout.dims[i]);
    std::int64_t stride = layout.strides[i] * size;
    if (any_order) {
      if (stride < 0) {
        loops.base += stride * (layout.dims[i] - 1);
        stride = -stride;
      }
      for (; at > 0 && loops.stride[at - 1] < stride; --at) {
        loops.count[at] = loops.count[at - 1];
        loops.stride[at] = loops.stride[at - 1];
      }
    }
    loops.count[at] = count;
    loops.stride[at] = stride;
  }
  // Merge a loop with the one inside it if each iteration continues exactly where the inner loop ended.
  int joined = 0;
  for (int i = 1; i < loops.depth; ++i) {
    const auto outer = static_cast<std::size_t>(joined);
    const auto inner = static_cast<std::size_t>(i);
    if (loops.stride[outer] == loops.stride[inner] * static_cast<std::int64_t>(loops.count[inner])) {
      loops.count[outer] *= loops.count[inner];
      loops.stride[outer] = loops.stride[inner];
    } else {
      ++joined;
      loops.count[static_cast<std::size_t>(joined)] = loops.count[inner];
      loops.stride[static_cast<std::size_t>(joined)] = loops.stride[inner];
    }
  }
  if (loops.depth > 0) loops.depth = joined + 1;
  return loops;
}

void PackRange(const Loops& loops, std::size_t element_size, std::uint64_t first, std::uint64_t count,
               std::byte* to) noexcept {
  if (loops.depth == 0) {
    if (count != 0) std::memcpy(to, loops.base, element_size);
    return;
  }
  std::array<std::uint64_t, kMaxRank> index{};
  const std::byte* from = loops.base;
  for (int level = loops.depth - 1; level >= 0; --level) {
    const auto l = static_cast<std::size_t>(level);
    index[l] = first % loops.count[l];
    first /= loops.count[l];
    from += loops.stride[l] * static_cast<std::int64_t>(index[l]);
  }
  const auto last = static_cast<std::size_t>(loops.depth) - 1;
  while (count != 0) {
    const std::uint64_t run = std::min(count, loops.count[last] - index[last]);
    PackRow(from, loops.stride[last], run, element_size, to);
    to += run * element_size;
    count -= run;
    from -= loops.stride[last] * static_cast<std::int64_t>(index[last]);
    index[last] = 0;
    for (int level = loops.depth - 2; level >= 0; --level) {
      const auto l = static_cast<std::size_t>(level);
      from += loops.stride[l];
      if (++index[l] < loops.count[l]) break;
      from -= loops.stride[l] * static_cast<std::int64_t>(loops.count[l]);
      index[l] = 0;
    }
  }
}

}  // namespace luff::tensor

// Difference from an earlier value of the same tensor, optionally replacing it in the same pass.
#include <algorithm>
#include <cstring>

#include "luff/tensor/summary.h"
#include "tensor/float_environment.h"
#include "tensor/kernel_table.h"
#include "tensor/strided.h"

namespace luff {

void ComputeDifference(const TensorView& view, std::byte* previous, bool update_previous,
                       Difference* out) noexcept {
  *out = Difference();
  if (view.data == nullptr || previous == nullptr ||
      !IsKnownDType(static_cast<std::uint8_t>(view.layout.dtype)))
    return;
  const tensor::FloatEnvironment environment;
  const std::size_t size = DTypeSize(view.layout.dtype);
  const auto kernel = tensor::Kernels().difference[static_cast<std::size_t>(view.layout.dtype)];
  // A tile at a time, so that the copy finds the elements in the first-level cache.
  const std::uint64_t tile = tensor::kTileBytes / size;
  tensor::ForEachPiece(view, /*any_order=*/false, nullptr,
                       [&](const std::byte* data, std::uint64_t count, std::byte*) noexcept {
                         while (count != 0) {
                           const std::uint64_t part = std::min(count, tile);
                           kernel(data, previous, part, out);
                           if (update_previous) std::memcpy(previous, data, part * size);
                           data += part * size;
                           previous += part * size;
                           count -= part;
                         }
                       });
}

}  // namespace luff

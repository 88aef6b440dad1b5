// Summaries, copies and histograms of views: chooses the kernel, walks the pieces.
#include <algorithm>
#include <bit>
#include <cstring>

#include "luff/tensor/summary.h"
#include "tensor/element.h"
#include "tensor/float_environment.h"
#include "tensor/histogram_counters.h"
#include "tensor/kernel_table.h"
#include "tensor/strided.h"

namespace luff {
namespace {

using tensor::FloatEnvironment;
using tensor::Kernels;
using tensor::KernelTable;

/// Copies of at least this size bypass the caches: they would evict the training's data, and reading for
/// ownership costs bandwidth. Smaller copies stay in the last-level cache, where the writer thread finds
/// them. Source: tensor_benchmark, rows summary_copy against memcpy at 4 and 64 MiB.
constexpr std::size_t kStreamBytes = std::size_t{16} << 20;

}  // namespace

void Summarize(const TensorView& view, Summary* out, std::byte* copy_to) noexcept {
  if (!tensor::IsMeasurable(view)) {
    *out = Summary();
    return;
  }
  const FloatEnvironment environment;
  const DType dtype = view.layout.dtype;
  const auto kernel = Kernels().summarize[static_cast<std::size_t>(dtype)];
  const bool stream = copy_to != nullptr && view.layout.byte_count() >= kStreamBytes;
  *out = tensor::Begin(dtype);
  tensor::ForEachPiece(view, /*any_order=*/true, copy_to,
                       [&](const std::byte* data, std::uint64_t count, std::byte* to) noexcept {
                         kernel(data, count, to, stream, out);
                       });
  tensor::Finish(out);
}

void CopyContiguous(const TensorView& view, std::byte* to) noexcept {
  if (!tensor::IsMeasurable(view)) return;
  const std::size_t size = DTypeSize(view.layout.dtype);
  tensor::ForEachPiece(view, /*any_order=*/false, to,
                       [&](const std::byte* data, std::uint64_t count, std::byte* target) noexcept {
                         if (target != nullptr) std::memcpy(target, data, count * size);
                       });
}

void AddHistogram(const TensorView& view, std::span<std::uint64_t> dense) noexcept {
  if (!tensor::IsMeasurable(view) || dense.size() < kHistogramBins) return;
  const FloatEnvironment environment;
  tensor::HistogramCounters counters(view.layout.dtype, view.layout.element_count(), dense);
  tensor::ForEachPiece(
      view, /*any_order=*/true, nullptr,
      [&](const std::byte* data, std::uint64_t count, std::byte*) noexcept { counters.Add(data, count); });
}

void SummarizeWithHistogram(const TensorView& view, Summary* out, std::span<std::uint64_t> dense,
                            std::byte* copy_to) noexcept {
  if (!tensor::IsMeasurable(view) || dense.size() < kHistogramBins) {
    Summarize(view, out, copy_to);
    return;
  }
  const FloatEnvironment environment;
  const DType dtype = view.layout.dtype;
  const std::size_t size = DTypeSize(dtype);
  const auto kernel = Kernels().summarize[static_cast<std::size_t>(dtype)];
  const bool stream = copy_to != nullptr && view.layout.byte_count() >= kStreamBytes;
  Summary summary = tensor::Begin(dtype);
  tensor::HistogramCounters counters(dtype, view.layout.element_count(), dense);
  const std::uint64_t step = tensor::kTileBytes / size;
  tensor::ForEachPiece(view, /*any_order=*/true, copy_to,
                       [&](const std::byte* data, std::uint64_t count, std::byte* to) noexcept {
                         for (std::uint64_t done = 0; done < count; done += step) {
                           const std::uint64_t part = std::min(step, count - done);
                           const std::byte* from = data + done * size;
                           kernel(from, part, to == nullptr ? nullptr : to + done * size, stream, &summary);
                           counters.Add(from, part);  // the tile is in the first-level cache now
                         }
                       });
  tensor::Finish(&summary);
  *out = summary;
}

}  // namespace luff

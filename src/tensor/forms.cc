// The optional summary forms: further reductions, content hash, conversion to float64.
#include <cmath>

#include "luff/tensor/hash.h"
#include "luff/tensor/summary.h"
#include "tensor/element.h"
#include "tensor/float_environment.h"
#include "tensor/kernel_table.h"
#include "tensor/strided.h"
#include "tensor/xxh3_stream.h"

namespace luff {
namespace {

constexpr std::uint64_t kValuesAtOnce = 1024;

}  // namespace

void ToFloat64(DType dtype, const std::byte* from, std::size_t count, double* to) noexcept {
  const tensor::FloatEnvironment environment;
  if (!IsKnownDType(static_cast<std::uint8_t>(dtype)) || count == 0) return;
  tensor::Kernels().to_double[static_cast<std::size_t>(dtype)](from, count, to);
}

void ComputeExtra(const TensorView& view, ExtraReductions* out) noexcept {
  *out = ExtraReductions();
  if (!tensor::IsMeasurable(view)) return;
  const tensor::FloatEnvironment environment;
  const DType dtype = view.layout.dtype;
  const std::size_t size = DTypeSize(dtype);
  const auto to_double = tensor::Kernels().to_double[static_cast<std::size_t>(dtype)];
  double abs_min = out->abs_min;
  double prod = 1;
  // In row-major order: a product that overflows or vanishes halfway depends on the order.
  tensor::ForEachPiece(view, /*any_order=*/false, nullptr,
                       [&](const std::byte* data, std::uint64_t count, std::byte*) noexcept {
                         double values[kValuesAtOnce];
                         while (count != 0) {
                           const std::uint64_t part = count < kValuesAtOnce ? count : kValuesAtOnce;
                           to_double(data, part, values);
                           for (std::uint64_t i = 0; i < part; ++i) {
                             const double magnitude = std::fabs(values[i]);
                             if (!(magnitude <= std::numeric_limits<double>::max())) continue;
                             abs_min = magnitude < abs_min ? magnitude : abs_min;
                             prod *= values[i];
                           }
                           data += part * size;
                           count -= part;
                         }
                       });
  out->abs_min = abs_min;
  out->prod = prod;
  out->abs_prod = std::fabs(prod);
}

std::uint64_t HashBytes(const void* data, std::size_t size) noexcept {
  return tensor::Kernels().hash(data, size);
}

std::uint64_t ContentHash(const TensorView& view) noexcept {
  const std::size_t size = DTypeSize(view.layout.dtype);
  if (!tensor::IsMeasurable(view) || view.layout.element_count() == 0) return HashBytes("", 0);
  if (view.layout.is_contiguous()) return HashBytes(view.data, view.layout.element_count() * size);
  tensor::Xxh3Stream stream;
  tensor::ForEachPiece(view, /*any_order=*/false, nullptr,
                       [&](const std::byte* data, std::uint64_t count, std::byte*) noexcept {
                         stream.Add(data, count * size);
                       });
  return stream.Digest();
}

}  // namespace luff

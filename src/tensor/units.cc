// Counts and sums per unit along an axis (dead ReLU, saturation).
#include <algorithm>

#include "luff/tensor/summary.h"
#include "tensor/float_environment.h"
#include "tensor/kernel_table.h"
#include "tensor/strided.h"
#include "tensor/unit_shape.h"

namespace luff {
namespace {

class Counter {
 public:
  Counter(tensor::UnitShape shape, UnitCounts* out) noexcept : shape_(shape), out_(out) {}

  /// Adds the next elements in row-major order.
  void Add(const double* values, std::uint64_t count) noexcept {
    while (count != 0) {
      std::uint64_t part;
      if (shape_.inner == 1) {
        part = std::min(count, shape_.units - unit_);
        kernels_.units_across(values, part, &out_->positive[unit_], &out_->zero[unit_], &out_->sum[unit_]);
        unit_ = unit_ + part == shape_.units ? 0 : unit_ + part;
      } else {
        part = std::min(count, shape_.inner - position_);
        kernels_.units_within(values, part, &out_->positive[unit_], &out_->zero[unit_], &out_->sum[unit_]);
        position_ += part;
        if (position_ == shape_.inner) {
          position_ = 0;
          unit_ = unit_ + 1 == shape_.units ? 0 : unit_ + 1;
        }
      }
      values += part;
      count -= part;
    }
  }

 private:
  tensor::UnitShape shape_;
  UnitCounts* out_;
  const tensor::KernelTable& kernels_ = tensor::Kernels();
  std::uint64_t unit_ = 0;
  std::uint64_t position_ = 0;  // within `inner`
};

}  // namespace

void ComputeUnits(const TensorView& view, UnitAxis axis, UnitCounts* out) {
  const tensor::UnitShape shape = tensor::UnitShapeOf(view.layout, axis);
  const std::uint64_t total = view.layout.element_count();
  // An empty tensor may claim any number of units; none of them counts.
  const std::uint64_t units = total == 0 ? 0 : shape.units;
  out->axis = axis;
  out->values_per_unit = units == 0 ? 0 : total / units;
  out->positive.assign(units, 0);
  out->zero.assign(units, 0);
  out->sum.assign(units, 0.0);
  if (total == 0 || view.data == nullptr || !IsKnownDType(static_cast<std::uint8_t>(view.layout.dtype)))
    return;
  const tensor::FloatEnvironment environment;
  const std::size_t size = DTypeSize(view.layout.dtype);
  const auto to_double = tensor::Kernels().to_double[static_cast<std::size_t>(view.layout.dtype)];
  Counter counter(shape, out);
  tensor::ForEachPiece(view, /*any_order=*/false, nullptr,
                       [&](const std::byte* data, std::uint64_t count, std::byte*) noexcept {
                         constexpr std::uint64_t kChunk = 1024;
                         double values[kChunk];
                         while (count != 0) {
                           const std::uint64_t part = std::min(count, kChunk);
                           to_double(data, part, values);
                           counter.Add(values, part);
                           data += part * size;
                           count -= part;
                         }
                       });
}

}  // namespace luff

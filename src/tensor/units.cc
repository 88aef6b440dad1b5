// Counts and sums per unit along an axis (dead ReLU, saturation).
#include <algorithm>

#include "luff/tensor/summary.h"
#include "tensor/float_environment.h"
#include "tensor/kernel_table.h"
#include "tensor/strided.h"

namespace luff {
namespace {

/// A view as (outer, units, inner) in row-major order: element (o, u, i) belongs to unit u.
struct UnitShape {
  std::uint64_t units = 1;
  std::uint64_t inner = 1;
};

UnitShape ShapeOf(const Layout& layout, UnitAxis axis) noexcept {
  const int rank = layout.rank;
  UnitShape shape;
  const auto product = [&](int from, int to) {
    std::uint64_t p = 1;
    for (int i = from; i < to; ++i) p *= static_cast<std::uint64_t>(layout.dims[static_cast<std::size_t>(i)]);
    return p;
  };
  if (rank == 0) return shape;
  if (rank == 1) {  // one row of units
    shape.units = product(0, 1);
    return shape;
  }
  switch (axis) {
    case UnitAxis::kChannel:
      shape.units = product(1, 2);
      shape.inner = product(2, rank);
      break;
    case UnitAxis::kLast: shape.units = product(rank - 1, rank); break;
    case UnitAxis::kAllButFirst: shape.units = product(1, rank); break;
  }
  return shape;
}

class Counter {
 public:
  Counter(UnitShape shape, UnitCounts* out) noexcept : shape_(shape), out_(out) {}

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
  UnitShape shape_;
  UnitCounts* out_;
  const tensor::KernelTable& kernels_ = tensor::Kernels();
  std::uint64_t unit_ = 0;
  std::uint64_t position_ = 0;  // within `inner`
};

}  // namespace

void ComputeUnits(const TensorView& view, UnitAxis axis, UnitCounts* out) {
  const UnitShape shape = ShapeOf(view.layout, axis);
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

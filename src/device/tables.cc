#include "device/tables.h"

#include <algorithm>
#include <cstdint>

#include "tensor/strided.h"
#include "tensor/unit_shape.h"

namespace luff::device {

namespace {

U32 AddLoops(const tensor::Loops& from, Tables* tables) {
  Loops to{};
  for (std::size_t l = 0; l < static_cast<std::size_t>(from.depth); ++l) {
    to.count[l] = from.count[l];
    to.stride[l] = from.stride[l];
  }
  tables->loops.push_back(to);
  return static_cast<U32>(tables->loops.size() - 1);
}

void AddUnits(const Input& input, const TensorView& view, const Placed& placed, Tables* tables) {
  const tensor::Loops loops = tensor::MakeLoops(view, false);
  const UnitsPlan plan = PlanUnits(*input.layout, input.axis);
  UnitsRow row{};
  row.data = reinterpret_cast<std::uintptr_t>(loops.base);
  row.outer = plan.outer;
  row.units = plan.units;
  row.inner = plan.inner;
  row.partials = placed.unit_partials;
  row.results = placed.units;
  row.splits = plan.splits;
  row.dtype = static_cast<U8>(view.layout.dtype);
  row.form = plan.form;
  if (!loops.is_dense(DTypeSize(view.layout.dtype))) {
    row.depth = static_cast<U8>(loops.depth);
    row.loops = AddLoops(loops, tables);
  }
  const auto number = static_cast<U32>(tables->units_rows.size());
  const U64 together = plan.form == kUnitsAcross ? kAcrossUnits : kWithinUnits;
  for (U64 unit = 0; unit < plan.units; unit += together) {
    for (U32 split = 0; split < plan.splits; ++split) tables->units_work.push_back({number, split, unit});
  }
  for (U64 unit = 0; plan.splits > 1 && unit < plan.units; unit += kBlockThreads)
    tables->units_joined.push_back({number, 0, unit});
  tables->units_rows.push_back(row);
}

}  // namespace

UnitsPlan PlanUnits(const Layout& layout, UnitAxis axis) noexcept {
  const tensor::UnitShape shape = tensor::UnitShapeOf(layout, axis);
  UnitsPlan plan;
  plan.units = shape.units;
  plan.inner = shape.inner;
  plan.outer = layout.element_count() / (plan.units * plan.inner);
  plan.form = plan.inner == 1 ? kUnitsAcross : kUnitsWithin;
  const U64 length = plan.form == kUnitsAcross ? kAcrossPositions : kWithinPositions;
  plan.splits = static_cast<U32>((plan.outer * plan.inner + length - 1) / length);
  return plan;
}

void BuildTables(std::span<const Input> inputs, std::span<const Placed> placed, Tables* tables) {
  tables->rows.clear();
  tables->loops.clear();
  tables->work.clear();
  tables->forms_work.clear();
  tables->joined.clear();
  tables->units_rows.clear();
  tables->units_work.clear();
  tables->units_joined.clear();
  tables->partials = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Layout& layout = *inputs[i].layout;
    const std::uint64_t count = layout.element_count();
    if (count == 0 || !IsKnownDType(static_cast<std::uint8_t>(layout.dtype))) continue;
    const Placed more = placed.empty() ? Placed{} : placed[i];
    const std::size_t size = DTypeSize(layout.dtype);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that the host never reads
    const TensorView view{reinterpret_cast<const std::byte*>(inputs[i].data), layout};
    // The last value lies in the order of the stream, which must therefore be the same with and without a
    // copy.
    const tensor::Loops loops = tensor::MakeLoops(view, more.value == 0 && more.previous == 0);
    Row row{};
    row.data = reinterpret_cast<std::uintptr_t>(loops.base);
    row.count = count;
    row.copy_to = more.value;
    row.previous = more.previous;
    row.histogram = more.histogram;
    row.result = static_cast<U32>(i);
    row.difference = more.difference;
    row.dtype = static_cast<U8>(layout.dtype);
    row.flags = more.previous != 0 ? kRowReplacePrevious : 0;
    if (loops.is_dense(size)) {
      const std::uint64_t over = row.data % kVectorBytes;
      // A difference depends on how the elements are cut into vectors.
      row.lead = more.previous == 0 && over % size == 0 ? static_cast<U32>(over / size) : 0;
    } else {
      row.depth = static_cast<U8>(loops.depth);
      row.loops = AddLoops(loops, tables);
    }
    const std::uint64_t chunks = ((row.lead + count) * size + kChunkBytes - 1) / kChunkBytes;
    const auto number = static_cast<U32>(tables->rows.size());
    if (chunks > 1) {
      row.first_partial = tables->partials;
      tables->partials += static_cast<U32>(chunks);
      tables->joined.push_back(number);
    }
    auto& work = more.histogram != 0 || more.previous != 0 ? tables->forms_work : tables->work;
    for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) work.push_back({number, static_cast<U32>(chunk)});
    tables->rows.push_back(row);
    if (more.units != 0) AddUnits(inputs[i], view, more, tables);
  }
}

Summary SummaryFrom(const Input& input, const Statistics& result) noexcept {
  Summary out;
  out.count = input.layout->element_count();
  if (out.count == 0) return out;
  out.sum = result.sum;
  out.sum_sq = result.sum_sq;
  out.abs_sum = result.abs_sum;
  out.min_bits = result.min_bits;
  out.max_bits = result.max_bits;
  out.zero_count = result.zeros;
  out.nan_count = result.nans;
  out.inf_count = result.infs;
  return out;
}

}  // namespace luff::device

#include "device/tables.h"

#include <algorithm>
#include <cstdint>

#include "tensor/strided.h"

namespace luff::device {

void BuildTables(std::span<const Input> inputs, Tables* tables) {
  tables->rows.clear();
  tables->loops.clear();
  tables->work.clear();
  tables->joined.clear();
  tables->partials = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Layout& layout = *inputs[i].layout;
    const std::uint64_t count = layout.element_count();
    if (count == 0 || !IsKnownDType(static_cast<std::uint8_t>(layout.dtype))) continue;
    const std::size_t size = DTypeSize(layout.dtype);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that the host never reads
    const TensorView view{reinterpret_cast<const std::byte*>(inputs[i].data), layout};
    const tensor::Loops loops = tensor::MakeLoops(view, true);
    Row row{};
    row.data = reinterpret_cast<std::uintptr_t>(loops.base);
    row.count = count;
    row.result = static_cast<U32>(i);
    row.dtype = static_cast<U8>(layout.dtype);
    if (loops.is_dense(size)) {
      const std::uint64_t over = row.data % kVectorBytes;
      row.lead = over % size == 0 ? static_cast<U32>(over / size) : 0;
    } else {
      row.depth = static_cast<U8>(loops.depth);
      row.loops = static_cast<U32>(tables->loops.size());
      Loops to{};
      for (std::size_t l = 0; l < static_cast<std::size_t>(loops.depth); ++l) {
        to.count[l] = loops.count[l];
        to.stride[l] = loops.stride[l];
      }
      tables->loops.push_back(to);
    }
    const std::uint64_t chunks = ((row.lead + count) * size + kChunkBytes - 1) / kChunkBytes;
    const auto number = static_cast<U32>(tables->rows.size());
    if (chunks > 1) {
      row.first_partial = tables->partials;
      tables->partials += static_cast<U32>(chunks);
      tables->joined.push_back(number);
    }
    for (std::uint64_t chunk = 0; chunk < chunks; ++chunk)
      tables->work.push_back({number, static_cast<U32>(chunk)});
    tables->rows.push_back(row);
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

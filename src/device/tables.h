#pragma once
#include <span>
#include <vector>

#include "device/collector.h"
#include "device/kernels/arguments.h"

/// From tensors to what kernels read, and back from what they write.
namespace luff::device {

/// What luff_statistics and luff_reduce read. Result `i` belongs to input `i`. An input without elements, or
/// of a dtype that the kernels do not know, has no row, and its result is not written.
struct Tables {
  std::vector<Row> rows;
  std::vector<Loops> loops;
  std::vector<Work> work;
  std::vector<U32> joined;  // rows of more than one chunk
  U32 partials = 0;
};

/// Replaces the contents of `tables`.
void BuildTables(std::span<const Input> inputs, Tables* tables);

[[nodiscard]] Summary SummaryFrom(const Input& input, const Statistics& result) noexcept;

}  // namespace luff::device

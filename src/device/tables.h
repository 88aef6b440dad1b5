#pragma once
#include <span>
#include <vector>

#include "device/collector.h"
#include "device/kernels/arguments.h"

/// From tensors to what kernels read, and back from what they write.
namespace luff::device {

/// Device addresses of what is made of an input besides its statistics; 0: it is not.
struct Placed {
  U64 value = 0;       // the elements, in row-major order
  U64 histogram = 0;   // kHistogramCounters counters, which are zero
  U64 previous = 0;    // the last value, which is replaced
  U32 difference = 0;  // index of the difference from it
  U64 units = 0, unit_partials = 0;
};

/// What the kernels read. Result `i` belongs to input `i`. An input without elements, or of a dtype that the
/// kernels do not know, has no row, and its result is not written.
struct Tables {
  std::vector<Row> rows;
  std::vector<Loops> loops;
  std::vector<Work> work, forms_work;  // luff_statistics, luff_forms
  std::vector<U32> joined;             // rows of more than one chunk
  std::vector<UnitsRow> units_rows;
  std::vector<UnitsWork> units_work, units_joined;
  U32 partials = 0;
};

/// Replaces the contents of `tables`. `placed`: one for each input, or none at all.
void BuildTables(std::span<const Input> inputs, std::span<const Placed> placed, Tables* tables);

/// How the units of a tensor are counted.
struct UnitsPlan {
  U64 outer = 1, units = 1, inner = 1;
  U8 form = kUnitsAcross;
  U32 splits = 1;
  /// Entries of UnitCount that the partial sums need; 0 if there is one split.
  [[nodiscard]] U64 partials() const noexcept { return splits > 1 ? splits * units : 0; }
};
[[nodiscard]] UnitsPlan PlanUnits(const Layout& layout, UnitAxis axis) noexcept;

[[nodiscard]] Summary SummaryFrom(const Input& input, const Statistics& result) noexcept;

}  // namespace luff::device

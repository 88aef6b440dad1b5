#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "query/run_trial.h"

namespace luff::query {

/// Returns how many values from `first` on ascend by one each.
template <typename T>
std::size_t Ascending(std::span<const T> values, std::size_t first) noexcept {
  const std::size_t size = values.size() - first;
  const T* v = values.data() + first;
  // Columns nearly always continue to their end without a hole; this loop checks that without a branch.
  bool whole = true;
  for (std::size_t i = 1; i < size; ++i) whole &= v[i] == static_cast<T>(v[i - 1] + 1);
  if (whole) return size;
  std::size_t n = 1;
  while (n < size && v[n] == static_cast<T>(v[n - 1] + 1)) ++n;
  return n;
}

/// Calls `use(first row, rows, n)` for stretches of the rows `from` to `to` of a segment's block: adjacent
/// rows of adjacent steps, the first of which is at position n of the step table. Steps that are not complete
/// are left out. If a tensor was written twice in one step, the last one counts.
void EachStretch(const WorkerState& worker, const store::SegmentReader& segment,
                 const format::SummaryBlock& block, std::size_t from, std::size_t to, auto use) {
  const auto ordinals = segment.steps().ordinal;
  const auto steps = block.step.first(to);
  for (std::size_t first = from; first < to;) {
    const std::uint32_t n = worker.StepOf(ordinals[steps[first]]);
    const bool repeated = first + 1 < to && steps[first + 1] == steps[first];
    if (repeated || n == kNoStep) {
      ++first;
      continue;
    }
    // Rows are used at once as long as rows, ordinals and positions have no hole.
    std::size_t rows = Ascending(steps, first);
    rows = std::min(rows, Ascending(ordinals.first(steps[first] + rows), steps[first]));
    const auto position = static_cast<std::size_t>(ordinals[steps[first]] - worker.first_ordinal);
    rows = std::min(rows, worker.step_of.size() - position);
    rows = std::min(rows, Ascending(std::span(worker.step_of).first(position + rows), position));
    if (first + rows < to && steps[first + rows] == steps[first + rows - 1]) --rows;
    use(first, rows, n);
    first += rows;
  }
}

}  // namespace luff::query

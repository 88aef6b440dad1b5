#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "luff/base/result.h"
#include "luff/query/trial.h"

/// All summaries and differences of many steps at once, for those who look at everything.
namespace luff::query {

inline constexpr TensorId kNoTensor = 0xFFFFFFFFU;

/// Summaries of one tensor and worker at adjacent steps, as they lie in the run.
struct SummaryStretch {
  TensorId tensor = 0;
  std::uint32_t worker = 0;
  std::size_t first = 0;  // row i belongs to the (first + i)-th complete step
  std::span<const std::uint64_t> count, min_bits, max_bits, zero_count, nan_count, inf_count;
  std::span<const double> sum, sum_sq, abs_sum;
  std::span<const std::uint8_t> dtype;
  std::span<const std::uint16_t> merged_steps;  // that a row stands for; 1 otherwise
};
using UseStretch = std::function<void(const SummaryStretch&)>;
/// Summaries of one worker at one step, as they were published.
struct PublishedSummaries {
  std::uint32_t worker = 0;
  std::size_t n = 0;  // position of the step
  std::span<const format::SummaryRow> rows;
  std::span<const std::uint32_t> counting;  // the rows that count, ascending
  std::span<const std::uint32_t> slot;      // of each row: where its tensor is in `tensors`
  std::span<const TensorId> tensors;        // kNoTensor: not defined yet
};
using UsePublished = std::function<void(const PublishedSummaries&)>;
/// `row` is the difference to the value before, at the n-th complete step.
using UseDifference = std::function<void(TensorId, std::size_t n, const format::FormRow& row)>;

/// Calls `use` for all summaries of the complete steps `from` to `to` - 1, superseded ones too, and
/// `difference`, if there is one, for all differences, in the order in which they are read fastest: a tensor
/// may occur many times, and no order is promised. If there is `published`, it gets summaries that were
/// published and lie together by step, and `use` the others. Errors: those of reading.
[[nodiscard]] Status VisitRows(const Trial& trial, std::size_t from, std::size_t to, const UseStretch& use,
                               const UseDifference& difference = {}, const UsePublished& published = {});

}  // namespace luff::query

#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "luff/query/trial.h"

namespace luff::cli {

/// Draws a tensor's histograms over the steps as text: a column is a step, a row a range of values, the shade
/// the share of elements in it. Rows reach from the lowest 0.5 % quantile of any step to the highest 99.5 %
/// quantile. "" if no histogram was recorded.
[[nodiscard]] std::string HeatMap(const query::Trial& trial, query::TensorId id, query::Mode mode,
                                  std::optional<std::uint32_t> worker, std::size_t width, std::size_t height);

/// The axis below a drawing: a label of 12 columns, then the first and the last step at the ends of `width`.
[[nodiscard]] std::string StepAxis(std::int64_t first, std::int64_t last, std::size_t width);

}  // namespace luff::cli

#include <algorithm>
#include <cmath>

#include "catalog/divergence.h"
#include "luff/query/row_visit.h"

namespace luff::catalog {
namespace {

using query::Trial;

/// Sums of log10 of a run's norms, by row and column.
struct Norms {
  std::vector<float> sum;
  std::vector<std::uint16_t> count, zero, bad;

  explicit Norms(std::size_t cells) : sum(cells), count(cells), zero(cells), bad(cells) {}

  void Add(std::size_t cell, double sum_sq, bool strange) {
    constexpr std::uint16_t kMost = UINT16_MAX;
    if (strange) {
      bad[cell] = 1;
    } else if (sum_sq == 0) {
      zero[cell] = 1;
    } else if (count[cell] < kMost) {
      sum[cell] += static_cast<float>(std::log10(sum_sq) / 2);
      ++count[cell];
    }
  }
  [[nodiscard]] bool any(std::size_t cell) const { return count[cell] + zero[cell] + bad[cell] != 0; }
};

/// Takes the norms of the steps whose `n` has a column.
Status Read(const Trial& trial, const std::vector<std::uint32_t>& rows,
            const std::vector<std::int32_t>& column, std::size_t columns, Norms* norms) {
  const auto wanted = [](std::int32_t one) { return one >= 0; };
  const auto first = std::ranges::find_if(column, wanted);
  if (first == column.end()) return Status::Ok();
  std::size_t n = static_cast<std::size_t>(first - column.begin());
  while (n < column.size()) {  // stretches of wanted steps: what lies between them is not read
    std::size_t end = n;
    while (end < column.size() && wanted(column[end])) ++end;
    LUFF_RETURN_IF_ERROR(query::VisitRows(trial, n, end, [&](const query::SummaryStretch& one) {
      if (one.worker != 0 || one.tensor >= rows.size() || rows[one.tensor] == CommonTensors::kNone) return;
      for (std::size_t k = 0; k < one.count.size(); ++k) {
        const std::int32_t at = one.first + k < column.size() ? column[one.first + k] : -1;
        if (at < 0) continue;
        norms->Add(rows[one.tensor] * columns + static_cast<std::size_t>(at), one.sum_sq[k],
                   one.nan_count[k] + one.inf_count[k] != 0);
      }
    }));
    n = end;
    while (n < column.size() && !wanted(column[n])) ++n;
  }
  return Status::Ok();
}

std::uint8_t CellOf(const Norms& a, const Norms& b, std::size_t at) {
  constexpr std::uint8_t kBad = 254, kNone = 255;
  if (!a.any(at) || !b.any(at)) return kNone;
  if (a.bad[at] + b.bad[at] != 0) return kBad;
  if (a.count[at] == 0 || b.count[at] == 0) {
    if (a.count[at] == b.count[at]) return 126;
    return a.count[at] == 0 ? 252 : 0;
  }
  const double d =
      static_cast<double>(b.sum[at]) / b.count[at] - static_cast<double>(a.sum[at]) / a.count[at];
  return static_cast<std::uint8_t>(
      std::lround(126 + std::copysign(126 * std::min(1.0, std::sqrt(std::fabs(d) / 4)), d)));
}

}  // namespace

Result<RatioMap> CompareNorms(const Trial& a, const Trial& b, std::int64_t from, std::int64_t to,
                              std::size_t columns, std::uint64_t budget) {
  RatioMap map;
  const CommonTensors tensors(a, b);
  const CommonSteps steps(a, b);
  map.mode = std::string(query::ModeName(steps.mode));
  const auto begin =
      static_cast<std::size_t>(std::ranges::lower_bound(steps.step, from) - steps.step.begin());
  const auto end = static_cast<std::size_t>(std::ranges::upper_bound(steps.step, to) - steps.step.begin());
  if (begin >= end || tensors.a.empty() || columns == 0) return map;
  columns = std::min(columns, end - begin);
  const std::size_t bucket = (end - begin + columns - 1) / columns;
  columns = (end - begin + bucket - 1) / bucket;
  const std::size_t each = std::clamp<std::uint64_t>(budget / (tensors.a.size() * columns), 1, bucket);
  std::vector<std::int32_t> column_a(a.step_count(), -1), column_b(b.step_count(), -1);
  for (std::size_t column = 0; column < columns; ++column) {
    const std::size_t low = begin + column * bucket;
    const std::size_t high = std::min(end, low + bucket);
    map.first.push_back(steps.step[low]);
    map.last.push_back(steps.step[high - 1]);
    for (std::size_t i = low; i < std::min(high, low + each); ++i)
      column_a[steps.a[i]] = column_b[steps.b[i]] = static_cast<std::int32_t>(column);
  }
  const std::size_t cells = tensors.a.size() * columns;
  Norms of_a(cells), of_b(cells);
  LUFF_RETURN_IF_ERROR(Read(a, tensors.row_a, column_a, columns, &of_a));
  LUFF_RETURN_IF_ERROR(Read(b, tensors.row_b, column_b, columns, &of_b));
  for (std::size_t row = 0; row < tensors.a.size(); ++row) {
    std::vector<std::uint8_t> line;
    for (std::size_t column = 0; column < columns; ++column)
      line.push_back(CellOf(of_a, of_b, row * columns + column));
    if (std::ranges::all_of(line, [](std::uint8_t cell) { return cell == 255; })) continue;
    map.a.push_back(tensors.a[row]);
    map.b.push_back(tensors.b[row]);
    map.cells.insert(map.cells.end(), line.begin(), line.end());
  }
  return map;
}

}  // namespace luff::catalog

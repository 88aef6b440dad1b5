#include "rules/facts/column_order.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/format.h"

namespace luff::rules {
namespace {

constexpr double kOrderUnlike = 10, kOrderLike = 3;  // mean squared differences, in squared standard errors
constexpr std::size_t kFewestOrdered = 8, kMostOrdered = 256;
constexpr std::int64_t kOrderRows = 64;

// What a column is like, and how well that is known.
struct KnownColumn {
  double mean = 0, mean_error = 0;            // squared errors
  double deviation = 0, deviation_error = 0;  // logarithm
  bool varies = false;
};

std::vector<KnownColumn> KnownColumnsOf(const Features& features, std::int64_t rows) {
  std::vector<KnownColumn> columns(features.size());
  const auto n = static_cast<double>(rows);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    KnownColumn& one = columns[i];
    one.mean = features.mean(i);
    one.varies = features.varies(i);
    if (!one.varies) continue;
    one.mean_error = features.variance(i) / n;
    one.deviation = 0.5 * std::log(features.variance(i));
    one.deviation_error = std::max(features.kurtosis(i) - 1, 1.0) / (4 * n);
  }
  return columns;
}

struct OrderApart {
  double means = 0, deviations = 0;
  std::size_t columns = 0;
};

// Column i of `other` read as column place(i) of `one`.
template <typename Place>
OrderApart OrderApartOf(const std::vector<KnownColumn>& one, const std::vector<KnownColumn>& other,
                        Place place) {
  OrderApart apart;
  for (std::size_t i = 0; i < other.size(); ++i) {
    const KnownColumn& a = one[place(i)];
    const KnownColumn& b = other[i];
    if (!a.varies && !b.varies) {
      if (std::abs(a.mean - b.mean) > 1e-6 * (std::abs(a.mean) + std::abs(b.mean))) return {1e9, 1e9, 0};
      continue;
    }
    ++apart.columns;
    apart.means += std::min(std::pow(a.mean - b.mean, 2) / (a.mean_error + b.mean_error), 1e6);
    // Rare values may be missing in the fewer rows, so that a column does not vary there.
    if (a.varies && b.varies)
      apart.deviations +=
          std::min(std::pow(a.deviation - b.deviation, 2) / (a.deviation_error + b.deviation_error), 1e6);
  }
  if (apart.columns == 0) return apart;
  apart.means /= static_cast<double>(apart.columns);
  apart.deviations /= static_cast<double>(apart.columns);
  return apart;
}

}  // namespace

std::optional<ColumnOrder> FindColumnOrder(const Features& training, const Features& evaluation,
                                           std::int64_t rows, std::int64_t other_rows) {
  const std::size_t n = training.size();
  if (training.kind() != evaluation.kind() || !training.kind().starts_with("float,2,") ||
      n < kFewestOrdered || n > kMostOrdered || rows < kOrderRows || other_rows < kOrderRows)
    return std::nullopt;
  const std::vector<KnownColumn> one = KnownColumnsOf(training, rows);
  const std::vector<KnownColumn> other = KnownColumnsOf(evaluation, other_rows);
  const OrderApart stays = OrderApartOf(one, other, [](std::size_t i) { return i; });
  if (stays.columns < kFewestOrdered || stays.means < kOrderUnlike || stays.deviations < kOrderUnlike)
    return std::nullopt;
  std::optional<ColumnOrder> best;
  const auto take = [&](const OrderApart& moved, const std::string& how) {
    const double worse = std::max(moved.means, moved.deviations);
    if (moved.columns < kFewestOrdered || worse > kOrderLike || (best && best->reordered <= worse)) return;
    if (stays.means < kOrderUnlike * std::max(moved.means, 1.0) ||
        stays.deviations < kOrderUnlike * std::max(moved.deviations, 1.0))
      return;
    best = ColumnOrder{how, std::min(stays.means, stays.deviations), worse};
  };
  take(OrderApartOf(one, other, [n](std::size_t i) { return n - 1 - i; }), "in reverse order");
  for (std::size_t k = 1; k < n; ++k) {
    const OrderApart moved = OrderApartOf(one, other, [n, k](std::size_t i) { return (i + k) % n; });
    take(moved, fmt::format("with its first {} columns behind the others", k));
  }
  return best;
}

}  // namespace luff::rules

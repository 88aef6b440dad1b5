#include "cli/heat_map.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/format.h"
#include "cli/reading.h"

namespace luff::cli {
namespace {

constexpr const char* kShades[] = {" ", "·", "░", "▒", "▓", "█"};
constexpr double kLowest = 0.005, kHighest = 0.995;

struct Column {
  std::int64_t step = 0;
  SparseHistogram bins;
};

std::vector<Column> Columns(const query::Trial& trial, query::TensorId id, query::Mode mode,
                            std::optional<std::uint32_t> worker, std::size_t width) {
  std::vector<Column> columns;
  const auto steps = trial.TensorSteps(id, mode);
  if (!steps.ok()) return columns;
  // Histograms may be rarer than summaries: finds the steps that have one, then takes every n-th of these.
  std::vector<std::int64_t> with;
  for (const std::int64_t step : *steps) {
    if (auto bins = trial.Histogram(id, step, mode, worker); bins.ok() && !bins->empty())
      with.push_back(step);
  }
  const std::size_t shown = std::min(width, with.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const std::int64_t step = with[i * with.size() / shown];
    if (auto bins = trial.Histogram(id, step, mode, worker); bins.ok())
      columns.push_back({step, std::move(bins).value()});
  }
  return columns;
}

/// Share of the elements in each row, the highest values first. A bin is spread evenly over its width.
std::vector<double> Shares(const SparseHistogram& bins, double low, double high, std::size_t height) {
  std::vector<double> shares(height, 0);
  double all = 0;
  for (const HistogramBin& bin : bins) all += static_cast<double>(bin.count);
  if (all == 0) return shares;
  const double row_height = (high - low) / static_cast<double>(height);
  const auto row_of = [&](double value) {
    return std::clamp<double>(std::floor((high - value) / row_height), 0, static_cast<double>(height - 1));
  };
  for (const HistogramBin& bin : bins) {
    const double from = std::max(low, HistogramBinLow(bin.bin));
    const double to = std::min(high, HistogramBinHigh(bin.bin));
    if (from > to) continue;
    const auto first = static_cast<std::size_t>(row_of(to));
    const auto last = static_cast<std::size_t>(row_of(from));
    for (std::size_t row = first; row <= last; ++row)
      shares[row] += static_cast<double>(bin.count) / all / static_cast<double>(last - first + 1);
  }
  return shares;
}

}  // namespace

std::string StepAxis(std::int64_t first, std::int64_t last, std::size_t width) {
  const std::string left = std::to_string(first);
  const std::string right = std::to_string(last);
  const std::size_t blanks = width > left.size() + right.size() ? width - left.size() - right.size() : 1;
  return fmt::format("{:>12}  {}{}{}", "step", left, std::string(blanks, ' '), first == last ? "" : right);
}

std::string HeatMap(const query::Trial& trial, query::TensorId id, query::Mode mode,
                    std::optional<std::uint32_t> worker, std::size_t width, std::size_t height) {
  const std::vector<Column> columns = Columns(trial, id, mode, worker, width);
  if (columns.empty()) return "";
  double low = INFINITY;
  double high = -INFINITY;
  for (const Column& column : columns) {
    low = std::min(low, HistogramQuantile(column.bins, kLowest));
    high = std::max(high, HistogramQuantile(column.bins, kHighest));
  }
  if (!(low <= high)) return "";
  if (low == high) {
    low -= 0.5;
    high += 0.5;
  }
  std::vector<std::vector<double>> shares;
  double most = 0;
  for (const Column& column : columns) {
    shares.push_back(Shares(column.bins, low, high, height));
    most = std::max(most, *std::max_element(shares.back().begin(), shares.back().end()));
  }
  std::string text;
  for (std::size_t row = 0; row < height; ++row) {
    const std::string label = row == 0 ? NumberText(high) : row + 1 == height ? NumberText(low) : "";
    text += fmt::format("{:>12} |", label);
    for (const auto& column : shares) {
      const double share = most > 0 ? column[row] / most : 0;
      const std::size_t shade = share <= 0 ? 0 : 1 + static_cast<std::size_t>(std::sqrt(share) * 3.999);
      text += kShades[std::min(shade, std::size(kShades) - 1)];
    }
    text += '\n';
  }
  text += StepAxis(columns.front().step, columns.back().step, columns.size()) + "\n";
  return text;
}

}  // namespace luff::cli

#include "server/boosting_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace luff::server {
namespace {

double Quotient(double over, double under) { return under > 0 ? over / under : 0; }

ClassScores From(double hits, double guessed, double support) {
  ClassScores scores;
  scores.precision = Quotient(hits, guessed);
  scores.recall = Quotient(hits, support);
  scores.f1 = Quotient(2 * scores.precision * scores.recall, scores.precision + scores.recall);
  scores.support = static_cast<std::uint64_t>(support);
  return scores;
}

std::size_t BinOf(double value, double low, double width, std::size_t bins) {
  const double place = width > 0 ? (value - low) / width : 0;
  return static_cast<std::size_t>(std::clamp(place, 0.0, static_cast<double>(bins - 1)));
}

}  // namespace

ConfusionMatrix Confusion(std::span<const double> truth, std::span<const double> guess, std::size_t classes) {
  ConfusionMatrix matrix(classes, std::vector<std::uint64_t>(classes));
  const double most = static_cast<double>(classes);
  for (std::size_t i = 0; i < std::min(truth.size(), guess.size()); ++i) {
    if (!(truth[i] >= 0 && truth[i] < most && guess[i] >= 0 && guess[i] < most)) continue;
    ++matrix[static_cast<std::size_t>(truth[i])][static_cast<std::size_t>(guess[i])];
  }
  return matrix;
}

Scores ScoresOf(const ConfusionMatrix& matrix) {
  Scores scores;
  double hits = 0, all = 0;
  for (std::size_t c = 0; c < matrix.size(); ++c) {
    double guessed = 0, support = 0;
    for (std::size_t other = 0; other < matrix.size(); ++other) {
      guessed += static_cast<double>(matrix[other][c]);
      support += static_cast<double>(matrix[c][other]);
    }
    const double right = static_cast<double>(matrix[c][c]);
    scores.classes.push_back(From(right, guessed, support));
    hits += right;
    all += support;
  }
  scores.accuracy = Quotient(hits, all);
  scores.micro = From(hits, all, all);
  const double count = static_cast<double>(std::max<std::size_t>(matrix.size(), 1));
  for (const ClassScores& one : scores.classes) {
    const double share = Quotient(static_cast<double>(one.support), all);
    scores.macro.precision += one.precision / count;
    scores.macro.recall += one.recall / count;
    scores.macro.f1 += one.f1 / count;
    scores.weighted.precision += share * one.precision;
    scores.weighted.recall += share * one.recall;
    scores.weighted.f1 += share * one.f1;
  }
  scores.macro.support = scores.weighted.support = static_cast<std::uint64_t>(all);
  return scores;
}

Roc RocOf(std::span<const double> truth, std::span<const double> score) {
  Roc roc;
  const std::size_t count = std::min(truth.size(), score.size());
  std::vector<std::size_t> order;
  double positives = 0, negatives = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!std::isfinite(score[i]) || !std::isfinite(truth[i])) continue;
    order.push_back(i);
    (truth[i] > 0.5 ? positives : negatives) += 1;
  }
  if (positives == 0 || negatives == 0) return roc;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return score[a] > score[b]; });
  roc.points.emplace_back(0, 0);
  double hits = 0, alarms = 0;
  for (std::size_t i = 0; i < order.size();) {
    const double at = score[order[i]];
    for (; i < order.size() && score[order[i]] == at; ++i) (truth[order[i]] > 0.5 ? hits : alarms) += 1;
    const auto [x, y] = roc.points.back();
    roc.points.emplace_back(alarms / negatives, hits / positives);
    roc.area += (roc.points.back().first - x) * (roc.points.back().second + y) / 2;
  }
  return roc;
}

EqualBins CountInBins(std::span<const double> values, std::size_t bins) {
  EqualBins counted;
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  if (!(low <= high) || bins == 0) return counted;
  if (low == high) bins = 1;
  counted.low = low;
  counted.high = high;
  counted.counts.resize(bins);
  const double width = (high - low) / static_cast<double>(bins);
  for (const double value : values) {
    if (std::isfinite(value)) ++counted.counts[BinOf(value, low, width, bins)];
  }
  return counted;
}

std::vector<double> ErrorByBin(std::span<const double> truth, std::span<const double> guess, double low,
                               double high, std::size_t bins) {
  std::vector<double> sums(bins), counts(bins);
  const double width = bins > 0 ? (high - low) / static_cast<double>(bins) : 0;
  for (std::size_t i = 0; bins > 0 && i < std::min(truth.size(), guess.size()); ++i) {
    if (!std::isfinite(truth[i]) || !std::isfinite(guess[i])) continue;
    const std::size_t bin = BinOf(truth[i], low, width, bins);
    sums[bin] += std::abs(truth[i] - guess[i]);
    counts[bin] += 1;
  }
  for (std::size_t bin = 0; bin < bins; ++bin)
    sums[bin] = counts[bin] > 0 ? sums[bin] / counts[bin] : std::numeric_limits<double>::quiet_NaN();
  return sums;
}

}  // namespace luff::server

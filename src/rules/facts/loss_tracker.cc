#include "rules/facts/loss_tracker.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace luff::rules {

void LossSeries::Add(std::int64_t step, double value) {
  last_step_ = step;
  if (!std::isfinite(value)) {
    ++nonfinite_;
    return;
  }
  if (count_ > 0) {
    difference_sq_ += (value - last_value_) * (value - last_value_);
    ++differences_;
  }
  last_value_ = value;
  ++count_;
  if (value > 0) ++positive_;
  if (value < 0) ++negative_;
  if (head_.size() < kWindow) {
    head_.push_back(value);
  } else if (second_.size() < kWindow) {
    second_.push_back(value);
  }
  tail_.push_back(value);
  if (tail_.size() > kWindow) tail_.pop_front();
  if (tail_.size() == kWindow) {
    const double level = recent();
    if (best_step_ < 0 || level < best_) {
      best_ = level;
      best_step_ = step;
    }
  }
  if (blocks_.empty() || blocks_.back().values >= block_values_) {
    if (blocks_.size() == kMaxBlocks) {
      for (std::size_t i = 0; i < kMaxBlocks / 2; ++i) {
        Block joined = blocks_[2 * i];
        joined.values += blocks_[2 * i + 1].values;
        joined.sum += blocks_[2 * i + 1].sum;
        blocks_[i] = joined;
      }
      blocks_.resize(kMaxBlocks / 2);
      block_values_ *= 2;
    }
    blocks_.push_back({step, 0, 0});
  }
  ++blocks_.back().values;
  blocks_.back().sum += value;
}

double LossSeries::start() const noexcept {
  double sum = 0;
  for (const double value : head_) sum += value;
  return head_.empty() ? std::nan("") : sum / static_cast<double>(head_.size());
}

double LossSeries::settled() const noexcept {
  double sum = 0;
  for (const double value : second_) sum += value;
  return second_.empty() ? std::nan("") : sum / static_cast<double>(second_.size());
}

bool LossSeries::ImprovedSinceSettled(double share) const noexcept {
  if (best_step_ < 0 || second_.size() < kWindow) return false;
  return best_ < settled() - std::max(3 * noise(), share * std::abs(settled()));
}

double LossSeries::recent() const noexcept {
  double sum = 0;
  for (const double value : tail_) sum += value;
  return tail_.empty() ? std::nan("") : sum / static_cast<double>(tail_.size());
}

double LossSeries::noise() const noexcept {
  if (differences_ == 0) return 0;
  const double variance = difference_sq_ / static_cast<double>(differences_) / 2;
  return std::sqrt(variance / static_cast<double>(kWindow));
}

bool LossSeries::Improved(double share) const noexcept {
  if (best_step_ < 0 || !has_levels()) return false;
  return best_ < start() - std::max(3 * noise(), share * std::abs(start()));
}

LossSeries::Trend LossSeries::TrendSince(std::int64_t since) const {
  std::vector<double> means;
  std::vector<double> steps;
  for (const Block& block : blocks_) {
    if (block.first_step < since || block.values < block_values_) continue;
    means.push_back(block.sum / static_cast<double>(block.values));
    steps.push_back(static_cast<double>(block.first_step));
  }
  Trend trend;
  trend.blocks = means.size();
  const std::size_t n = means.size();
  if (n < 8) return trend;
  std::int64_t s = 0;
  std::vector<double> slopes;
  slopes.reserve(n * (n - 1) / 2);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i + 1; j < n; ++j) {
      s += means[j] > means[i] ? 1 : means[j] < means[i] ? -1 : 0;
      slopes.push_back((means[j] - means[i]) / (steps[j] - steps[i]));
    }
  }
  std::sort(means.begin(), means.end());
  const double count = static_cast<double>(n);
  double variance = count * (count - 1) * (2 * count + 5);
  for (std::size_t i = 0; i < n;) {
    std::size_t j = i;
    while (j < n && means[j] == means[i]) ++j;
    const double ties = static_cast<double>(j - i);
    variance -= ties * (ties - 1) * (2 * ties + 5);
    i = j;
  }
  variance /= 18;
  if (variance > 0 && s != 0) trend.z = (static_cast<double>(s) - (s > 0 ? 1 : -1)) / std::sqrt(variance);
  const auto middle = slopes.begin() + static_cast<std::ptrdiff_t>(slopes.size() / 2);
  std::nth_element(slopes.begin(), middle, slopes.end());
  trend.slope = *middle;
  return trend;
}

std::vector<std::pair<std::int64_t, double>> LossSeries::Picture() const {
  std::vector<std::pair<std::int64_t, double>> picture;
  const std::size_t stride = blocks_.size() > 64 ? 2 : 1;
  for (std::size_t i = 0; i < blocks_.size(); i += stride) {
    if (blocks_[i].values > 0) {
      picture.emplace_back(blocks_[i].first_step, blocks_[i].sum / static_cast<double>(blocks_[i].values));
    }
  }
  return picture;
}

LossSeries* LossTracker::SeriesOf(const std::string& name) {
  for (auto& [known, series] : series_) {
    if (known == name) return &series;
  }
  if (series_.size() >= kMaxLosses) return nullptr;
  series_.emplace_back(name, LossSeries());
  return &series_.back().second;
}

void LossTracker::OnStep(const StepView& view) {
  if (view.rows.info.mode != query::Mode::kTrain) return;
  const std::vector<LossValue>& losses = view.index.losses();
  for (const LossValue& loss : losses) {
    if (loss.worker != losses.front().worker)
      continue;  // ranks see parts of one batch: the first stands for all
    if (LossSeries* series = SeriesOf(view.trial.tensor(loss.tensor).name))
      series->Add(view.rows.info.mode_step, loss.value);
  }
}

bool LossTracker::AnyImproved(double share) const noexcept {
  return std::any_of(series_.begin(), series_.end(),
                     [&](const auto& entry) { return entry.second.Improved(share); });
}

bool LossTracker::AnyImprovedSinceSettled(double share) const noexcept {
  return std::any_of(series_.begin(), series_.end(),
                     [&](const auto& entry) { return entry.second.ImprovedSinceSettled(share); });
}

bool LossTracker::EnoughEvidence(std::int64_t values) const noexcept {
  return !series_.empty() && std::all_of(series_.begin(), series_.end(),
                                         [&](const auto& entry) { return entry.second.count() >= values; });
}

void LossSeries::VisitFields(Fields& io) {
  io("count", count_);
  io("nonfinite", nonfinite_);
  io("positive", positive_);
  io("negative", negative_);
  io("last_step", last_step_);
  io("head", head_, kWindow);
  io("second", second_, kWindow);
  io("tail", tail_, kWindow);
  io("best", best_);
  io("best_step", best_step_);
  io("difference_sq", difference_sq_);
  io("last_value", last_value_);
  io("differences", differences_);
  io("block_values", block_values_);
  io("blocks", blocks_, kMaxBlocks);
  io.Check(block_values_ >= 1, "a curve that a run can have");
}

void LossTracker::VisitFields(Fields& io) { io("series", series_, kMaxLosses); }

}  // namespace luff::rules

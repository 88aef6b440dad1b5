#include "rules/facts/noise_target.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr double kLarge = 1e3;  // no draw from N(0, 1) is so large
constexpr std::size_t kNumbersOfARow = 16;
constexpr double kProgress = 0.97;  // share of the errors that is left where something is learnt

}  // namespace

void NoiseTarget::Add(const std::vector<const SampleValues*>& inputs, const SampleValues& target,
                      const SampleValues& output, bool timed) {
  const std::vector<double>& t = target.values;
  if (unfit_ || inputs.empty() || t.empty() || output.values.size() != t.size()) return;
  if (inputs_.empty()) inputs_.resize(std::min(inputs.size(), kMaxInputs));
  unfit_ = inputs.size() != inputs_.size() ||
           std::any_of(t.begin(), t.end(), [](double value) { return !(std::abs(value) < kLarge); });
  for (const SampleValues* input : inputs) unfit_ = unfit_ || input->values.size() != t.size();
  if (unfit_) return;
  for (const SampleValues* input : inputs) restored_ = restored_ || input->values == t;
  timed_ = timed;
  double wrong = 0;
  double all = 0;
  for (std::size_t i = 0; i < t.size(); ++i) {
    double power = 1;
    for (double& sum : powers_) sum += power *= t[i];
    if (i > 0) lagged_ += t[i] * t[i - 1];
    wrong += (output.values[i] - t[i]) * (output.values[i] - t[i]);
    all += t[i] * t[i];
  }
  count_ += static_cast<double>(t.size());
  neighbours_ += static_cast<double>(t.size() - 1);
  const std::size_t width = std::max<std::size_t>(RowsOf(target).width, 1);
  for (std::size_t k = 0; k < inputs_.size(); ++k) {
    const std::vector<double>& x = inputs[k]->values;
    double x_row = 0;
    double t_row = 0;
    Pairs row;
    for (std::size_t i = 0; i < t.size(); ++i) {
      inputs_[k].elements.Add(x[i], t[i]);
      row.Add(x[i], t[i]);
      x_row += x[i] * x[i] / static_cast<double>(width);
      t_row += t[i] * t[i] / static_cast<double>(width);
      if ((i + 1) % width != 0) continue;
      inputs_[k].rows.Add(std::exchange(x_row, 0), std::exchange(t_row, 0));
      const double of_row = std::exchange(row, Pairs()).correlation();
      inputs_[k].least = std::min(inputs_[k].least, width >= kNumbersOfARow ? of_row : 0);
    }
  }
  for (const std::uint64_t hash : RowHashes(target)) {
    const bool fresh = rows_.size() >= kMaxRows ? !rows_.contains(hash) : rows_.insert(hash).second;
    again_ = again_ || !fresh;
  }
  left_ = all > 0 && std::isfinite(wrong) ? wrong / all : 1;
  idle_ = left_ >= kProgress ? idle_ + 1 : 0;
}

void NoiseTarget::Pairs::Add(double of_input, double of_target) noexcept {
  count += 1;
  x += of_input;
  y += of_target;
  xx += of_input * of_input;
  yy += of_target * of_target;
  xy += of_input * of_target;
}

double NoiseTarget::Pairs::correlation() const noexcept {
  const double spread = (xx - x * x / count) * (yy - y * y / count);
  return spread > 0 ? std::abs(xy - x * y / count) / std::sqrt(spread) : 0;
}

double NoiseTarget::correlation() const {
  double most = 0;
  for (const Input& input : inputs_) most = std::max(most, input.elements.correlation());
  return most;
}

double NoiseTarget::Pairs::spread() const noexcept {
  return count > 0 ? std::sqrt(std::max(xx / count - x / count * x / count, 0.0)) : 0;
}

double NoiseTarget::spread() const {
  double least = HUGE_VAL;
  for (const Input& input : inputs_) least = std::min(least, input.elements.spread());
  return inputs_.empty() ? 0 : least;
}

double NoiseTarget::least() const {
  double most = 0;
  for (const Input& input : inputs_) most = std::max(most, input.least);
  return most;
}

bool NoiseTarget::Draws() const {
  return !unfit_ && !again_ && !restored_ && count_ >= kElements && AreDraws();
}

bool NoiseTarget::Drowns() const {
  return timed_ && Draws() && inputs_.front().rows.count >= kDrownedRows && least() > kDrowned;
}

bool NoiseTarget::Holds() const {
  if (unfit_ || again_ || count_ < kElements || idle_ < kIdle) return false;
  for (const Input& input : inputs_) {
    const double rows = input.rows.count;
    if (rows < kLeastRows || input.rows.correlation() > 4 / std::sqrt(rows)) return false;
  }
  return correlation() <= 4 / std::sqrt(count_) && AreDraws();
}

// Mean, variance, kurtosis and neighbours are those of independent draws from N(0, 1).
bool NoiseTarget::AreDraws() const {
  const double mean = powers_[0] / count_;
  const double variance = powers_[1] / count_;
  const double kurtosis = powers_[3] / count_;
  const auto near = [](double value, double wanted, double error) {
    return std::abs(value - wanted) <= 5 * error;
  };
  return near(mean, 0, std::sqrt(1 / count_)) && near(variance, 1, std::sqrt(2 / count_)) &&
         near(kurtosis, 3, std::sqrt(96 / count_)) && near(lagged_ / neighbours_, 0, std::sqrt(1 / count_));
}

void NoiseTarget::VisitFields(Fields& io) {
  io("count", count_);
  io("neighbours", neighbours_);
  io("mean", powers_[0]);
  io("squares", powers_[1]);
  io("cubes", powers_[2]);
  io("fourths", powers_[3]);
  io("lagged", lagged_);
  io("inputs", inputs_, kMaxInputs);
  io("rows", rows_, kMaxRows);
  io("again", again_);
  io("unfit", unfit_);
  io("timed", timed_);
  io("restored", restored_);
  io("idle", idle_);
  io("left", left_);
}

}  // namespace luff::rules

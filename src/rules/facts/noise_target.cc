#include "rules/facts/noise_target.h"

#include <algorithm>
#include <cmath>

#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr double kLarge = 1e3;      // no draw from N(0, 1) is so large
constexpr double kProgress = 0.97;  // share of the errors that is left where something is learnt

}  // namespace

void NoiseTarget::Add(const std::vector<const SampleValues*>& inputs, const SampleValues& target,
                      const SampleValues& output) {
  const std::vector<double>& t = target.values;
  if (unfit_ || inputs.empty() || t.empty() || output.values.size() != t.size()) return;
  if (inputs_.empty()) inputs_.resize(std::min(inputs.size(), kMaxInputs));
  unfit_ = inputs.size() != inputs_.size() ||
           std::any_of(t.begin(), t.end(), [](double value) { return !(std::abs(value) < kLarge); });
  for (const SampleValues* input : inputs) unfit_ = unfit_ || input->values.size() != t.size();
  if (unfit_) return;
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
  for (std::size_t k = 0; k < inputs_.size(); ++k) {
    for (std::size_t i = 0; i < t.size(); ++i) {
      const double x = inputs[k]->values[i];
      inputs_[k].sum += x;
      inputs_[k].squares += x * x;
      inputs_[k].products += x * t[i];
    }
  }
  for (const std::uint64_t hash : RowHashes(target)) {
    const bool fresh = rows_.size() >= kMaxRows ? !rows_.contains(hash) : rows_.insert(hash).second;
    again_ = again_ || !fresh;
  }
  left_ = all > 0 && std::isfinite(wrong) ? wrong / all : 1;
  idle_ = left_ >= kProgress ? idle_ + 1 : 0;
}

double NoiseTarget::correlation() const {
  double most = 0;
  const double mean = powers_[0] / count_;
  const double variance = powers_[1] / count_ - mean * mean;
  for (const Input& input : inputs_) {
    const double of_input = input.sum / count_;
    const double spread = input.squares / count_ - of_input * of_input;
    if (!(spread > 0) || !(variance > 0)) continue;
    most = std::max(most, std::abs(input.products / count_ - of_input * mean) / std::sqrt(spread * variance));
  }
  return most;
}

bool NoiseTarget::Holds() const {
  if (unfit_ || again_ || count_ < kElements || idle_ < kIdle) return false;
  const double mean = powers_[0] / count_;
  const double variance = powers_[1] / count_;
  const double kurtosis = powers_[3] / count_;
  const auto near = [](double value, double wanted, double error) {
    return std::abs(value - wanted) <= 5 * error;
  };
  return near(mean, 0, std::sqrt(1 / count_)) && near(variance, 1, std::sqrt(2 / count_)) &&
         near(kurtosis, 3, std::sqrt(96 / count_)) && near(lagged_ / neighbours_, 0, std::sqrt(1 / count_)) &&
         correlation() <= 4 / std::sqrt(count_);
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
  io("idle", idle_);
  io("left", left_);
}

}  // namespace luff::rules

#include "rules/facts/class_weights.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/format.h"

namespace luff::rules {
namespace {

constexpr double kUneven = 2;   // largest class over smallest, from which frequencies say something
constexpr double kEqual = 0.1;  // of a weight, beside what chance does to the counts
constexpr double kMostSlack = 1.4;
constexpr double kFewest = 30;                          // targets of a class
constexpr double kFewestTested = 10, kZeroShare = 0.5;  // of a class of weight 0: share beside an even one

}  // namespace

void ClassWeights::OnStep(const StepView& view) {
  for (const auto& event : view.index.json_events("loss_weights")) {
    const auto loss = event->find("loss");
    const double call = NumberIn(*event, "call");
    if (!(call >= 0 && call < 64) || loss == event->end() || !loss->is_string()) continue;
    const std::string key = KeyOfCall(loss->get<std::string>(), static_cast<std::size_t>(call));
    if (known_.size() >= LossReader::kMaxKinds && !known_.contains(key)) continue;
    const bool positive = event->contains("pos_weight");
    const auto list = event->find(positive ? "pos_weight" : "weight");
    if (list == event->end() || !list->is_array() || list->empty() || list->size() > kMost) continue;
    std::vector<double> weights;
    for (const auto& weight : *list) {
      if (weight.is_number()) weights.push_back(weight.get<double>());
    }
    if (weights.size() != list->size()) continue;
    Known& known = known_[key];
    known.weights = std::move(weights);
    known.positive = positive;
  }
}

ClassWeights::Known* ClassWeights::Count(const std::string& key, const LabelledRows& rows) {
  Known& known = known_.at(key);
  if (known.counts.size() != rows.classes) known.counts.assign(rows.classes, 0);
  for (const std::int64_t label : rows.labels) ++known.counts[static_cast<std::size_t>(label)];
  return &known;
}

ClassWeights::Known* ClassWeights::Evaluate(const std::string& key, const LabelledRows& rows) {
  Known& known = known_.at(key);
  for (std::vector<double>* counts : {&known.evaluated, &known.answered})
    if (counts->size() != rows.classes) counts->assign(rows.classes, 0);
  for (std::size_t i = 0; i < rows.labels.size(); ++i) {
    ++known.evaluated[static_cast<std::size_t>(rows.labels[i])];
    ++known.answered[static_cast<std::size_t>(rows.predictions[i])];
  }
  return &known;
}

std::int64_t ClassWeights::Known::ZeroClass(std::int64_t samples) const {
  const double trained = std::accumulate(counts.begin(), counts.end(), 0.0);
  const std::size_t classes = counts.size();
  if (positive || classes < 3 || weights.size() != classes || evaluated.size() != classes ||
      trained < static_cast<double>(samples) || 2 * std::ranges::count(weights, 0.0) > std::ssize(weights))
    return -1;
  const double tested = std::accumulate(evaluated.begin(), evaluated.end(), 0.0);
  for (std::size_t c = 0; c < classes; ++c) {
    const double even = 1 / static_cast<double>(classes);
    if (weights[c] == 0 && counts[c] >= kFewest && counts[c] >= kZeroShare * even * trained &&
        evaluated[c] >= kFewestTested && evaluated[c] >= kZeroShare * even * tested && answered[c] == 0)
      return static_cast<std::int64_t>(c);
  }
  return -1;
}

std::string ClassWeights::Known::Fault(std::int64_t samples) const {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  if (counts.size() < 2 || total < static_cast<double>(samples)) return {};
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  if (*least < kFewest || *most < kUneven * *least) return {};
  const double slack = std::min(1 + kEqual + 2 / std::sqrt(*least), kMostSlack);
  if (positive) {
    if (weights.size() != 1 || counts.size() != 2) return {};
    const double share = counts[1] / total;
    const double odds = counts[1] / counts[0];
    const auto near = [&](double value) { return weights[0] < value * slack && weights[0] > value / slack; };
    if (near(odds))
      return fmt::format("pos_weight={:.3g} is the number of positives over that of negatives", weights[0]);
    if (near(share) && share < 0.5)
      return fmt::format("pos_weight={:.3g} is the share of positives", weights[0]);
    return {};
  }
  if (weights.size() != counts.size()) return {};
  double low = HUGE_VAL;
  double high = 0;
  for (std::size_t c = 0; c < counts.size(); ++c) {
    const double ratio = weights[c] / counts[c];
    low = std::min(low, ratio);
    high = std::max(high, ratio);
  }
  if (!(low > 0) || high > low * slack) return {};
  return "weights of classes are in proportion to their counts";
}

}  // namespace luff::rules

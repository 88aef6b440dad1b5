#include "rules/facts/class_weights.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/format.h"

namespace luff::rules {
namespace {

constexpr double kUneven = 2;   // largest class over smallest, from which frequencies say something
constexpr double kEqual = 0.1;  // of a weight, beside what chance does to the counts
constexpr double kMostSlack = 1.4;
constexpr double kFewest = 30;  // targets of a class
constexpr std::size_t kFewestClasses = 3;
constexpr double kThreeSlack = 1.2;  // of three weights, two are free
constexpr double kHeavy = 50;        // of a weight, beside those of most other classes that are as frequent
constexpr double kOutweighed =
    10;  // all positives beside all negatives: 1 is even, a few favour what is rare
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

std::optional<LabelledRows> ClassWeights::PlacesOf(const LossCall& call, const Recognition& found,
                                                   std::size_t max_classes) {
  if (!call.counted.empty() || call.target.shape.size() < 2 || call.target.values.empty())
    return std::nullopt;
  LabelledRows places;
  if (found.formula == Formula::kCrossEntropy || found.formula == Formula::kNll) {
    const auto rows = ClassRowsOf(call);
    if (!rows || rows->classes > max_classes) return std::nullopt;
    places.classes = rows->classes;
    for (const double id : rows->ids)
      if (id >= 0 && id < static_cast<double>(rows->classes))
        places.labels.push_back(static_cast<std::int64_t>(id));
    return places;
  }
  if (found.formula != Formula::kBceWithLogits) return std::nullopt;
  places.classes = 2;
  for (const double y : call.target.values) {
    if (y != 0 && y != 1) return std::nullopt;
    places.labels.push_back(static_cast<std::int64_t>(y));
  }
  return places;
}

double ClassWeights::Known::PositivesOutweigh(std::int64_t samples) const {
  if (!positive || weights.size() != 1 || counts.size() != 2 ||
      counts[0] + counts[1] < static_cast<double>(samples) || std::min(counts[0], counts[1]) < kFewest)
    return 0;
  const double times = weights[0] * counts[1] / counts[0];
  return weights[0] >= kOutweighed && times >= kOutweighed ? times : 0;
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

std::string ClassWeights::Known::OfOthers(std::int64_t samples) const {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  const std::size_t classes = counts.size();
  if (positive || classes < kFewestClasses || weights.size() != classes ||
      total < static_cast<double>(samples))
    return {};
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  const auto spread = [](const std::vector<double>& shares) {
    const auto [low, high] = std::minmax_element(shares.begin(), shares.end());
    return *low > 0 ? *high / *low : HUGE_VAL;
  };
  if (*least >= kFewest && *most >= kUneven * *least) {
    std::vector<double> sorted_weights = weights;
    std::vector<double> sorted_counts = counts;
    std::sort(sorted_weights.begin(), sorted_weights.end());
    std::sort(sorted_counts.begin(), sorted_counts.end(), std::greater<>());
    std::vector<double> as_they_are(classes);
    std::vector<double> in_order(classes);
    for (std::size_t c = 0; c < classes; ++c) {
      as_they_are[c] = weights[c] * counts[c];
      in_order[c] = sorted_weights[c] * sorted_counts[c];
    }
    const double slack =
        std::min(1 + kEqual + 2 / std::sqrt(*least), classes == kFewestClasses ? kThreeSlack : kMostSlack);
    if (spread(in_order) <= slack && spread(as_they_are) >= kUneven * slack)
      return "they are the inverse frequencies of these classes in another order";
  }
  // Classes that are about as frequent as others. A background that is frequent, or a few rare ones, may be
  // weighed as they are on purpose.
  double heaviest = 0;
  std::vector<std::size_t> common;
  for (std::size_t c = 0; c < classes; ++c) {
    if (2 * counts[c] * static_cast<double>(classes) < total || counts[c] < kFewest) continue;
    if (!(weights[c] > 0)) return {};
    common.push_back(c);
    heaviest = std::max(heaviest, weights[c]);
  }
  const auto light = std::count_if(common.begin(), common.end(),
                                   [&](std::size_t c) { return weights[c] * kHeavy <= heaviest; });
  if (common.size() < kFewestClasses || 2 * static_cast<std::size_t>(light) < common.size()) return {};
  const std::size_t heavy = *std::max_element(
      common.begin(), common.end(), [&](std::size_t a, std::size_t b) { return weights[a] < weights[b]; });
  for (const std::size_t c : common)
    if (weights[c] * kHeavy <= heaviest && 2 * counts[heavy] < counts[c]) return {};
  double sum = 0;
  for (std::size_t c = 0; c < classes; ++c) sum += weights[c] * counts[c];
  return fmt::format(
      "class {} has {:.3g} % of the targets and {:.3g} % of the weight, while {} classes that are as "
      "frequent count "
      "a {:.0f}th of it or less",
      heavy, 100 * counts[heavy] / total, 100 * weights[heavy] * counts[heavy] / sum, light, kHeavy);
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

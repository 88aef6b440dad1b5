#include "rules/facts/foreign_targets.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>

#include "base/format.h"

namespace luff::rules {
namespace {

constexpr std::size_t kForeignRows = 8, kForeignMostRows = 128;  // of a batch
constexpr std::size_t kMostWidth = 4096;                         // numbers of a target
constexpr std::size_t kMostProducts = std::size_t{1} << 21;
constexpr std::size_t kMostClasses = 1000;
constexpr double kForeignLargest = 1e30;
constexpr double kLeastDefinite = 48;  // rows of either side
constexpr double kLeastWrong = 32;
constexpr double kRightThere = 0.1;  // share of evaluations' targets that may be wrong
constexpr double kMostOthers = 0.9;  // more is no part, and the model would know nothing
constexpr double kAsDefinite =
    1.6;  // ratio of the two sides' medians: else the model is another one in training
constexpr double kSpreadErrors = 4;  // of a chi-square test of labels
constexpr double kAsWide = 1.5;      // ratio of the variances of targets: noise would add its own
constexpr double kRankErrors = 4, kRankBand = 0.12;
constexpr std::int64_t kMostGroups = 8;  // of classes: more are put together
constexpr double kLeastGroup = 12, kGroups = 0.75;

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double Logit(double p) { return std::log(std::max(p, 1e-12)) - std::log(std::max(1 - p, 1e-12)); }

}  // namespace

void ForeignTargets::Row::VisitFields(Fields& io) {
  io("key", key);
  io("definite", definite);
  io("expected", expected);
  io("rank", rank);
  io("group", group);
  io("label", label);
  io("spread", spread);
}

void ForeignTargets::Sums::Add(const Row& row) {
  rows += 1;
  expected += row.expected;
  if (row.rank < 0) return;
  wrong += 1;
  ranks += row.rank;
}

// Targets of the answer's class are right. The others are ranked by the scores of their classes.
std::vector<ForeignTargets::Row> ForeignTargets::OfClasses(const ClassRows& all, std::uint64_t seed) {
  std::vector<Row> rows;
  std::vector<std::size_t> used;
  for (std::size_t i = 0; i < all.rows && used.size() < kForeignMostRows; ++i)
    if (all.ids[i] >= 0 && all.ids[i] < static_cast<double>(all.classes)) used.push_back(i);
  if (used.size() < kForeignRows) return rows;
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<double> counts(all.classes);
  for (const std::size_t i : used) ++counts[static_cast<std::size_t>(all.ids[i])];
  const auto count = static_cast<double>(used.size());
  for (const std::size_t i : used) {
    const double* scores = &all.scores[i * all.classes];
    const auto best = static_cast<std::size_t>(std::max_element(scores, scores + all.classes) - scores);
    double second = -HUGE_VAL;
    for (std::size_t c = 0; c < all.classes; ++c)
      if (c != best) second = std::max(second, scores[c]);
    const auto own = static_cast<std::size_t>(all.ids[i]);
    Row row;
    row.key = i;  // its number in the batch, so far
    row.definite = scores[best] - second;
    row.group = static_cast<std::int64_t>(best);
    row.label = static_cast<std::int64_t>(own);
    row.expected = 1 - counts[best] / count;
    if (!(row.definite < kForeignLargest)) continue;  // NaN, too
    if (own != best) {
      double better = 0;
      double equal = 0;
      for (std::size_t c = 0; c < all.classes; ++c) {
        if (c == best) continue;
        better += scores[c] > scores[own] ? counts[c] : 0;
        equal += scores[c] == scores[own] ? counts[c] : 0;
      }
      row.rank = (better + uniform(random) * equal) / (count - counts[best]);
    }
    rows.push_back(row);
  }
  return rows;
}

// The nearer half of the batch's targets is right, by squared errors or by the logarithm of the likelihood.
std::vector<ForeignTargets::Row> ForeignTargets::OfNumbers(const LossCall& call, Formula formula,
                                                           std::uint64_t seed) {
  std::vector<Row> rows;
  const bool binary = formula == Formula::kBceWithLogits || formula == Formula::kBce;
  if ((!binary && !IsRegression(formula)) || !call.target.is_float() || call.output.shape.empty() ||
      call.output.values.size() != call.target.values.size())
    return rows;
  const auto all = static_cast<std::size_t>(std::max<std::int64_t>(call.output.shape[0], 0));
  if (all < kForeignRows || call.target.shape.empty() || call.target.shape[0] != call.output.shape[0])
    return rows;
  const std::size_t width = call.output.values.size() / all;
  if (width == 0 || width > kMostWidth || width * all != call.output.values.size()) return rows;
  std::size_t count = std::min(all, kForeignMostRows);
  while (count * count * width > kMostProducts) --count;
  if (count < kForeignRows) return rows;
  std::vector<double> answers(call.output.values.begin(),
                              call.output.values.begin() + static_cast<std::ptrdiff_t>(count * width));
  const double* targets = call.target.values.data();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (formula == Formula::kBce) answers[i] = Logit(answers[i]);
    if (!(std::abs(answers[i]) < kForeignLargest) || !(std::abs(targets[i]) < kForeignLargest)) return rows;
  }
  std::vector<double> mean(width);
  std::vector<double> centre(width);  // of the targets
  for (std::size_t i = 0; i < answers.size(); ++i)
    centre[i % width] += targets[i] / static_cast<double>(count);
  std::vector<double> shown = answers;  // as probabilities
  for (double& value : shown) value = binary ? 1 / (1 + std::exp(-value)) : value;
  for (std::size_t i = 0; i < shown.size(); ++i) mean[i % width] += shown[i] / static_cast<double>(count);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<double> squares(count);
  for (std::size_t i = 0; i < count * width; ++i) squares[i / width] += binary ? 0 : targets[i] * targets[i];
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<double> misfit(count);
    for (std::size_t j = 0; j < count; ++j) {
      double product = 0;
      for (std::size_t k = 0; k < width; ++k) product += answers[i * width + k] * targets[j * width + k];
      misfit[j] = squares[j] - (binary ? 1 : 2) * product;
    }
    const double better = static_cast<double>(
        std::count_if(misfit.begin(), misfit.end(), [&](double other) { return other < misfit[i]; }));
    const double equal = static_cast<double>(std::count(misfit.begin(), misfit.end(), misfit[i]));
    const double rank = (better + uniform(random) * equal) / static_cast<double>(count);
    Row row;
    row.key = i;
    row.expected = 0.5;
    row.rank = rank > 0.5 ? 2 * rank - 1 : -1;
    double along = 0;
    for (std::size_t k = 0; k < width; ++k) {
      const double apart = shown[i * width + k] - mean[k];
      row.definite += apart * apart;
      along += apart;
      row.spread += std::pow(targets[i * width + k] - centre[k], 2);
    }
    row.definite = std::sqrt(row.definite);
    row.group = along > 0 ? 1 : 0;
    rows.push_back(row);
  }
  return rows;
}

std::vector<ForeignTargets::Row> ForeignTargets::RowsOf(const LossCall& call, const Recognition& known,
                                                        std::uint64_t seed) {
  if (known.broadcast || call.target.shape.empty() || call.output.shape.empty()) return {};
  const auto& shape = call.target.shape;
  const bool single = shape.size() == 1 || (shape.size() == 2 && shape[1] == 1);
  if (known.formula == Formula::kCrossEntropy || known.formula == Formula::kNll) {
    if (!single || call.target.is_float() || NamesPartners(call)) return {};
    const auto rows = ClassRowsOf(call);
    if (!rows || rows->classes < 2 || rows->classes > kMostClasses) return {};
    return OfClasses(*rows, seed);
  }
  const bool binary = known.formula == Formula::kBceWithLogits || known.formula == Formula::kBce;
  if (binary && single && call.output.values.size() == call.target.values.size()) {
    ClassRows rows{call.target.values.size(), 2, {}, call.target.values};
    for (const double value : call.output.values) {
      rows.scores.push_back(0);
      rows.scores.push_back(known.formula == Formula::kBce ? Logit(value) : value);
    }
    if (!std::all_of(rows.ids.begin(), rows.ids.end(), [](double y) { return y == 0 || y == 1; })) return {};
    return OfClasses(rows, seed);
  }
  return OfNumbers(call, known.formula, seed);
}

void ForeignTargets::Add(const LossCall& call, const Recognition& known, bool train,
                         const std::vector<std::uint64_t>& keys) {
  Keep(RowsOf(call, known, ++calls_), train, keys);
}

void ForeignTargets::Keep(std::vector<Row> rows, bool train, const std::vector<std::uint64_t>& keys) {
  std::vector<Row>& kept = train ? trained_ : evaluated_;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    row.key = row.key < keys.size() ? keys[row.key] : 0;
    if (row.key != 0) std::erase_if(kept, [&](const Row& known) { return known.key == row.key; });
    kept.push_back(row);
  }
  if (kept.size() > kKept) kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(kKept));
}

double ForeignTargets::MeanSpread(const std::vector<Row>& rows) {
  double sum = 0;
  for (const Row& row : rows) sum += row.spread;
  return rows.empty() ? 0 : sum / static_cast<double>(rows.size());
}

bool ForeignTargets::SpreadAsAll(double least) const {
  std::map<std::int64_t, double> all;                              // rows of each label
  std::map<std::int64_t, std::map<std::int64_t, double>> answers;  // wrong rows, by answer and label
  double rows = 0;
  for (const Row& row : trained_) {
    if (row.label < 0) continue;
    all[row.label] += 1;
    rows += 1;
    if (row.definite >= least && row.rank >= 0) answers[row.group][row.label] += 1;
  }
  double sum = 0;
  double freedom = 0;
  for (const auto& [answer, labels] : answers) {
    double wrong = 0;
    for (const auto& [label, count] : labels) wrong += count;
    const auto right = all.find(answer);
    const double others = rows - (right == all.end() ? 0 : right->second);
    for (const auto& [label, count] : all) {
      if (label == answer) continue;
      const double expected = wrong * count / others;
      const auto found = labels.find(label);
      sum += std::pow((found == labels.end() ? 0 : found->second) - expected, 2) / expected;
      freedom += 1;
    }
    freedom -= 1;
  }
  return freedom < 1 || sum - freedom <= kSpreadErrors * std::sqrt(2 * freedom);
}

std::optional<ForeignTargets::Found> ForeignTargets::Judge(const Limits& limits) const {
  const auto definite_of = [](const std::vector<Row>& rows) {
    std::vector<double> values;
    for (const Row& row : rows) values.push_back(row.definite);
    return values;
  };
  const double there = Median(definite_of(evaluated_));
  const double here = Median(definite_of(trained_));
  if (!(here <= kAsDefinite * there) || !(there <= kAsDefinite * here)) return std::nullopt;
  const double spread_there = MeanSpread(evaluated_);
  const double spread_here = MeanSpread(trained_);
  if (spread_here > kAsWide * spread_there || spread_there > kAsWide * spread_here) return std::nullopt;
  const double least = std::max(there, here);
  Sums evaluated;
  for (const Row& row : evaluated_)
    if (row.definite >= there) evaluated.Add(row);
  std::vector<double> counted;
  for (const Row& row : trained_)
    if (row.definite >= least) counted.push_back(row.definite);
  const double most = Median(counted);
  Sums trained;
  Sums top;  // the most definite half
  std::map<std::int64_t, Sums> groups;
  for (const Row& row : trained_) {
    if (row.definite < least) continue;
    trained.Add(row);
    groups[row.group % kMostGroups].Add(row);
    if (row.definite >= most) top.Add(row);
  }
  if (evaluated.rows < kLeastDefinite || trained.rows < kLeastDefinite || trained.wrong < kLeastWrong ||
      evaluated.share() > kRightThere || trained.share() > kMostOthers)
    return std::nullopt;
  const double rank = trained.ranks / trained.wrong;
  const double band = std::min(kRankBand, kRankErrors / std::sqrt(12 * trained.wrong));
  const auto beyond = [&](const Sums& one) {
    const double errors = std::sqrt(one.wrong / (one.expected * one.expected) +
                                    (evaluated.wrong + 1) / (evaluated.expected * evaluated.expected));
    return one.share() - evaluated.share() >= limits.z * errors;
  };
  if (std::abs(rank - 0.5) > band || trained.share() - evaluated.share() < limits.share || !beyond(trained))
    return std::nullopt;
  const double error = std::sqrt(top.wrong + 1) / std::max(top.expected, 1e-9);
  if (top.share() + error < trained.share() || 2 * top.share() < trained.share()) return std::nullopt;
  if (!SpreadAsAll(least)) return std::nullopt;
  double judged = 0;
  double alike = 0;
  std::size_t unlike_groups = 0;
  std::size_t judged_groups = 0;
  for (const auto& [group, sums] : groups) {
    if (sums.rows < kLeastGroup) continue;
    const bool same = 2 * sums.share() >= trained.share();
    judged += sums.rows;
    alike += same ? sums.rows : 0;
    ++judged_groups;
    unlike_groups += same ? 0 : 1;
  }
  if (judged_groups < 2 || alike < kGroups * judged || (judged_groups == 2 && unlike_groups > 0))
    return std::nullopt;
  return Found{trained.share() - evaluated.share(),
               trained.rows,
               trained.wrong,
               evaluated.rows,
               evaluated.share(),
               rank};
}

std::optional<ForeignTargets::Found> ForeignTargets::Close(const Limits& limits) {
  if (evaluated_.empty()) return std::nullopt;
  const std::optional<Found> found = Judge(limits);
  evaluated_.clear();
  hits_ = found ? hits_ + 1 : 0;
  return hits_ >= limits.evaluations ? found : std::nullopt;
}

void ForeignTargets::VisitFields(Fields& io) {
  io("trained", trained_, kKept);
  io("evaluated", evaluated_, kKept);
  io("calls", calls_);
  io("hits", hits_);
}

void TellForeignTargets(const ForeignTargets::Found& found, const ForeignTargets::Limits& limits,
                        Finding* finding) {
  finding->what =
      fmt::format("about {:.2g} % of the training's targets seem to belong to other rows", 100 * found.share);
  finding->why = fmt::format(
      "where the model's answer is most definite, {:.0f} of {:.0f} targets of the training are others, and "
      "{:.2g} % of those of evaluations; for these answers they are as good as any target of the batch "
      "(mean rank {:.2f}, 0.5 by chance), where hard or augmented rows have the second best",
      found.wrong, found.rows, 100 * found.evaluated_share, found.rank);
  finding->remedy =
      "look at training rows with a definite answer and another target: shuffle, sort, filter and join "
      "inputs and targets by the same index, all of them";
  finding->causes = {"a part of the targets shuffled, or joined to other rows",
                     "a source among several whose labels are shifted", "labels that were drawn at random"};
  finding->evidence = {{"share", found.share},
                       {"rows", found.rows},
                       {"wrong", found.wrong},
                       {"evaluation_rows", found.evaluated},
                       {"evaluation_share", found.evaluated_share},
                       {"rank", found.rank}};
  finding->threshold = fmt::format(
      "{:g} of the targets beyond those of evaluations, {:g} standard errors, in {} evaluations (Luff)",
      limits.share, limits.z, limits.evaluations);
}

}  // namespace luff::rules

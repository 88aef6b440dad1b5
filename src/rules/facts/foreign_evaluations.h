#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_set>
#include <vector>

#include "base/format.h"
#include "luff/rules/finding.h"
#include "luff/rules/rule.h"
#include "luff/tensor/hash.h"
#include "rules/facts/foreign_targets.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/sample.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Tests whether the targets of evaluations belong to other rows than their inputs do:
/// rows or targets were shuffled, sorted or shifted alone.
///
/// A model that is right about training rows which it has never seen knows what it was asked to learn. It
/// answers evaluations as definitely, and gives each answer as often as their targets have it; and it is
/// right as often as chance has it, in all evaluations: where it is wrong, the rank of the target among the
/// others is uniform. Rows of another kind are answered otherwise; what was learnt by heart shows no skill
/// for new rows.
class ForeignEvaluations {
 public:
  struct Found {
    double skill =
        0;  // of the training's new rows: share of what chance gets wrong that the model gets right
    double trained = 0, evaluated = 0;  // rows
    double wrong = 0, expected = 0;     // of evaluations
  };

  /// Adds a call with one target for each row of the inputs. `keys` name the rows of a training.
  void Add(const LossCall& call, const Recognition& known, bool train,
           const std::vector<std::uint64_t>& keys) {
    for (const ForeignTargets::Row& row : ForeignTargets::RowsOf(call, known, ++calls_)) {
      if (!train) {
        if (evaluated_.size() < kKept) evaluated_.push_back(row);
        continue;
      }
      Keep(&newest_, row);
      const std::uint64_t key = row.key < keys.size() ? keys[row.key] : 0;
      if (key == 0 || seen_.size() >= kSeen || !seen_.insert(key).second) continue;
      Keep(&fresh_, row);
    }
  }

  /// Call at steps of trainings and evaluations. Only losses with one target for each row of the inputs
  /// count.
  void OnStep(const StepView& view, bool train) {
    const std::vector<LossCall>& calls = LossReader::Read(view);
    if (calls.size() != 1) return;
    const LossCall& call = calls.front();
    std::vector<std::uint64_t> keys;
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr || sample->whole_shape.empty() || call.target.whole_shape.empty()) continue;
      if (sample->whole_shape[0] != call.target.whole_shape[0]) return;
      if (train && keys.empty()) keys = KeysOf(*sample);
    }
    const Recognition known = reader_.Recognise(call);
    if (!IsRegression(known.formula)) {
      Add(call, known, train, keys);
      return;
    }
    LossCall standardised = call;  // targets may be scaled otherwise in evaluations, which is no other row
    if (!Standardise(&standardised.output) || !Standardise(&standardised.target)) return;
    Add(standardised, known, train, keys);
  }

  /// Call when an evaluation may have ended.
  [[nodiscard]] std::optional<Found> Close(bool end) {
    if (evaluated_.empty()) return std::nullopt;
    const std::vector<ForeignTargets::Row> rows = std::move(evaluated_);
    evaluated_.clear();
    const Sums there = SumsOf(rows);
    if (there.expected - there.wrong > kKnows * std::sqrt(there.expected)) right_ = true;
    const Sums fresh = SumsOf(fresh_);
    const double skill = fresh.expected > 0 ? 1 - fresh.wrong / fresh.expected : 0;
    if (right_ || fresh.rows < kFresh || skill < kSkill ||
        fresh.expected - fresh.wrong < kKnown * std::sqrt(fresh.expected))
      return std::nullopt;
    const double error = std::sqrt(there.expected);
    const bool chance = there.rows >= kRows && std::abs(there.wrong - there.expected) <= kChance * error &&
                        there.wrong - (1 - skill) * there.expected >= kGap * error;
    if (!chance || !AsDefinite(rows) || !AnswersAsTargets(rows) ||
        std::abs(there.ranks / there.wrong - 0.5) > kRankErrors / std::sqrt(12 * there.wrong)) {
      hits_ = 0;
      return std::nullopt;
    }
    ++hits_;
    if (hits_ < 2 && !(end && there.rows >= 2 * kRows)) return std::nullopt;
    return Found{skill, fresh.rows, there.rows, there.wrong, there.expected};
  }

  void VisitFields(Fields& io) {
    io("seen", seen_, kSeen);
    io("parts", parts_, kSeen);
    io("fresh", fresh_, kKept);
    io("newest", newest_, kKept);
    io("evaluated", evaluated_, kKept);
    io("calls", calls_);
    io("hits", hits_);
    io("right", right_);
    io("reader", reader_);
  }

 private:
  static constexpr std::size_t kKept = 512;  // rows of each kind
  static constexpr std::size_t kSeen = 1 << 14;
  static constexpr std::size_t kPart = 8;                   // values
  static constexpr std::size_t kWidest = 4096;              // values of a row that are looked at
  static constexpr std::uint64_t kBits = (1ULL << 52) - 1;  // numbers of a saved state
  static constexpr double kFresh = 64, kRows = 64;
  static constexpr double kSkill = 0.3, kKnown = 5, kKnows = 3;
  static constexpr double kChance = 2.5, kGap = 3;  // standard errors
  static constexpr double kRankErrors = 3;
  static constexpr double kAsDefinite = 2, kHistogram = 4;

  struct Sums {
    double rows = 0, wrong = 0, expected = 0, ranks = 0;
  };

  // Names the rows of a training, with 0 for those that overlap with one that was there before, as windows of
  // a series do: the model has seen most of it.
  std::vector<std::uint64_t> KeysOf(const SampleValues& sample) {
    std::vector<std::uint64_t> keys = RowHashes(sample);
    const Rows rows = RowsOf(sample);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (seen_.contains(keys[i])) continue;
      for (const std::uint64_t part :
           LeastParts(&sample.values[i * rows.width], std::min(rows.width, kWidest))) {
        if (part == 0) continue;
        if (parts_.contains(part))
          keys[i] = 0;
        else if (parts_.size() < kSeen)
          parts_.insert(part);
      }
    }
    return keys;
  }
  // The two least hashes of all parts of a row that change from value to value: of two windows that share
  // most of their values one is the same, wherever it stands in them. 0 where there is none.
  static std::array<std::uint64_t, 2> LeastParts(const double* values, std::size_t width) {
    std::array<std::uint64_t, 2> least{};
    std::size_t changing = 1;  // values in a row, of which none is as the one before
    for (std::size_t i = 1; width >= 2 * kPart && i < width; ++i) {
      changing = values[i] != values[i - 1] ? changing + 1 : 1;
      if (changing < kPart) continue;
      const std::uint64_t hash = HashBytes(values + i + 1 - kPart, kPart * sizeof(double)) & kBits;
      if (hash == 0 || hash == least[0] || hash == least[1]) continue;
      if (least[0] == 0 || hash < least[0]) {
        least[1] = least[0];
        least[0] = hash;
      } else if (least[1] == 0 || hash < least[1]) {
        least[1] = hash;
      }
    }
    return least;
  }

  // Gives each column of a batch mean 0 and deviation 1. False for one that never varies.
  static bool Standardise(SampleValues* sample) {
    const Rows rows = RowsOf(*sample);
    if (rows.count < 2) return false;
    const auto count = static_cast<double>(rows.count);
    for (std::size_t column = 0; column < rows.width; ++column) {
      double sum = 0;
      double squares = 0;
      for (std::size_t i = column; i < sample->values.size(); i += rows.width) sum += sample->values[i];
      for (std::size_t i = column; i < sample->values.size(); i += rows.width)
        squares += std::pow(sample->values[i] - sum / count, 2);
      const double deviation = std::sqrt(squares / count);
      if (!(deviation > 0) || !std::isfinite(deviation)) return false;
      for (std::size_t i = column; i < sample->values.size(); i += rows.width)
        sample->values[i] = (sample->values[i] - sum / count) / deviation;
    }
    return rows.width > 0;
  }
  static void Keep(std::vector<ForeignTargets::Row>* rows, const ForeignTargets::Row& row) {
    if (rows->size() >= kKept / 2) rows->erase(rows->begin());
    rows->push_back(row);
  }
  static Sums SumsOf(const std::vector<ForeignTargets::Row>& rows) {
    Sums sums;
    for (const ForeignTargets::Row& row : rows) {
      sums.rows += 1;
      sums.expected += row.expected;
      if (row.rank < 0) continue;
      sums.wrong += 1;
      sums.ranks += row.rank;
    }
    return sums;
  }
  static double MedianDefinite(const std::vector<ForeignTargets::Row>& rows) {
    std::vector<double> values;
    for (const ForeignTargets::Row& row : rows) values.push_back(row.definite);
    if (values.empty()) return 0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }
  // Whether the model is as sure of evaluations as it is of its newest training rows.
  [[nodiscard]] bool AsDefinite(const std::vector<ForeignTargets::Row>& rows) const {
    const double here = MedianDefinite(newest_);
    const double there = MedianDefinite(rows);
    return there > 0 && here <= kAsDefinite * there && there <= kAsDefinite * here;
  }
  // Whether each class is answered as often as it is a target. Numbers: whether both sides of the mean are.
  static bool AnswersAsTargets(const std::vector<ForeignTargets::Row>& rows) {
    std::map<std::int64_t, std::pair<double, double>> counts;  // by class: answers, targets
    for (const ForeignTargets::Row& row : rows) {
      counts[row.group].first += 1;
      if (row.label >= 0) counts[row.label].second += 1;
    }
    const auto all = static_cast<double>(rows.size());
    if (rows.front().label < 0) {
      const double one = counts.begin()->second.first;
      return counts.size() == 2 && one >= all / 8 && one <= all - all / 8;
    }
    double sum = 0;
    double kinds = 0;
    for (const auto& [label, count] : counts) {
      sum += (count.first - count.second) * (count.first - count.second) / (count.first + count.second);
      kinds += 1;
    }
    return kinds >= 2 && sum - (kinds - 1) <= kHistogram * std::sqrt(2 * (kinds - 1));
  }

  std::unordered_set<std::uint64_t> seen_;   // rows of the training
  std::unordered_set<std::uint64_t> parts_;  // of rows
  std::vector<ForeignTargets::Row> fresh_, newest_, evaluated_;
  LossReader reader_;
  std::uint64_t calls_ = 0;
  std::int64_t hits_ = 0;  // evaluations in a row
  bool right_ = false;     // an evaluation was answered better than by chance
};

inline void TellForeignEvaluations(const ForeignEvaluations::Found& found, Finding* finding) {
  finding->what = "the targets of evaluations belong to other rows than their inputs";
  finding->why = fmt::format(
      "of {:.0f} training rows that it had never seen, the model got {:.0f} % less wrong than chance; it "
      "answers "
      "evaluations as definitely, and gives each answer as often as their targets have it, but {:.0f} of "
      "{:.0f} are "
      "wrong, as by chance ({:.0f})",
      found.trained, 100 * found.skill, found.wrong, found.evaluated, found.expected);
  finding->remedy =
      "keep inputs and targets of evaluations in one dataset, in one order: shuffle, sort and slice them by "
      "the "
      "same indices; look at some rows of an evaluation beside their targets";
  finding->causes = {"inputs or targets of the evaluation that were shuffled or sorted alone",
                     "an index that begins at another row in one of them",
                     "a loader of evaluations that shuffles, beside targets that do not",
                     "files of inputs and targets that are listed in another order"};
  finding->evidence = {{"skill", found.skill},
                       {"rows", found.trained},
                       {"evaluation_rows", found.evaluated},
                       {"wrong", found.wrong},
                       {"wrong_by_chance", found.expected}};
  finding->threshold =
      "as often right as by chance, 3 standard errors below new training rows, in two evaluations in a row "
      "or a "
      "large last one (Luff)";
}

}  // namespace luff::rules

#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include <nlohmann/json.hpp>

#include "rules/facts/dependence.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/sample.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Whether each batch of a training is one row again and again: equal in every number
/// of all inputs, with one target, in captured batches in a row, while evaluations have rows that differ.
///
/// A row may be copied on purpose: for several draws of a model, members of an ensemble, views. Then a model
/// answers the copies differently, or some of its inputs differ; here all answers are equal, too, or the
/// loader's own batches are such.
class EqualRows {
 public:
  static constexpr std::int64_t kBatches = 4;   // captured, in a row
  static constexpr std::size_t kLeastRows = 4;  // kept of a batch
  static constexpr std::size_t kDifferent = 3;  // rows that such batches held
  static constexpr std::int64_t kMany = 16;     // rows: more than anybody draws for one
  static constexpr std::int64_t kOneRow = 8;    // captured batches of one and the same row

  struct Found {
    std::int64_t rows = 0;     // of the newest batch
    std::int64_t batches = 0;  // captured, in a row
    std::int64_t different = 0;
    bool answers = false;  // are equal, too
    bool targets = false;  // there was one for each row: all were equal
  };

  /// Call at steps of trainings and evaluations.
  void OnStep(const StepView& view) {
    const bool train = view.rows.info.mode == query::Mode::kTrain;
    for (const auto& event : view.index.json_events("made_inputs")) {
      const auto model = event->find("model");
      if (model != event->end() && model->is_string() && made_.size() < kMostMade)
        made_.insert(model->get<std::string>());
    }
    const std::vector<ModelInput>& inputs = ModelInputsOf(view);
    if (inputs.empty() || over_) return;
    std::int64_t rows = -1;
    std::vector<std::uint64_t> first;  // row 0 of each input
    bool equal = true;
    bool telling = false;
    for (const ModelInput& input : inputs) {
      if (input.model != inputs.front().model || input.entry->worker != inputs.front().entry->worker)
        continue;
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr || sample->whole_shape.empty()) continue;  // a number is no row
      if (rows >= 0 && sample->whole_shape[0] != rows) return;  // not all of them have the batch's rows
      rows = sample->whole_shape[0];
      const std::vector<std::uint64_t> hashes = RowHashes(*sample);
      if (hashes.size() < kLeastRows) return;
      equal = equal && std::all_of(hashes.begin(), hashes.end(),
                                   [&](std::uint64_t hash) { return hash == hashes[0]; });
      telling = telling || Tells(*sample);
      first.push_back(hashes[0]);
    }
    if (first.empty() || made_.contains(inputs.front().model)) return;
    if (!train) {
      differ_ = differ_ || !equal;
      return;
    }
    const std::vector<LossCall>& calls = LossReader::Read(view);
    bool answers = calls.size() == 1;
    bool targets = false;
    for (const LossCall& call : calls) {
      targets = targets || OfRows(call.target, rows);
      equal = equal && (!OfRows(call.target, rows) || AllEqual(call.target, 0));
      answers = answers && OfRows(call.output, rows) && AllEqual(call.output, kAlike);
    }
    if (!equal) {
      over_ = ++unequal_ >= kMostUnequal && batches_ < kBatches;
      batches_ = 0;
      different_.clear();
      return;
    }
    if (!telling) return;
    ++batches_;
    answers_ = batches_ == 1 ? answers : answers_ && answers;
    targets_ = batches_ == 1 ? targets : targets_ && targets;
    std::uint64_t hash = 0;
    for (const std::uint64_t one : first) hash = (hash * kMix + one) & kBits;
    if (different_.size() < kDifferent) different_.insert(hash);
    rows_ = rows;
  }

  /// Whether enough batches of one row were seen for `Judge` to be asked.
  [[nodiscard]] bool IsReady() const { return batches_ >= kBatches && differ_; }
  /// What was found so far. `batch`: rows of a batch of the loader that trains, 0 if it is not known;
  /// `more`: the loader has several batches; `dropout`: the model has layers of it, which answer copies
  /// differently. Draws on purpose are fewer, or are made of the rows of a loader's smaller batches, or of
  /// rows without targets.
  [[nodiscard]] std::optional<Found> Judge(std::int64_t batch, bool more, bool dropout) const {
    const bool loaded = batch > 0 && batch == rows_;
    const bool others = different_.size() >= kDifferent;
    if (!IsReady() || !(others || (batches_ >= kOneRow && loaded && more))) return std::nullopt;
    const bool many = dropout && targets_ && batch == 0 && rows_ >= kMany;
    if (!(answers_ || loaded || many)) return std::nullopt;
    return Found{rows_, batches_, static_cast<std::int64_t>(different_.size()), answers_, targets_};
  }

  void VisitFields(Fields& io) {
    io("made", made_, kMostMade);
    io("different", different_, kDifferent);
    io("batches", batches_);
    io("rows", rows_);
    io("unequal", unequal_);
    io("answers", answers_);
    io("targets", targets_);
    io("differ", differ_);
    io("over", over_);
  }

 private:
  static constexpr std::size_t kMostMade = 64;
  static constexpr std::int64_t kMostUnequal = 256;
  static constexpr double kAlike =
      1e-5;  // of the largest: rows of one product of matrices may be rounded apart
  static constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15;
  static constexpr std::uint64_t kBits = (1ULL << 52) - 1;  // numbers of a saved state

  static bool OfRows(const SampleValues& sample, std::int64_t rows) {
    return !sample.whole_shape.empty() && sample.whole_shape[0] == rows && RowsOf(sample).count >= kLeastRows;
  }
  static bool AllEqual(const SampleValues& sample, double apart) {
    const Rows rows = RowsOf(sample);
    double most = 0;
    for (std::size_t i = 0; i < rows.width; ++i) most = std::max(most, std::abs(sample.values[i]));
    for (std::size_t i = rows.width; i < sample.values.size(); ++i)
      if (!(std::abs(sample.values[i] - sample.values[i % rows.width]) <= apart * most)) return false;
    return rows.width > 0;
  }
  // Whether another row could hardly be equal to the first one: many values, or some that are no whole
  // numbers.
  static bool Tells(const SampleValues& sample) {
    const std::size_t width = RowsOf(sample).width;
    if (width == 0) return false;
    if (CannotRepeat(sample.values.data(), width)) return true;
    std::set<double> broken;
    for (std::size_t i = 0; i < width; ++i)
      if (sample.values[i] != std::floor(sample.values[i])) broken.insert(sample.values[i]);
    return broken.size() >= 3;
  }

  std::set<std::string> made_;  // models whose inputs are made by the graph
  std::unordered_set<std::uint64_t> different_;
  std::int64_t batches_ = 0, rows_ = 0, unequal_ = 0;
  bool answers_ = false, targets_ = false, differ_ = false, over_ = false;
};

}  // namespace luff::rules

#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/facts/sample.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Whether the rows that a model gets are samples which may stand in any order: the
/// training itself gives them again at other places and beside other rows. The places of a sequence, the
/// nodes of one graph and sensors that are always the same never come so; tokens of one sequence do, but
/// stand in one batch more than once.
class ShuffledRows {
 public:
  /// Call at TRAIN steps.
  void OnStep(const StepView& view) {
    if (shuffled_ && regrouped_) return;
    std::string first;
    for (const ModelInput& input : ModelInputsOf(view)) {
      if (input.index != 0 || (!first.empty() && first != input.model)) continue;
      first = input.model;
      const auto sample = LoadSample(view, *input.entry);
      if (sample != nullptr && !sample->shape.empty()) Take(RowHashes(*sample));
    }
  }
  /// Once true, for good.
  [[nodiscard]] bool shuffled() const noexcept { return shuffled_; }
  /// Whether they also come in ever other company: of two rows that stood side by side, mostly one comes
  /// again without the other. Rows that are parts of one thing (the documents of a query, the points of a
  /// cloud) come together again, in whatever order. Once true, for good.
  [[nodiscard]] bool regrouped() const noexcept { return shuffled_ && regrouped_; }

  void VisitFields(Fields& io) {
    io("rows", rows_, kMost);
    io("again", again_);
    io("elsewhere", elsewhere_);
    io("apart", apart_);
    io("twice", twice_);
    io("shuffled", shuffled_);
    io("regrouped", regrouped_);
  }

 private:
  static constexpr std::size_t kMost = 1 << 14;
  static constexpr std::size_t kLeastRows = 4;  // of a batch
  static constexpr std::int64_t kAgain = 32;
  static constexpr std::int64_t kRarely = 64;  // rows that come again, for each that a batch holds twice

  // Where a row came first.
  struct Met {
    std::uint64_t before = 0;  // hash of the row in front of it
    std::int64_t place = 0;
    void VisitFields(Fields& io) {
      io("before", before);
      io("place", place);
    }
  };

  void Take(const std::vector<std::uint64_t>& hashes) {
    if (hashes.size() < kLeastRows) return;
    std::unordered_set<std::uint64_t> batch;
    for (const std::uint64_t hash : hashes) twice_ += batch.insert(hash).second ? 0 : 1;
    for (std::size_t i = 1; i < hashes.size(); ++i) {
      if (hashes[i] == hashes[i - 1]) continue;
      const auto met = rows_.find(hashes[i]);
      const Met now{hashes[i - 1], static_cast<std::int64_t>(i)};
      if (met == rows_.end()) {
        if (rows_.size() < kMost) rows_.emplace(hashes[i], now);
        continue;
      }
      ++again_;
      if (met->second.before == now.before || met->second.place == now.place) continue;
      ++elsewhere_;
      apart_ += batch.contains(met->second.before) ? 0 : 1;
    }
    // A batch may be given twice in a row, and a row come to its old place by chance.
    const bool now = elsewhere_ >= kAgain && 2 * elsewhere_ >= again_ && kRarely * twice_ <= again_;
    shuffled_ = shuffled_ || now;
    regrouped_ = regrouped_ || (now && 4 * apart_ >= 3 * elsewhere_);
  }

  std::unordered_map<std::uint64_t, Met> rows_;  // by hash
  std::int64_t again_ = 0, elsewhere_ = 0, twice_ = 0;
  std::int64_t apart_ = 0;  // of those elsewhere: without the row that stood in front of it
  bool shuffled_ = false, regrouped_ = false;
};

}  // namespace luff::rules

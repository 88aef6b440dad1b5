#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Finds out whether the weights of all optimizers are set back to those of the start,
/// or drawn anew, behind each pass over the data.
///
/// Inner loops of other tasks, folds and clients see other rows each time, of loaders of their own, restarts
/// and rewound weights go through their rows several times before the next one, probes stand beside an
/// optimizer that goes on, and who compares learning rates by one pass each sets another one by hand.
class SetBacks {
 public:
  struct Found {
    std::int64_t times = 0, updates = 0;  // how often, and updates between two of them
    bool drawn = false;                   // else the values of before the first update
  };

  /// Call at each TRAIN step.
  void OnTrainStep(const StepView& view);
  /// Call after OnTrainStep. What is certain since now.
  [[nodiscard]] std::optional<Found> Judge(const StepView& view) const;
  /// Weights have been set to something else, or have gone on for two passes.
  [[nodiscard]] bool over() const noexcept { return over_; }

  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kMaxOptimizers = 64, kMaxRows = 8192;
  static constexpr std::int64_t kTimes = 3;   // set back, all of them alike
  static constexpr std::int64_t kLeast = 2;   // updates between two
  static constexpr std::int64_t kAgain = 16;  // rows that come again behind one
  static constexpr std::int64_t kFew = 10;    // as many as come twice between two: rows that are there twice

  struct Optimizer {
    std::int64_t times = 0, updates = 0;  // of which each set-back followed `updates`
    std::int64_t since = 0;               // updates since the newest
    bool regular = true, drawn = false;
    void VisitFields(Fields& io);
  };
  [[nodiscard]] bool IsOnePass(const StepView& view, std::int64_t updates) const;

  std::map<std::uint32_t, Optimizer> optimizers_;   // that make updates
  std::unordered_set<std::uint64_t> now_, before_;  // rows since the newest set-back, and up to it
  std::int64_t twice_ = 0, again_ = 0;              // rows that came in both, and twice since it
  double rate_ = -1, rate_then_ = -1;               // the largest, now and at the newest set-back
  bool over_ = false;
};

}  // namespace luff::rules

#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Finds out whether every update stands in a loop over batches that never comes
/// round, so that each pass ends behind its first batch, and there were more.
///
/// The loop is a fact of the program. That an update is meant to be a pass is one of evaluations behind each
/// update, or every other one: whoever draws a batch by such a loop (`for batch in loader: ...; return`), or
/// looks whether one batch can be learnt, evaluates now and then, or at the end. Silent of data that grow, of
/// which a batch is drawn each time (a replay).
class EarlyEnds {
 public:
  struct Found {
    std::int64_t updates = 0, batches = -1;  // of a pass; -1: not known
    std::string function;                    // that the loop stands in
    std::int64_t line = 0;
    void Describe(Finding* finding) const;
  };
  static constexpr std::int64_t kUpdates = 4;      // that are looked at, but the first
  static constexpr std::int64_t kMost = 512;       // updates: who makes more draws batches on purpose
  static constexpr std::int64_t kEvaluations = 3;  // behind updates, each behind at most two

  /// Call at each step.
  void OnStep(const StepView& view);
  /// What is certain since this TRAIN step.
  [[nodiscard]] std::optional<Found> Judge(const StepView& view) const;
  /// What is certain at the end of the run.
  [[nodiscard]] std::optional<Found> OnEnd(const query::Trial& trial) const;
  /// Another update stands elsewhere, or there are too many.
  [[nodiscard]] bool over() const noexcept { return over_; }

  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kMaxRows = 4096;
  static constexpr std::int64_t kMore = 2;  // times the rows of a batch
  static constexpr std::size_t kGrows = 3;  // sizes of the data that loaders draw from

  [[nodiscard]] std::optional<Found> Certain(const query::Trial& trial, bool at_end) const;
  [[nodiscard]] bool EvaluatesEach() const noexcept {
    return evaluations_ >= kEvaluations && 2 * evaluations_ + 2 >= updates_;
  }

  std::int64_t looks_ = 0, updates_ = 0, line_ = 0;
  std::string function_;
  std::int64_t started_ = 0;  // loaders
  std::unordered_set<std::uint64_t> rows_;
  std::int64_t batch_ = 0;  // most rows of one
  bool same_ = true;        // all batches have the rows of the first
  std::int64_t evaluated_ = 0, most_evaluated_ = 0, evaluations_ = 0;  // rows since the newest TRAIN step
  bool over_ = false;
};

}  // namespace luff::rules

#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "luff/rules/rule.h"
#include "rules/facts/sample.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Finds evaluations that ask another model than the one that is trained, and get the
/// same answers, to the last bit, evaluation after evaluation, while the weights of the training change.
///
/// Compared are passes over the same inputs whose outputs a loss or a label is compared with. An evaluation
/// does not count if it holds a pass that cannot be compared: of a model that is trained, with other inputs
/// than before, of another model that nothing is compared with, or with outputs of 16 bits or of few values.
class StaleAnswers {
 public:
  /// What is told of them.
  struct Found {
    Anchor at;               // the last TRAIN step before the newest evaluation
    std::int64_t since = 0;  // TRAIN step before the first of them
    std::int64_t evaluations = 0, updates = 0;
    std::size_t passes = 0;          // of each evaluation
    std::string evaluated, trained;  // names of the models
  };
  static constexpr std::int64_t kEvaluations = 3;
  static constexpr std::int64_t kUpdates = 8;  // between two evaluations that are compared

  /// Call at each step. Returns what was found when an evaluation has ended that was like those before.
  std::optional<Found> OnStep(const StepView& view);
  /// Call at the end of the run.
  std::optional<Found> OnEnd() { return Close(); }
  /// An evaluation had other answers for the same inputs. Once true, for good.
  [[nodiscard]] bool moved() const noexcept { return moved_; }

  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kMaxPasses = 256;  // of an evaluation; the first ones are compared
  static constexpr std::size_t kMaxModels = 16;

  void Evaluate(const StepView& view);
  std::optional<Found> Close();

  Anchor last_;
  std::set<std::string> trained_, evaluated_;  // models; the latter of this evaluation
  std::set<std::string> silent_;               // models of this evaluation whose passes compare nothing
  std::map<std::uint64_t, std::uint64_t> now_, before_;  // hash of a pass's inputs -> of its outputs
  bool evaluating_ = false, unlike_ = false;             // `unlike_`: this evaluation does not count
  bool changed_ = false;                                 // a weight has changed since before_
  bool moved_ = false;
  std::int64_t streak_ = 0;  // evaluations in a row with the same answers
  std::int64_t since_ = -1, first_update_ = 0, update_ = 0;
};

}  // namespace luff::rules

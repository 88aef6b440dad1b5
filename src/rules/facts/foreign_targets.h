#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "luff/rules/finding.h"
#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Tests whether a part of the training's targets belongs to other rows, while those
/// of evaluations belong to their own. Bounded memory.
///
/// Each answer is compared with the targets of all rows of its batch. For this answer a target that was taken
/// from some other row is as any other of the batch: its rank among them, by how well they fit the answer, is
/// uniform. That of a row that is only hard, augmented or asked under dropout is not: what is not the best is
/// one of the next, such as the class with the second largest score. Only rows with a definite answer count
/// (a large margin, a number far from the mean of all), as definite as half of the evaluation's: of these a
/// model is hardly ever wrong unless it was told so. The most definite must be wrong as often as the others,
/// and answers of all kinds; wrong classes are spread as all classes are; targets vary as much as in
/// evaluations, where noise would widen them; and answers are as definite as there.
class ForeignTargets {
 public:
  struct Limits {
    double share, z;
    std::int64_t evaluations;
  };
  struct Found {
    double share = 0;            // of the targets, that belong to other rows
    double rows = 0, wrong = 0;  // with a definite answer; of them those that have another target
    double evaluated = 0, evaluated_share = 0;
    double rank = 0;  // mean rank of the wrong targets among all that would be wrong: 0.5 by chance
  };

  /// What is known of an answer and its target.
  struct Row {
    std::uint64_t key = 0;
    double definite = 0;
    double expected = 0;      // chance that a target of another row is wrong
    double rank = -1;         // of a wrong target among the wrong ones, 0 to 1; -1: it is right
    std::int64_t group = 0;   // kind of the answer: its class, or which side of the mean
    double spread = 0;        // squared distance of the target from the batch's mean; 0 for classes
    std::int64_t label = -1;  // class that the target names; -1: there are no classes
    void VisitFields(Fields& io);
  };

  /// The answers of a call of classes or numbers, whose keys are their places in the batch; none of other
  /// calls.
  [[nodiscard]] static std::vector<Row> RowsOf(const LossCall& call, const Recognition& known,
                                               std::uint64_t seed);
  /// Adds a call with a target for each sample: class ids, or as many numbers as the answer has. `keys` name
  /// the samples, so that only the newest answer to each counts; it may be empty.
  void Add(const LossCall& call, const Recognition& known, bool train,
           const std::vector<std::uint64_t>& keys);
  /// Call when an evaluation may have ended. Returns what was found, once enough evaluations in a row say so.
  [[nodiscard]] std::optional<Found> Close(const Limits& limits);
  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kKept = 768;  // newest rows of either side

  // Whether labels of wrong rows are spread over the other classes as all labels are, for each answer.
  [[nodiscard]] bool SpreadAsAll(double least) const;
  [[nodiscard]] static double MeanSpread(const std::vector<Row>& rows);
  struct Sums {
    double rows = 0, wrong = 0, expected = 0, ranks = 0;
    void Add(const Row& row);
    [[nodiscard]] double share() const { return expected > 0 ? wrong / expected : 0; }
  };

  [[nodiscard]] static std::vector<Row> OfClasses(const ClassRows& rows, std::uint64_t seed);
  [[nodiscard]] static std::vector<Row> OfNumbers(const LossCall& call, Formula formula, std::uint64_t seed);
  void Keep(std::vector<Row> rows, bool train, const std::vector<std::uint64_t>& keys);
  [[nodiscard]] std::optional<Found> Judge(const Limits& limits) const;

  std::vector<Row> trained_, evaluated_;  // oldest first
  std::uint64_t calls_ = 0;
  std::int64_t hits_ = 0;  // evaluations in a row
};

/// Writes what was found, why and the remedy.
void TellForeignTargets(const ForeignTargets::Found& found, const ForeignTargets::Limits& limits,
                        Finding* finding);

}  // namespace luff::rules

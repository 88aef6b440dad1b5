#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Tests whether targets depend on inputs, without a model: in each batch, are the
/// targets of neighbouring inputs more alike than those of other rows? A permutation test: what is left when
/// the targets of the batch are exchanged at random is chance. Batches add up. Constant memory.
///
/// Neighbours are looked for in several ways, since what makes inputs alike differs from task to task.
/// Values: standardised inputs, their autocovariances (alike where patterns are shifted), their sorted values
/// (alike where they are permuted), vectors that two rows of vectors have in common (a bag that one of its
/// patterns tells). Ids: the same id at the same place, the same id anywhere. Targets are alike by equal ids,
/// or by the product of their centred values. Where targets are mostly noise, neighbours tell little:
/// correlations of single values of inputs and targets are looked at too.
class Dependence {
 public:
  static constexpr std::size_t kLeastRows = 8;  // of a batch
  static constexpr std::size_t kMostRows = 128;

  /// Adds a batch: the first rows of an input, and their targets. Both have a row for each sample along axis
  /// 0; a flat target of several values for each row is divided into rows. Ignored: fewer rows, values that
  /// are not finite, targets that do not vary.
  ///
  /// `fresh`: none of these rows came before. Only such rows tell of correlations: rows that come again make
  /// those that are there by chance look certain.
  void Add(const SampleValues& input, const SampleValues& target, bool fresh, std::uint64_t seed);
  /// Adds how far answers of the model depend on targets, for rows that it has not been trained on.
  void AddAnswers(const SampleValues& answer, const SampleValues& target, std::uint64_t seed);

  /// The largest excess of likeness over chance, in standard errors. Of correlations, what the largest of so
  /// many that are 0 would reach is taken off.
  [[nodiscard]] double z() const noexcept;
  /// Rows that the test has compared.
  [[nodiscard]] double rows() const noexcept { return rows_; }
  void VisitFields(Fields& io);

 private:
  struct Way {
    double excess = 0, variance = 0;
    void VisitFields(Fields& io) {
      io("excess", excess);
      io("variance", variance);
    }
  };
  enum WayId : std::uint8_t { kValues, kShifted, kSorted, kSameId, kSharedId, kAnswers, kSharedPart, kWays };

  struct Links;
  struct Likeness;
  static constexpr std::size_t kColumns = 64, kTargets = 8;  // that are correlated, at most
  void Test(WayId way, const Links& links, const Likeness& likeness, std::uint64_t seed);
  void Correlate(const SampleValues& input, const SampleValues& target, std::size_t rows);

  std::array<Way, kWays> ways_;
  std::vector<double>
      products_;  // sums of input times target, both standardised in their batch; of each pair of columns
  double correlated_ = 0;  // rows in these sums
  double rows_ = 0;
};

/// True if a row has so many distinct values that an equal one is the same row, not one that is alike by
/// chance.
[[nodiscard]] bool CannotRepeat(const double* row, std::size_t width);

/// Inputs and targets without rows that tell nothing of a dependence: those that came a second time in one
/// batch, as where they are drawn with replacement (they have the target of the first, whatever targets
/// depend on), and those whose only target is `ignored` by the loss, which says what is labelled. Nothing if
/// there are none, or targets have another number of rows.
[[nodiscard]] std::optional<std::pair<SampleValues, SampleValues>> TellingRows(const SampleValues& sample,
                                                                               const SampleValues& target,
                                                                               double ignored);

}  // namespace luff::rules

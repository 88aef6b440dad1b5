#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/facts/json_event.h"
#include "rules/facts/labelled_rows.h"
#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** The weights of classes that losses are given (event `loss_weights`,
/// docs/spec/evidence.md), beside the targets that they are for.
class ClassWeights {
 public:
  static constexpr std::size_t kMost = 64;  // weights of a loss

  struct Known {
    std::vector<double> weights;  // of classes; of positives: one
    std::vector<double> counts;   // targets by class
    bool positive = false;        // of positives
    bool told = false, other_told = false, heavy_told = false;
    std::vector<double> evaluated,
        answered;            // by class: labels and answers of evaluations that count all rows
    std::int64_t zero = -1;  // class of weight 0 that is reported
    void VisitFields(Fields& io) {
      io("weights", weights, kMost);
      io("counts", counts, kMost);
      io("positive", positive);
      io("told", told);
      io("other_told", other_told);
      io("heavy_told", heavy_told);
      io("evaluated", evaluated, kMost);
      io("answered", answered, kMost);
      io("zero", zero);
      io.Check(!weights.empty(), "weights");
    }
    /// What the weights are, in words, if they follow the frequency of classes; "" if they do not, or less
    /// than `samples` targets were seen, or classes are about even.
    [[nodiscard]] std::string Fault(std::int64_t samples) const;
    /// Why the weights cannot be those of these classes, in words: they are the inverse frequencies of the
    /// classes in another order, or nearly all of the loss is that of a class which is as frequent as others.
    /// "" if that is not certain.
    [[nodiscard]] std::string OfOthers(std::int64_t samples) const;
    /// How many times as much all positives count as all negatives, by `pos_weight`; 0 if that is less than
    /// ten times, or not certain.
    [[nodiscard]] double PositivesOutweigh(std::int64_t samples) const;
    /// A class of weight 0, which comes at least half as often as others in the training and comes in
    /// evaluations, but is never answered there; -1 if there is none.
    [[nodiscard]] std::int64_t ZeroClass(std::int64_t samples) const;
  };

  void OnStep(const StepView& view);
  [[nodiscard]] bool Has(const std::string& key) const { return known_.contains(key); }
  /// Adds the targets of a call whose key Has knows.
  Known* Count(const std::string& key, const LabelledRows& rows);
  /// The targets of a call of which a sample has many, as an image has pixels; nullopt of other calls.
  [[nodiscard]] static std::optional<LabelledRows> PlacesOf(const LossCall& call, const Recognition& found,
                                                            std::size_t max_classes);
  /// Adds the labels and answers of an evaluation that counts all of its rows.
  Known* Evaluate(const std::string& key, const LabelledRows& rows);
  void VisitFields(Fields& io) { io("known", known_, LossReader::kMaxKinds); }

 private:
  std::map<std::string, Known> known_;  // by key of the call
};

}  // namespace luff::rules

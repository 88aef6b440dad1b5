#pragma once
#include <cstdint>
#include <set>
#include <string>

#include "rules/facts/distinct_rows.h"
#include "rules/facts/evaluations.h"
#include "rules/kit/kept_rule.h"

namespace luff::rules {

/// Whether each of the newest `window` points of a curve lies above its best point by at least `rise` of the
/// best and by at least `of_start` of the first training losses.
[[nodiscard]] bool StandsAboveBest(const ValidationCurve& curve, std::int64_t window, double rise,
                                   double of_start);

/// **Thread-compatible.** Base of rules that judge the curve of each loss after an evaluation. A finding is
/// open from when Holds is true for the curve until neither it nor Persists is. Silent about a training of a
/// handful of rows, unless the rule speaks of these: it shows whether a model can learn them at all, and
/// nobody expects more of it.
class CurveRule : public KeptRule {
 public:
  /// Both strings must outlive the rule.
  CurveRule(const char* name, const char* cause) noexcept : name_(name), cause_(cause) {}

  void OnStep(const StepView& view, Sink& sink) final;
  void OnEnd(const query::Trial& trial, Sink& sink) final;
  void VisitFields(Fields& io) final;

 protected:
  [[nodiscard]] virtual bool Holds(const ValidationCurve& curve) const = 0;
  /// Whether an open finding stays as it is though Holds is no longer true.
  [[nodiscard]] virtual bool Persists(const ValidationCurve& curve) const {
    static_cast<void>(curve);
    return false;
  }
  [[nodiscard]] virtual bool SpeaksOfAHandful() const { return false; }
  /// Adds texts and evidence. Rule, cause, tensor, steps and series are already filled in.
  virtual void Describe(const ValidationCurve& curve, Finding* finding) const = 0;
  [[nodiscard]] const Evaluations& evaluations() const noexcept { return evaluations_; }

 private:
  void Judge(const query::Trial& trial, Sink& sink);

  /// Rows of a training that is a trial of the model.
  static constexpr std::int64_t kHandful = 16;

  const char *name_, *cause_;
  Evaluations evaluations_;
  DistinctRows rows_;        // of the training, as far as it matters how many there are
  std::int64_t unseen_ = 0;  // likewise, of batches of which the first rows are kept
  std::set<std::string> open_;
};

}  // namespace luff::rules

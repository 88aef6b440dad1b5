#pragma once
#include <set>
#include <string>

#include "rules/facts/evaluations.h"
#include "rules/kit/kept_rule.h"

namespace luff::rules {

/// The newest `window` points of a curve lie above its best by `rise` of it and by `of_start` of the first
/// training losses.
[[nodiscard]] bool StandsAboveBest(const ValidationCurve& curve, std::int64_t window, double rise,
                                   double of_start);

/// **Thread-compatible.** A rule that judges the curve of each loss after an evaluation: it holds of a curve,
/// or it does not.
class CurveRule : public KeptRule {
 public:
  /// Both outlive the rule.
  CurveRule(const char* name, const char* cause) noexcept : name_(name), cause_(cause) {}

  void OnStep(const StepView& view, Sink& sink) final;
  void OnEnd(const query::Trial& trial, Sink& sink) final;
  void VisitFields(Fields& io) final;

 protected:
  [[nodiscard]] virtual bool Holds(const ValidationCurve& curve) const = 0;
  /// Says what holds: rule, tensor, steps and picture are filled in.
  virtual void Describe(const ValidationCurve& curve, Finding* finding) const = 0;
  [[nodiscard]] const Evaluations& evaluations() const noexcept { return evaluations_; }

 private:
  void Judge(const query::Trial& trial, Sink& sink);

  const char *name_, *cause_;
  Evaluations evaluations_;
  std::set<std::string> open_;
};

}  // namespace luff::rules

#include "rules/facts/curve_rule.h"

#include <algorithm>

#include "rules/kit/select.h"

namespace luff::rules {

bool StandsAboveBest(const ValidationCurve& curve, std::int64_t window, double rise, double of_start) {
  if (static_cast<std::int64_t>(curve.recent().size()) < window) return false;
  const double best = curve.best().validation;
  return std::all_of(curve.recent().end() - window, curve.recent().end(), [&](const EvaluationPoint& point) {
    return point.validation >= (1 + rise) * best && point.validation - best >= of_start * curve.start();
  });
}

void CurveRule::OnStep(const StepView& view, Sink& sink) {
  if (view.rows.info.mode == query::Mode::kTrain && !view.rows.info.superseded &&
      rows_.count() + unseen_ <= kHandful) {
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr || sample->shape.size() < 2) continue;
      rows_.Add(*sample);
      if (!sample->whole()) unseen_ += kHandful;  // of many rows the first are kept
    }
  }
  if (evaluations_.OnStep(view)) Judge(view.trial, sink);
}

void CurveRule::OnEnd(const query::Trial& trial, Sink& sink) {
  if (evaluations_.OnEnd()) Judge(trial, sink);
}

void CurveRule::VisitFields(Fields& io) {
  io("evaluations", evaluations_);
  io("rows", rows_);
  io("unseen", unseen_);
  io("open", open_);
}

void CurveRule::Judge(const query::Trial& trial, Sink& sink) {
  const bool handful = rows_.count() > 0 && rows_.count() + unseen_ <= kHandful;
  if (evaluations_.takes_turns() || (handful && !SpeaksOfAHandful())) return;
  for (const auto& [name, curve] : evaluations_.curves()) {
    if (!evaluations_.IsNew(curve) || curve.unfit()) continue;
    const Anchor& at = curve.recent().back().at;
    if (curve.answers_hold() || !Holds(curve)) {
      if (open_.contains(name) && Persists(curve)) continue;
      if (open_.erase(name) > 0) sink.Heal(cause_, name, at.mode_step);
      continue;
    }
    open_.insert(name);
    Finding finding = FindingAt(name_, cause_, trial, format::kNoId, 0, at.Info());
    finding.tensor = name;
    finding.since_step = curve.best().at.mode_step;
    finding.series = curve.Picture();
    Describe(curve, &finding);
    sink.Report(std::move(finding));
  }
}

}  // namespace luff::rules

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/loss_tracker.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// ClipSaturated: docs/rules/clip_saturated.md.
namespace luff::rules::clip_saturated {
namespace {

constexpr const char* kName = "ClipSaturated";
constexpr const char* kCause = "always";
constexpr const char* kNorm = "clip/norm";

struct Limits {
  double factor;
  std::int64_t steps;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::factor, "factor", "50", "norm of the gradients over the limit (Luff)", Above(0)},
    {&Limits::steps, "steps", "64", "clipped steps in a row (Luff)", AtLeast(1)},
};

// Every one of the last `steps` clipped gradients was more than `factor` times too large, and no loss has
// improved.
class ClipSaturated final : public KeptRule {
 public:
  explicit ClipSaturated(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    tracker_.OnStep(view);
    const query::Trial::ScalarEntry* norm = nullptr;
    for (const auto& entry : view.rows.scalars) {
      const std::string& name = view.trial.tensor(entry.tensor).name;
      if (name == "clip/limit") limit_ = entry.value;
      if (name == kNorm && norm == nullptr) norm = &entry;
    }
    if (norm == nullptr || !std::isfinite(norm->value) || !(limit_ > 0)) return;
    const double factor = norm->value / limit_;
    if (!(factor > limits_.factor)) {
      row_ = 0;
      if (open_) sink.Heal(kCause, kNorm, info.mode_step);
      open_ = false;
      return;
    }
    if (row_ == 0) since_ = info.mode_step;
    least_ = row_ == 0 ? factor : std::min(least_, factor);
    ++row_;
    if (row_ < limits_.steps || !tracker_.EnoughEvidence(limits_.steps) || tracker_.AnyImproved(0.02)) return;
    open_ = true;
    Finding finding = FindingAt(kName, kCause, view, *norm);
    finding.since_step = since_;
    finding.what =
        fmt::format("clipping divides every gradient by {:.2g} and more, {} times in a row", least_, row_);
    finding.why =
        "the limit decides the length of each step, not the gradient: with plain SGD the learning rate is in "
        "effect so many times smaller, and the loss does not fall";
    finding.remedy =
        "raise the limit to about the usual norm (see the series clip/norm), or find out why gradients are "
        "so large";
    finding.causes = {"limit far too small", "a loss that is summed instead of averaged",
                      "inputs or targets that are not normalised"};
    finding.evidence = {{"smallest_factor", least_}, {"norm", norm->value}, {"limit", limit_}};
    finding.threshold =
        fmt::format("norm above {:g} times the limit in {} clipped steps in a row, and no better loss (Luff)",
                    limits_.factor, limits_.steps);
    sink.Report(std::move(finding));
  }

  void VisitFields(Fields& io) override {
    io("losses", tracker_);
    io("limit", limit_);
    io("row", row_);
    io("since", since_);
    io("least", least_);
    io("open", open_);
  }

 private:
  const Limits limits_;
  LossTracker tracker_;
  double limit_ = 0, least_ = 0;
  std::int64_t row_ = 0, since_ = 0;
  bool open_ = false;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<ClipSaturated>(kName, kParams);  // settings are always recorded
  spec.summary = "gradient clipping cuts every step by a large factor, and nothing is learnt";
  return spec;
}

}  // namespace luff::rules::clip_saturated

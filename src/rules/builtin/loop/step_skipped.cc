#include <map>
#include <string>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// StepSkipped: docs/rules/step_skipped.md.
namespace luff::rules {
namespace {

using format::EventKind;
using format::Role;
constexpr const char* kName = "StepSkipped";
constexpr std::size_t kMaxWorkers = 4096;

struct Limits {
  std::int64_t updates;
};
constexpr Param<Limits> kParams[] = {{&Limits::updates, "updates", "24",
                                      "updates left out in a row; a loss scale that adapts needs fewer",
                                      AtLeast(2)}};

// Gradients were made and cleared, and no optimizer has stepped in between: the update was left out. What is
// accumulated is not cleared before an update. A loss scaler that adapts leaves out a few and then steps.
class StepSkipped final : public KeptRule {
 public:
  explicit StepSkipped(const Limits& limits) : updates_(limits.updates) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    // A closure makes and clears gradients many times in one update; its gradients are recorded.
    const bool used = !view.index.summaries(Role::kGradient).empty();
    for (const query::EventAt& event : view.rows.events) {
      if (workers_.size() >= kMaxWorkers && !workers_.contains(event.worker)) continue;
      State& state = workers_[event.worker];
      switch (static_cast<EventKind>(event.row.kind)) {
        case EventKind::kOptimizerStep:
          state.lost = 0;
          state.made = false;
          ++state.updates;
          if (state.open) sink.Heal("skipped", "", info.mode_step);
          state.open = false;
          break;
        case EventKind::kBackward: state.made = !used; break;
        case EventKind::kZeroGrad:
          // A model's zero_grad in the middle of a run: gradients may be made to be looked at.
          if (!state.made || (event.row.subject == format::kNoId && state.updates > 0)) break;
          Lost(state, info, false);
          break;
        case EventKind::kStepSkipped: Lost(state, info, true); break;
        default: break;
      }
      if (state.lost >= updates_) Tell(view, event.worker, state, sink);
    }
  }

  void Keep(Fields& io) override { io("workers", workers_, kMaxWorkers); }

 private:
  struct State {
    bool made = false;  // gradients that no update has used yet
    bool open = false;
    bool by_scaler = false;  // a scaler said so
    std::int64_t lost = 0;   // updates left out in a row
    std::int64_t since = -1;
    std::int64_t updates = 0;
    void Keep(Fields& io) {
      io("made", made);
      io("open", open);
      io("by_scaler", by_scaler);
      io("lost", lost);
      io("since", since);
      io("updates", updates);
    }
  };

  static void Lost(State& state, const query::StepInfo& info, bool by_scaler) {
    if (state.lost++ == 0) state.since = info.mode_step;
    state.by_scaler = by_scaler;
    state.made = false;
  }

  void Tell(const StepView& view, std::uint32_t worker, State& state, Sink& sink) const {
    if (!state.open) {
      const ModelFacts& facts = view.memo.Facts(view.trial);
      for (const OptimizerFacts& optimizer : facts.optimizers()) {
        if (optimizer.type == "LBFGS") return;  // one update clears and makes gradients many times
      }
    }
    state.open = true;
    Finding finding = FindingAt(kName, "skipped", view, TensorAt{format::kNoId, worker});
    finding.severity = Severity::kStop;
    finding.since_step = state.since;
    finding.what = fmt::format("{} updates in a row were left out{}", state.lost,
                               state.updates == 0 ? "; none was ever made" : "");
    finding.why =
        state.by_scaler
            ? "the loss scaler found gradients that are not finite each time, so the model stands still"
            : "gradients were made and cleared each time and no optimizer stepped in between, so the "
              "model stands still";
    finding.remedy =
        "let the loss scale adapt: it must fall when gradients overflow. Without a scaler, call "
        "optimizer.step()";
    finding.causes = {"a fixed loss scale at which gradients overflow",
                      "gradients that are not finite anyway",
                      "optimizer.step() is missing, or its condition never holds"};
    finding.evidence = {{"left_out", state.lost}, {"updates_before", state.updates}};
    finding.threshold =
        fmt::format("{} in a row; a scale that adapts has been halved as often by then (Luff)", updates_);
    sink.Report(std::move(finding));
  }

  const std::int64_t updates_;
  std::map<std::uint32_t, State> workers_;
};

}  // namespace

RuleSpec StepSkippedSpec() {
  RuleSpec spec = SpecOf<StepSkipped>(kName, kParams);
  spec.summary = "gradients are made and thrown away: the update is always left out";
  return spec;
}

}  // namespace luff::rules

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/format.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// StepSkipped: docs/rules/step_skipped.md.
namespace luff::rules::step_skipped {
namespace {

using format::EventKind;
using format::Role;
constexpr const char* kName = "StepSkipped";
constexpr std::size_t kMaxWorkers = 4096, kMaxOptimizers = 1024;

struct Limits {
  std::int64_t updates, empty;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::updates, "updates", "24", "updates left out in a row; a loss scale that adapts needs fewer",
     AtLeast(2)},
    {&Limits::empty, "empty", "8", "updates in a row without a gradient (Luff)", AtLeast(2)},
};

// An update was skipped if gradients were computed and cleared with no optimizer step in between. Accumulated
// gradients are not cleared before an update. An adaptive loss scaler skips a few updates and then steps. An
// optimizer that steps after its gradients were cleared, with no backward pass in between, has none to use,
// which is as good as skipping. Gradients that a user sets by hand are recorded.
class StepSkipped final : public KeptRule {
 public:
  explicit StepSkipped(const Limits& limits) : updates_(limits.updates), empty_(limits.empty) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    // A closure computes and clears gradients many times in one update; its gradients are recorded.
    const auto gradients = view.index.summaries(Role::kGradient);
    const bool used = !gradients.empty();
    const bool nothing = std::all_of(gradients.begin(), gradients.end(), [](const auto& one) {
      return one.entry.summary.zero_count == one.entry.summary.count;
    });
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
          Used(view, event, nothing, state, sink);
          break;
        case EventKind::kBackward:
          state.made = !used;
          state.cleared.clear();
          break;
        case EventKind::kZeroGrad:
          if (state.cleared.size() < kMaxOptimizers) state.cleared.insert(event.row.subject);
          // model.zero_grad() in the middle of a run: gradients may be computed only to be inspected.
          if (!state.made || (event.row.subject == format::kNoId && state.updates > 0)) break;
          Lost(state, info, false);
          break;
        case EventKind::kStepSkipped: Lost(state, info, true); break;
        default: break;
      }
      if (state.lost >= updates_) Tell(view, event.worker, state, sink);
    }
  }

  void VisitFields(Fields& io) override { io("workers", workers_, kMaxWorkers); }

 private:
  struct State {
    bool made = false;  // there are gradients that no update has used yet
    bool open = false;
    bool by_scaler = false;  // a loss scaler reported the newest skip
    std::int64_t lost = 0;   // skipped updates in a row
    std::int64_t since = -1;
    std::int64_t updates = 0;
    std::set<std::uint32_t> cleared;  // optimizers whose gradients were cleared since the last backward pass
    std::int64_t empty = 0;           // updates in a row without a gradient
    bool open_empty = false;
    void VisitFields(Fields& io) {
      io("cleared", cleared, kMaxOptimizers);
      io("empty", empty);
      io("open_empty", open_empty);
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

  // Called when an optimizer has stepped. `nothing`: no recorded gradient of the step has a value other than
  // zero.
  void Used(const StepView& view, const query::EventAt& event, bool nothing, State& state, Sink& sink) const {
    if (view.index.summaries(Role::kWeight).empty()) return;  // then gradients are not recorded either
    const bool cleared = state.cleared.contains(event.row.subject) || state.cleared.contains(format::kNoId);
    if (!nothing || !cleared) {
      state.empty = 0;
      if (std::exchange(state.open_empty, false)) sink.Heal("empty", "", view.rows.info.mode_step);
      return;
    }
    if (++state.empty < empty_) return;
    state.open_empty = true;
    Finding finding = FindingAt(kName, "empty", view, TensorAt{format::kNoId, event.worker});
    finding.severity = Severity::kStop;
    finding.since_step = std::max<std::int64_t>(view.rows.info.mode_step - state.empty + 1, 0);
    finding.what = fmt::format("{} updates in a row had no gradient to use", state.empty);
    finding.why =
        "the gradients are cleared after the backward pass and before the optimizer steps, so the model "
        "stands "
        "still";
    finding.remedy =
        "call optimizer.zero_grad() before loss.backward() and optimizer.step() after it, with nothing that "
        "clears gradients in between";
    finding.causes = {"zero_grad() stands between backward() and optimizer.step()",
                      "optimizer.step() is called before loss.backward()"};
    finding.evidence = {{"updates", state.empty}};
    finding.threshold = fmt::format("{} in a row (Luff)", empty_);
    sink.Report(std::move(finding));
  }

  static bool HasClosures(const StepView& view) {  // clears and computes gradients many times per update
    const auto& optimizers = view.memo.Facts(view).optimizers();
    return std::any_of(optimizers.begin(), optimizers.end(),
                       [](const OptimizerFacts& one) { return one.type == "LBFGS"; });
  }

  void Tell(const StepView& view, std::uint32_t worker, State& state, Sink& sink) const {
    if (!state.open && HasClosures(view)) return;
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

  const std::int64_t updates_, empty_;
  std::map<std::uint32_t, State> workers_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<StepSkipped>(kName, kParams);
  spec.version = 3;  // 3: parameter "empty"
  spec.summary = "gradients are made and thrown away: the update is always left out";
  return spec;
}

}  // namespace luff::rules::step_skipped

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/format.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// GradientNotCleared: docs/rules/gradient_not_cleared.md.
namespace luff::rules::gradient_not_cleared {
namespace {

using format::EventKind;
constexpr const char* kName = "GradientNotCleared";
constexpr std::size_t kMaxOptimizers = 1024;

// An update is stained if it uses gradients that the update before has already used and that a backward pass
// has been added to. The hook looks at each of the first kAlways updates, then at every kEvery-th.
constexpr std::int64_t kAlways = 64, kEvery = 16;
// A zero_grad() that is called once an epoch clears one update and mends nothing, so a finding heals after as
// many clean updates in a row as its longest row of stained ones has had, or as many as kHeals; where the
// hook looks at some only, three that it has looked at.
constexpr std::int64_t kHeals = 1000, kLooks = 4 * kEvery;

struct Limits {
  std::int64_t updates;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::updates, "updates", "3", "updates in a row that use gradients of the update before",
     AtLeast(1)},
};

class GradientNotCleared final : public KeptRule {
 public:
  explicit GradientNotCleared(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    for (const query::EventAt& event : view.rows.events) {
      const auto kind = static_cast<EventKind>(event.row.kind);
      if (kind == EventKind::kGradientKept && event.row.argument > 0) {
        if (State* state = StateOf(event)) state->kept = true;
      } else if (kind == EventKind::kOptimizerStep) {
        if (State* state = StateOf(event)) Update(view, event, info, *state, sink);
      }
    }
  }

  void VisitFields(Fields& io) override { io("optimizers", states_, kMaxOptimizers); }

 private:
  struct State {
    bool kept = false, open = false;
    std::int64_t stained = 0;                      // stained updates in a row
    std::int64_t first = 0;                        // number of the first of them
    std::int64_t longest = 0;                      // updates in the longest row since the finding was made
    std::int64_t since = -1;                       // TRAIN step at which the trouble began
    std::int64_t updates = 0, last = -1;           // number of all updates, and of the last stained one
    std::int64_t first_step = -1, last_step = -1;  // TRAIN steps of the first and the newest update
    std::uint32_t as = format::kNoId;              // number of the optimizer that the finding's cause names
    void VisitFields(Fields& io) {
      io("kept", kept);
      io("stained", stained);
      io("first", first);
      io("longest", longest);
      io("since", since);
      io("open", open);
      io("updates", updates);
      io("last", last);
      io("first_step", first_step);
      io("last_step", last_step);
      io("as", as);
    }
  };

  State* StateOf(const query::EventAt& event) {
    if (event.row.subject == format::kNoId) return nullptr;
    const std::pair<std::uint32_t, std::uint32_t> key{event.worker, event.row.subject};
    const auto it = states_.find(key);
    if (it != states_.end()) return &it->second;
    return states_.size() < kMaxOptimizers ? &states_[key] : nullptr;
  }

  static std::string CauseOf(const State& state) { return fmt::format("kept_{}", state.as); }

  // Chooses the optimizer that a finding names. A loop that keeps making a new optimizer has one fault, so an
  // optimizer that started after the last update of one with an open finding takes over its number.
  void Name(const query::EventAt& event, State& state) const {
    state.as = event.row.subject;
    for (const auto& [key, other] : states_) {
      if (key.first != event.worker || !other.open || other.last_step >= state.first_step) continue;
      state.as = other.as;
      state.since = other.since;
      return;
    }
  }

  void Update(const StepView& view, const query::EventAt& event, const query::StepInfo& info, State& state,
              Sink& sink) {
    const std::int64_t number = ++state.updates;
    if (number == 1) state.first_step = info.mode_step;
    state.last_step = info.mode_step;
    if (!std::exchange(state.kept, false)) {
      if (state.last >= 0 && number - state.last <= (number <= kAlways ? 0 : kEvery))
        return;  // the hook did not look at this update
      state.stained = 0;
      const std::int64_t clean = std::max(std::min(state.longest, kHeals), number <= kAlways ? 0 : kLooks);
      if (!state.open || number - state.last < clean) return;
      state.open = false;
      state.longest = 0;
      sink.Heal(CauseOf(state), "", info.mode_step);
      return;
    }
    state.last = number;
    if (state.stained++ == 0) {
      state.first = number;
      if (!state.open) state.since = info.mode_step;
    }
    state.longest = std::max(state.longest, number - state.first + 1);
    if (state.stained < limits_.updates) return;
    if (!state.open) Name(event, state);
    state.open = true;
    Finding finding = FindingAt(kName, CauseOf(state).c_str(), view, TensorAt{format::kNoId, event.worker});
    finding.severity = Severity::kStop;
    finding.since_step = state.since;
    finding.what =
        fmt::format("gradients are not cleared between updates, {} updates in a row", state.stained);
    finding.why =
        "each backward pass adds to the gradients that the last update has used already, so every update "
        "repeats all earlier ones";
    finding.remedy = "call optimizer.zero_grad() once for each update, before loss.backward()";
    finding.causes = {"optimizer.zero_grad() is missing",
                      "zero_grad() of another optimizer or model is called",
                      "zero_grad() is called once an epoch"};
    finding.evidence = {{"updates", state.stained}};
    finding.threshold = fmt::format("{} updates in a row (Luff)", limits_.updates);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, State> states_;  // by worker and optimizer
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<GradientNotCleared>(kName, kParams);
  spec.version = 3;
  spec.summary = "gradients of earlier updates that are added up and used again";
  return spec;
}

}  // namespace luff::rules::gradient_not_cleared

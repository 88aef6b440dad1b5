#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/json_state.h"
#include "rules/select.h"

/// GradientNotCleared: docs/rules/gradient_not_cleared.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
using format::EventKind;
constexpr const char* kName = "GradientNotCleared";
constexpr const char* kPage = "docs/rules/gradient_not_cleared.md";
constexpr std::size_t kMaxOptimizers = 1024;

// An update is stained when it uses gradients that the update before has used already and a backward pass has
// been added to. The hook looks at each of the first updates, then at every 16th.
constexpr std::int64_t kAlways = 64, kEvery = 16;

class GradientNotCleared final : public Rule {
 public:
  explicit GradientNotCleared(std::int64_t updates) : updates_(updates) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    for (const query::EventAt& event : view.rows.events) {
      const auto kind = static_cast<EventKind>(event.row.kind);
      if (kind == EventKind::kGradientKept && event.row.argument > 0) {
        if (State* state = Of(event)) state->kept = true;
      } else if (kind == EventKind::kOptimizerStep) {
        if (State* state = Of(event)) Update(view, event, info, *state, sink);
      }
    }
  }

  [[nodiscard]] std::string SaveState() const override {
    Json json = Json::array();
    for (const auto& [key, s] : states_)
      json.push_back({key.first, key.second, s.kept, s.stained, s.since, s.open, s.updates, s.last});
    return JsonText(json);
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      for (const Json& one : json) {
        State& state = states_[{one.at(0).get<std::uint32_t>(), one.at(1).get<std::uint32_t>()}];
        state.kept = one.at(2);
        state.stained = one.at(3);
        state.since = one.at(4);
        state.open = one.at(5);
        state.updates = one.at(6);
        state.last = one.at(7);
      }
    });
  }

 private:
  struct State {
    bool kept = false, open = false;
    std::int64_t stained = 0;             // updates in a row
    std::int64_t since = -1;              // TRAIN step of the first of them
    std::int64_t updates = 0, last = -1;  // of all, and of the last stained one
  };

  State* Of(const query::EventAt& event) {
    if (event.row.subject == format::kNoId) return nullptr;
    const std::pair<std::uint32_t, std::uint32_t> key{event.worker, event.row.subject};
    const auto it = states_.find(key);
    if (it != states_.end()) return &it->second;
    return states_.size() < kMaxOptimizers ? &states_[key] : nullptr;
  }

  void Update(const StepView& view, const query::EventAt& event, const query::StepInfo& info, State& state,
              Sink& sink) {
    const std::string cause = fmt::format("kept_{}", event.row.subject);
    const std::int64_t number = ++state.updates;
    if (!std::exchange(state.kept, false)) {
      if (state.last >= 0 && number - state.last <= (number <= kAlways ? 0 : kEvery))
        return;  // not looked at
      state.stained = 0;
      if (std::exchange(state.open, false)) sink.Heal(cause, "", info.mode_step);
      return;
    }
    state.last = number;
    if (state.stained++ == 0) state.since = info.mode_step;
    if (state.stained < updates_) return;
    state.open = true;
    Finding finding = FindingAt(kName, kPage, cause.c_str(), view.trial, format::kNoId, event.worker, info);
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
    finding.evidence = {{"updates", static_cast<double>(state.stained)}};
    finding.threshold = fmt::format("{} updates in a row (Luff)", updates_);
    sink.Report(std::move(finding));
  }

  const std::int64_t updates_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, State> states_;  // by worker and optimizer
};

}  // namespace

RuleSpec GradientNotClearedSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.version = 1;
  spec.page = kPage;
  spec.summary = "gradients of earlier updates that are added up and used again";
  spec.parameters = {{"updates", "3", "3", "updates in a row that use gradients of the update before"}};
  spec.needs = [](const Parameters&) { return std::vector<Need>{}; };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    LUFF_ASSIGN_OR_RETURN(const std::int64_t updates, ParseInt(TextOf(parameters, "updates")));
    if (updates < 1) return InvalidArgument("'updates' must be at least 1");
    return std::unique_ptr<Rule>(new GradientNotCleared(updates));
  };
  return spec;
}

}  // namespace luff::rules

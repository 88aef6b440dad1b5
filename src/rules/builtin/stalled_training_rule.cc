#include <algorithm>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/json_state.h"
#include "rules/select.h"

/// StalledTrainingRule: docs/rules/stalled_training_rule.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
constexpr const char* kName = "StalledTrainingRule";
constexpr const char* kPage = "docs/rules/stalled_training_rule.md";
constexpr const char* kCause = "stalled";

// After a step, `threshold` seconds passed without another: told by the wall time of the next step, or by a
// heartbeat that came so much later. Whichever shows it first, the finding is the same: it names the
// threshold, not the time at which somebody looked.
class StalledTrainingRule final : public Rule {
 public:
  explicit StalledTrainingRule(double threshold) : threshold_(threshold) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    trial_ = &view.trial;
    if (!info.superseded && info.wall_unix_ns > 0) {
      const std::size_t workers = view.trial.workers().size();
      const bool resumed = workers != workers_;  // the time between two attempts is no standstill
      if (last_wall_ > 0 && !resumed && Passed(info.wall_unix_ns)) Tell(sink);
      if (told_) sink.Heal(kCause, "", info.mode_step);
      told_ = false;
      last_wall_ = info.wall_unix_ns;
      last_step_ = info.mode_step;
      last_global_ = info.global_step;
      last_update_ = info.update;
      last_mode_ = query::ModeName(info.mode);
      workers_ = workers;
    }
  }
  void OnPause(Sink& sink) override {
    if (trial_ != nullptr) Look(*trial_, sink);
  }
  void OnEnd(const query::Trial& trial, Sink& sink) override { Look(trial, sink); }

  [[nodiscard]] std::string SaveState() const override {
    // In microseconds: nanoseconds leave the range of a state, and the rule would begin anew.
    return JsonText(
        Json{last_wall_ / 1000, last_step_, last_global_, last_update_, last_mode_, workers_, told_});
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      last_wall_ = json.at(0).get<std::int64_t>() * 1000;
      last_step_ = json.at(1);
      last_global_ = json.at(2);
      last_update_ = json.at(3);
      last_mode_ = json.at(4).get<std::string>();
      workers_ = json.at(5);
      told_ = json.at(6);
    });
  }

 private:
  [[nodiscard]] bool Passed(std::int64_t wall_ns) const {
    return static_cast<double>(wall_ns - last_wall_) > threshold_ * 1e9;
  }

  void Look(const query::Trial& trial, Sink& sink) {
    if (last_wall_ <= 0 || told_) return;
    std::int64_t heartbeat = 0;
    for (const query::WorkerInfo& worker : trial.workers())
      heartbeat = std::max(heartbeat, worker.heartbeat_unix_ns);
    if (heartbeat > 0 && Passed(heartbeat)) Tell(sink);
  }

  void Tell(Sink& sink) {
    if (told_) return;
    told_ = true;
    Finding finding;
    finding.page = kPage;
    finding.cause = kCause;
    finding.mode = last_mode_;
    finding.step = finding.since_step = finding.last_step = last_step_;
    finding.global_step = last_global_;
    finding.update = last_update_;
    finding.what =
        fmt::format("no step came for {:g} s after {} step {}", threshold_, last_mode_, last_step_);
    finding.why = "the process was alive and did nothing that counts as a step";
    finding.remedy =
        "look at where it hangs (data loading, a collective operation that waits for a lost worker, a lock)";
    finding.causes = {"data loader that hangs", "a worker that waits for another",
                      "a long task between two steps"};
    finding.evidence = {{"threshold_seconds", threshold_}};
    finding.threshold = fmt::format("{:g} s between two steps (original)", threshold_);
    sink.Report(std::move(finding));
  }

  const double threshold_;
  const query::Trial* trial_ = nullptr;  // of the evaluator, which has one trial and outlives no call
  std::int64_t last_wall_ = 0, last_step_ = 0, last_global_ = 0, last_update_ = 0;
  std::string last_mode_ = "TRAIN";
  std::size_t workers_ = 0;
  bool told_ = false;
};

}  // namespace

RuleSpec StalledTrainingRuleSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.aliases = {"StalledTraining"};
  spec.version = 2;
  spec.page = kPage;
  spec.summary = "no step for half an hour while the process is alive";
  spec.parameters = {
      {"threshold", "1800", "1800", "seconds without a step"},
      {"stop_training_on_fire", "False", "False",
       "accepted and without effect: what is done about a finding is decided by actions (original)"},
      {"training_job_name_prefix", "None", "None", "accepted and without effect (original)"},
  };
  spec.needs = [](const Parameters&) -> std::vector<Need> { return {}; };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    LUFF_ASSIGN_OR_RETURN(const double threshold, ParseDouble(TextOf(parameters, "threshold")));
    LUFF_RETURN_IF_ERROR(ParseBool(TextOf(parameters, "stop_training_on_fire")).status());
    if (!(threshold > 0)) return InvalidArgument("'threshold' must be above 0");
    return std::unique_ptr<Rule>(new StalledTrainingRule(threshold));
  };
  return spec;
}

}  // namespace luff::rules

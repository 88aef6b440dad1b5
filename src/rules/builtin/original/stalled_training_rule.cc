#include <algorithm>
#include <string>
#include <vector>

#include "base/format.h"
#include "luff/profile/stacks.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// StalledTrainingRule: docs/rules/stalled_training_rule.md.
namespace luff::rules::stalled_training_rule {
namespace {

constexpr const char* kName = "StalledTrainingRule";
constexpr const char* kCause = "stalled";

struct Limits {
  double threshold;
  bool stop;           // no effect
  std::string prefix;  // no effect
};
constexpr Param<Limits> kParams[] = {
    {&Limits::threshold, "threshold", "1800", "seconds without a step", Above(0)},
    {&Limits::stop, "stop_training_on_fire", "False",
     "accepted and without effect: what is done about a finding is decided by actions (original)"},
    {&Limits::prefix, "training_job_name_prefix", "None", "accepted and without effect (original)"},
};

// `threshold` seconds passed after a step without another one, as shown by the wall time of the next step, or
// by a heartbeat that came that much later. The finding is the same in both cases: it names the threshold,
// not the time of the check.
class StalledTrainingRule final : public KeptRule {
 public:
  explicit StalledTrainingRule(const Limits& limits) : threshold_(limits.threshold) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    trial_ = &view.trial;
    if (!info.superseded && info.wall_unix_ns > 0) {
      const std::size_t workers = view.trial.workers().size();
      const bool resumed = workers != workers_;  // the time between two attempts is no stall
      if (last_wall_ > 0 && !resumed && Passed(info.wall_unix_ns)) Tell(view.trial, sink);
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

  void VisitFields(Fields& io) override {
    std::int64_t wall_us = last_wall_ / 1000;  // nanoseconds exceed the range of a saved number
    io("last_wall_us", wall_us);
    io("last_step", last_step_);
    io("last_global", last_global_);
    io("last_update", last_update_);
    io("last_mode", last_mode_);
    io("workers", workers_);
    io("told", told_);
    if (io.loading()) last_wall_ = wall_us * 1000;
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
    if (heartbeat > 0 && Passed(heartbeat)) Tell(trial, sink);
  }

  void Tell(const query::Trial& trial, Sink& sink) {
    if (told_) return;
    told_ = true;
    Finding finding;
    finding.page = PageOf(kName);
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
    SayWhere(trial, &finding);
    finding.evidence = {{"threshold_seconds", threshold_}};
    finding.threshold = fmt::format("{:g} s between two steps (original)", threshold_);
    sink.Report(std::move(finding));
  }

  /// Names what the training waits for, where it was looked at during this stand.
  void SayWhere(const query::Trial& trial, Finding* finding) const {
    const std::vector<profile::Stall> stalls = profile::StallsOf(trial);
    std::string where;
    int told = 0;
    for (const profile::Stall& stall : stalls) {
      if (stall.after_step != last_global_) continue;
      const std::string stand = profile::StandOf(stall);
      if (stand.empty() || ++told > kMostRanks) continue;
      where += stalls.size() == 1
                   ? "the training stands in " + stand
                   : fmt::format("{}rank {} stands in {}", told == 1 ? "" : "; ", stall.worker, stand);
    }
    if (where.empty()) return;
    finding->why = std::move(where);
    if (const std::string others = profile::CulpritsOf(trial, stalls); !others.empty())
      finding->why += "; " + others;
    finding->remedy = "see why this line does not go on; `luff profile` shows the whole stack";
  }

  static constexpr int kMostRanks = 4;
  const double threshold_;
  const query::Trial* trial_ = nullptr;  // trial of the newest step; an evaluator has only one
  std::int64_t last_wall_ = 0, last_step_ = 0, last_global_ = 0, last_update_ = 0;
  std::string last_mode_ = "TRAIN";
  std::size_t workers_ = 0;
  bool told_ = false;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<StalledTrainingRule>(kName, kParams);
  spec.aliases = {"StalledTraining"};
  spec.version = 2;
  spec.summary = "no step for half an hour while the process is alive";
  return spec;
}

}  // namespace luff::rules::stalled_training_rule

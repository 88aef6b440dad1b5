#include <algorithm>

#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/facts/pause_rule.h"

/// WorkersRestart: docs/rules/workers_restart.md.
namespace luff::rules::workers_restart {
namespace {

constexpr const char* kName = "WorkersRestart";
constexpr double kDearer = 1.5;  // times the cheapest start
constexpr Param<PauseLimits> kParams[] = {ShareParam("0.05"), SecondsParam("5"), TimesParam("3")};

/// Starts of a loader's workers after the first, and the waits for their first batches.
class WorkersRestart final : public PauseRule {
 public:
  explicit WorkersRestart(const PauseLimits& limits) : PauseRule(kName, "start", limits) {}

  void VisitFields(Fields& io) override {
    PauseRule::VisitFields(io);
    io("started", started_);
    io("starts_s", starts_s_);
    io("cheapest_s", cheapest_s_);
  }

 private:
  Pause Of(const query::StepInfo& step, const query::StepPhases& phases) override {
    (void)step;
    const std::int64_t begins = phases.begins[static_cast<std::size_t>(format::Phase::kDataStart)];
    if (begins == 0) return {};
    const bool first = started_ == 0;
    started_ += begins;
    if (first) return {};
    // The longest wait of a worker's batch in the step is for the first one.
    double first_s = 0;
    for (const query::StepPhases::Wait& wait : phases.waits) {
      if (wait.of.worker != format::WaitSubject::kNoWorker && wait.of.ready == 0)
        first_s = std::max(first_s, static_cast<double>(wait.ns) * 1e-9 / std::max(wait.count, 1U));
    }
    // What a start costs beyond the cheapest one is the machine's, as where other jobs hold its cores: a
    // saving can't be counted on there.
    const double start_s = SecondsOf(phases, format::Phase::kDataStart);
    const double all_s = start_s + first_s;
    const double one_s = all_s / static_cast<double>(begins);
    cheapest_s_ = cheapest_s_ < 0 ? one_s : std::min(cheapest_s_, one_s);
    const double counted_s = std::min(all_s, kDearer * cheapest_s_ * static_cast<double>(begins));
    starts_s_ += all_s > 0 ? start_s * counted_s / all_s : 0;
    return {counted_s, begins};
  }
  bool Describe(const query::Trial& trial, const Spent& spent, Finding* finding) override {
    const auto loaders = profile::LoadersOf(trial.Document("loaders"));
    const auto at = std::ranges::find_if(
        loaders, [](const profile::Loader& one) { return one.workers > 0 && !one.persistent; });
    if (at == loaders.end()) return false;
    const std::string type = at->type.empty() ? "the loader" : at->type;
    finding->what = fmt::format("starting the {} worker{} of {} again {}", at->workers,
                                at->workers == 1 ? "" : "s", type, spent.Text());
    finding->why =
        "without persistent_workers, each epoch and each evaluation starts new processes, and waits "
        "for their first batches";
    finding->remedy = fmt::format("pass persistent_workers=True to {}", type);
    finding->causes = {"short epochs", "a dataset that takes long to copy into a worker"};
    finding->saving = {spent.seconds, 0, starts_s_, spent.seconds,
                       fmt::format("starts after the first, {}, and the waits for the first batches",
                                   profile::TimeText(starts_s_))};
    return true;
  }

  std::int64_t started_ = 0;
  double starts_s_ = 0;     // of those after the first
  double cheapest_s_ = -1;  // of them, with the wait
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<WorkersRestart>(kName, kParams);
  spec.version = 2;  // 2: by the cheapest start
  spec.summary = "the workers of a loader are started anew for each epoch";
  return spec;
}

}  // namespace luff::rules::workers_restart

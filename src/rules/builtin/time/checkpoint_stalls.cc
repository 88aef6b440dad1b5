#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/facts/pause_rule.h"

/// CheckpointStalls: docs/rules/checkpoint_stalls.md.
namespace luff::rules::checkpoint_stalls {
namespace {

constexpr const char* kName = "CheckpointStalls";
constexpr Param<PauseLimits> kParams[] = {ShareParam("0.05"), SecondsParam("5"), TimesParam("3")};

class CheckpointStalls final : public PauseRule {
 public:
  explicit CheckpointStalls(const PauseLimits& limits) : PauseRule(kName, "checkpoint", limits) {}

 private:
  /// A step's saves are one: a function that saves may call another.
  Pause Of(const query::StepInfo& step, const query::StepPhases& phases) override {
    (void)step;
    return {SecondsOf(phases, format::Phase::kCheckpoint),
            phases.begins[static_cast<std::size_t>(format::Phase::kCheckpoint)] != 0 ? 1 : 0};
  }
  bool Describe(const query::Trial& trial, const Spent& spent, Finding* finding) override {
    (void)trial;
    const double every = static_cast<double>(spent.steps) / static_cast<double>(spent.times);
    finding->what = fmt::format("saving checkpoints {}, about every {:.0f} steps", spent.Text(), every);
    finding->why = "the training waits until the file is written";
    finding->remedy =
        "save less often; or copy the state and write it in a thread "
        "(torch.distributed.checkpoint.async_save), or to a local disk first";
    finding->causes = {"checkpoints more often than the work between them is worth", "a slow or shared disk"};
    finding->saving = {spent.seconds, 0, spent.seconds / 2, spent.seconds,
                       fmt::format("the time of the saves: {}; half of it where every other one is left out",
                                   profile::TimeText(spent.seconds))};
    return true;
  }
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<CheckpointStalls>(kName, kParams);
  spec.summary = "saving checkpoints takes a share of the training's time";
  return spec;
}

}  // namespace luff::rules::checkpoint_stalls

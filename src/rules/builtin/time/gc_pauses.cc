#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/facts/pause_rule.h"

/// GcPauses: docs/rules/gc_pauses.md.
namespace luff::rules::gc_pauses {
namespace {

constexpr const char* kName = "GcPauses";
constexpr Param<PauseLimits> kParams[] = {ShareParam("0.03"), SecondsParam("5"), TimesParam("3")};

class GcPauses final : public PauseRule {
 public:
  explicit GcPauses(const PauseLimits& limits) : PauseRule(kName, "gc", limits) {}

 private:
  Pause Of(const query::StepInfo& step, const query::StepPhases& phases) override {
    (void)step;
    return {SecondsOf(phases, format::Phase::kGc),
            phases.begins[static_cast<std::size_t>(format::Phase::kGc)]};
  }
  bool Describe(const query::Trial& trial, const Spent& spent, Finding* finding) override {
    (void)trial;
    finding->what = fmt::format("collecting Python's garbage {}", spent.Text());
    finding->why =
        "a full collection looks at every object of the process, and the training waits meanwhile; objects "
        "that "
        "refer to each other in circles make it necessary";
    finding->remedy =
        "call gc.collect() and gc.freeze() once the model and the data are loaded, so that collections leave "
        "them "
        "out; or gc.disable(), and gc.collect() where a pause does no harm";
    finding->causes = {"many objects that live long: a dataset held as Python objects",
                       "gc.collect() in the loop", "garbage in circles, made at each step"};
    finding->saving = {spent.seconds, 0, spent.seconds / 2, spent.seconds,
                       fmt::format("the time of the collections: {}", profile::TimeText(spent.seconds))};
    return true;
  }
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<GcPauses>(kName, kParams);
  spec.summary = "collections of Python's garbage take a share of the training's time";
  return spec;
}

}  // namespace luff::rules::gc_pauses

#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/facts/pause_rule.h"

/// Recompiles: docs/rules/recompiles.md.
namespace luff::rules::recompiles {
namespace {

constexpr const char* kName = "Recompiles";
constexpr std::int64_t kFirst = 50;  // steps in which graphs are compiled anyway
constexpr Param<PauseLimits> kParams[] = {ShareParam("0.03"), SecondsParam("5"), TimesParam("4")};

class Recompiles final : public PauseRule {
 public:
  explicit Recompiles(const PauseLimits& limits) : PauseRule(kName, "compile", limits) {}

 private:
  Pause Of(const query::StepInfo& step, const query::StepPhases& phases) override {
    (void)step;
    if (steps() <= kFirst) return {};
    return {SecondsOf(phases, format::Phase::kCompile),
            phases.begins[static_cast<std::size_t>(format::Phase::kCompile)] != 0 ? 1 : 0};
  }
  bool Describe(const query::Trial& trial, const Spent& spent, Finding* finding) override {
    // Frameworks name their backend in the document, with its version.
    const bool jax = trial.Document("environment").find("\"jax\"") != std::string::npos;
    finding->what = fmt::format("compiling after step {} {}", kFirst, spent.Text());
    finding->why =
        "a compiled step fits the shapes and the Python values that it was compiled for; others are compiled "
        "anew";
    finding->remedy =
        jax ? "pad batches to a few lengths; pass a number that changes as an argument that is traced, not "
              "through static_argnums or a new function; JAX_EXPLAIN_CACHE_MISSES=1 tells the reason of each"
            : "pad batches to a few lengths, or drop_last=True; mark the size that changes: "
              "torch._dynamo.mark_dynamic(x, 0), or torch.compile(dynamic=True); TORCH_LOGS=recompiles tells "
              "the reason of each";
    finding->causes = {"shapes that change from batch to batch",
                       "a Python number that changes: a step count, a rate"};
    finding->saving = {spent.seconds, 0, spent.seconds / 2, spent.seconds,
                       fmt::format("the time of the compilations after step {}: {}", kFirst,
                                   profile::TimeText(spent.seconds))};
    return true;
  }
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<Recompiles>(kName, kParams);
  spec.summary = "graphs are compiled again and again";
  return spec;
}

}  // namespace luff::rules::recompiles

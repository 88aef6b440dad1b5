#include <string>

#include "base/format.h"
#include "luff/profile/input.h"
#include "luff/profile/machine.h"
#include "rules/facts/trace_rule.h"

/// LaunchBound: docs/rules/launch_bound.md.
namespace luff::rules::launch_bound {
namespace {

using profile::DeviceTrace;
constexpr const char* kName = "LaunchBound";
constexpr Param<TraceLimits> kParams[] = {
    TraceShareParam("0.3", "of the time in which the device waits for the next launch (Luff)"),
    TraceFirstParam()};

/// The host launches kernels more slowly than the device works them off.
class LaunchBound final : public TraceRule {
 public:
  explicit LaunchBound(const TraceLimits& limits) : TraceRule(kName, limits) {}

 private:
  static constexpr double kSmall = 20e-6;  // seconds: a launch by PyTorch takes the host 5 to 50 us

  std::optional<TraceClaim> Judge(const DeviceTrace& trace) override {
    if (trace.stacks) return std::nullopt;  // tracing functions makes each launch late
    if (trace.idle_launch_s < share() * trace.span_s || trace.kernel_median_s >= kSmall) return std::nullopt;
    const double step = trace.span_s;
    TraceClaim claim;
    claim.cause = "small_kernels";
    claim.what = fmt::format(
        "the device waits {} for the next launch: {} kernels in the trace, half of them shorter "
        "than {}",
        OfStep(trace.idle_launch_s, trace), trace.kernels, profile::TimeText(trace.kernel_median_s));
    claim.why = "launching a kernel costs the host more than the device needs for it";
    claim.remedy =
        trace.xplane
            ? "larger batches as long as memory lasts; compile more at once: jax.jit around the whole step, "
              "lax.scan over steps, steps_per_execution and jit_compile of Keras"
            : "larger batches as long as memory lasts, torch.compile(mode=\"reduce-overhead\") or CUDA "
              "graphs, and "
              "a fused optimizer";
    claim.causes = {"a small model or a small batch", "many operations on small tensors",
                    "an optimizer that takes each parameter by itself"};
    claim.evidence = {{"idle_s", trace.idle_launch_s},
                      {"span_s", step},
                      {"kernels", trace.kernels},
                      {"median_s", trace.kernel_median_s}};
    claim.threshold = fmt::format(
        "{:g} % of the traced time in gaps of less than 100 us before a late launch, and kernels "
        "of less than 20 us (Luff)",
        100 * share());
    claim.saving_s = trace.idle_launch_s / 2;
    claim.low_s = trace.idle_launch_s / 4;
    claim.high_s = trace.idle_launch_s;
    claim.method = "half of the time in which the device waits for launches";
    return claim;
  }
  [[nodiscard]] bool JudgesXplane() const override { return true; }
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<LaunchBound>(kName, kParams);
  spec.version = 2;  // 2: counts steps at which a device was idle, tells traces apart by their files
  spec.summary = "the host launches small kernels more slowly than the device computes them";
  return spec;
}

}  // namespace luff::rules::launch_bound

#include <algorithm>
#include <string>

#include "base/format.h"
#include "rules/facts/machine_rule.h"

/// GpuThrottled: docs/rules/gpu_throttled.md.
namespace luff::rules::gpu_throttled {
namespace {

constexpr const char* kName = "GpuThrottled";

struct Limits : MachineLimits {
  double share, slower;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::share, "share", "0.1", "of the time in which heat slows the GPU down (Luff)", Between(0, 1)},
    {&Limits::slower, "slower", "0.05", "by which its clock is lower then (Luff)", Between(0, 1)},
    LUFF_MACHINE_PARAMS(Limits),
};

class GpuThrottled final : public MachineRule {
 public:
  explicit GpuThrottled(const Limits& limits) : MachineRule(kName, limits), limits_(limits) {}

 private:
  std::optional<MachineClaim> Judge(const MachineWindow& window) override {
    for (const profile::MachineUse& use : window.machines) {
      if (!window.OwnsGpus(use)) continue;
      for (const profile::GpuUse& gpu : use.gpus) {
        if (!gpu.thermal || *gpu.thermal < limits_.share || gpu.clock <= 0 || gpu.throttled_clock <= 0)
          continue;
        const double loss = 1 - gpu.throttled_clock / gpu.clock;
        if (loss < limits_.slower) continue;
        MachineClaim claim;
        claim.cause = "heat";
        claim.what = fmt::format(
            "heat slows GPU {} of {} down {:.0f} % of the time: its clock is {:.0f} of {:.0f} MHz then",
            gpu.index, use.name, 100 * *gpu.thermal, gpu.throttled_clock * 1e-6, gpu.clock * 1e-6);
        if (gpu.temperature) claim.what += fmt::format(" ({:.0f} C)", *gpu.temperature);
        claim.why = "the driver lowers the clock so that the GPU does not get too hot";
        claim.remedy = "look after its cooling, or move to another node";
        claim.causes = {"fans, filters or the room", "neighbours in the same chassis"};
        claim.evidence = {{"gpu", gpu.index},
                          {"share", *gpu.thermal},
                          {"clock_mhz", gpu.throttled_clock * 1e-6},
                          {"usual_mhz", gpu.clock * 1e-6}};
        claim.threshold = fmt::format("{:g} % of the samples, a clock {:g} % lower (Luff)",
                                      100 * limits_.share, 100 * limits_.slower);
        claim.saving_s = *gpu.thermal * loss * window.wall_s * gpu.utilisation.value_or(1);
        claim.low_s = claim.saving_s / 2;
        claim.high_s = *gpu.thermal * loss * window.wall_s;
        claim.method = "share of the time x loss of clock x share of the time in which a kernel runs";
        return claim;
      }
    }
    return std::nullopt;
  }
  const Limits limits_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<GpuThrottled>(kName, kParams);
  spec.summary = "heat lowers the clock of a GPU";
  return spec;
}

}  // namespace luff::rules::gpu_throttled

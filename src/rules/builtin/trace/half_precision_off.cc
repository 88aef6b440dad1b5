#include <string>

#include "base/format.h"
#include "luff/profile/input.h"
#include "luff/profile/machine.h"
#include "rules/facts/trace_rule.h"

/// HalfPrecisionOff: docs/rules/half_precision_off.md.
namespace luff::rules::half_precision_off {
namespace {

using profile::DeviceTrace;
constexpr const char* kName = "HalfPrecisionOff";
constexpr Param<TraceLimits> kParams[] = {TraceShareParam("0.5", "of the device's busy time (Luff)"),
                                          TraceFirstParam()};

/// Products that are rounded to TF32 already, and nothing in 16 bits.
class HalfPrecisionOff final : public TraceRule {
 public:
  explicit HalfPrecisionOff(const TraceLimits& limits) : TraceRule(kName, limits) {}

 private:
  static constexpr std::int64_t kAmpere = 8;  // first with bfloat16

  std::optional<TraceClaim> Judge(const DeviceTrace& trace) override {
    if (trace.busy_s < trace.span_s / 2) return std::nullopt;  // the host decides how long a step takes
    if (trace.capability < kAmpere || trace.narrow) return std::nullopt;
    // Where most products are full float32, Tf32Off speaks.
    if (trace.tf32_s < share() * trace.busy_s || trace.tf32_s < trace.float32_s) return std::nullopt;
    TraceClaim claim;
    claim.cause = "tf32";
    claim.what = fmt::format(
        "{:.0f} % of the device's time goes into products and convolutions of float32 values that are "
        "rounded "
        "to TF32 (most in {}), and no kernel computes in 16 bits",
        100 * trace.tf32_s / trace.busy_s, trace.tf32_of.substr(0, 80));
    claim.why =
        "tensor cores multiply bfloat16 twice as fast as TF32, which keeps three bits more, and half as many "
        "bytes are read and written";
    claim.remedy =
        "with torch.autocast(\"cuda\", dtype=torch.bfloat16): around the forward pass and the loss; weights "
        "stay "
        "float32, and no GradScaler is needed";
    claim.causes = {"mixed precision is not switched on"};
    claim.evidence = {{"tf32_s", trace.tf32_s}, {"busy_s", trace.busy_s}, {"capability", trace.capability}};
    claim.threshold = fmt::format(
        "{:g} % of the device's busy time, from compute capability 8.0 on, and no kernel in 16 bits (Luff)",
        100 * share());
    claim.saving_s = trace.tf32_s / 2;
    claim.low_s = trace.tf32_s / 4;
    claim.high_s = trace.tf32_s / 2;
    claim.method = "half of these products: bfloat16 has twice the rate of TF32 in NVIDIA's data sheets";
    return claim;
  }
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<HalfPrecisionOff>(kName, kParams);
  spec.summary = "products of float32 values on a device that multiplies bfloat16 twice as fast";
  return spec;
}

}  // namespace luff::rules::half_precision_off

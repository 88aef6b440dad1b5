#include <string>

#include "base/format.h"
#include "luff/profile/input.h"
#include "luff/profile/machine.h"
#include "rules/facts/trace_rule.h"

/// Tf32Off: docs/rules/tf32_off.md.
namespace luff::rules::tf32_off {
namespace {

using profile::DeviceTrace;
constexpr const char* kName = "Tf32Off";
constexpr Param<TraceLimits> kParams[] = {TraceShareParam("0.3", "of the device's busy time (Luff)"),
                                          TraceFirstParam()};

/// Products in float32 on a device whose tensor cores stand still.
class Tf32Off final : public TraceRule {
 public:
  explicit Tf32Off(const TraceLimits& limits) : TraceRule(kName, limits) {}

 private:
  static constexpr std::int64_t kAmpere = 8;  // first with TF32

  std::optional<TraceClaim> Judge(const DeviceTrace& trace) override {
    if (trace.busy_s < trace.span_s / 2) return std::nullopt;  // the host decides how long a step takes
    if (trace.capability < kAmpere || trace.busy_s <= 0 || trace.float32_s < share() * trace.busy_s)
      return std::nullopt;
    TraceClaim claim;
    claim.cause = "float32";
    claim.what = fmt::format(
        "{:.0f} % of the device's time goes into products and convolutions in full float32 (most in "
        "{}), while its tensor cores stand still",
        100 * trace.float32_s / trace.busy_s, trace.float32_of.substr(0, 80));
    claim.why =
        "tensor cores multiply float32 rounded to TF32 several times as fast; PyTorch leaves them out unless "
        "it is told to use them";
    claim.remedy =
        "torch.set_float32_matmul_precision(\"high\") before the first step; torch.autocast with bfloat16 "
        "where "
        "the model allows it";
    claim.causes = {"the default precision of products", "allow_tf32 is switched off"};
    claim.evidence = {
        {"float32_s", trace.float32_s}, {"busy_s", trace.busy_s}, {"capability", trace.capability}};
    claim.threshold =
        fmt::format("{:g} % of the device's busy time, from compute capability 8.0 on (Luff)", 100 * share());
    claim.saving_s = trace.float32_s / 2;
    claim.low_s = trace.float32_s / 4;
    claim.high_s = trace.float32_s * 3 / 4;
    claim.method = "half of these products";
    return claim;
  }
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<Tf32Off>(kName, kParams);
  spec.version = 2;  // 2: counts steps at which a device was idle, tells traces apart by their files
  spec.summary = "products in full float32 leave the tensor cores idle";
  return spec;
}

}  // namespace luff::rules::tf32_off

#include <string>

#include "base/format.h"
#include "luff/profile/input.h"
#include "luff/profile/machine.h"
#include "rules/facts/trace_rule.h"

/// CommunicationBound: docs/rules/communication_bound.md.
namespace luff::rules::communication_bound {
namespace {

using profile::DeviceTrace;
constexpr const char* kName = "CommunicationBound";
constexpr Param<TraceLimits> kParams[] = {
    TraceShareParam("0.2", "of the time in which collectives run alone (Luff)"), TraceFirstParam()};

/// The device waits for other ranks while it computes nothing.
class CommunicationBound final : public TraceRule {
 public:
  explicit CommunicationBound(const TraceLimits& limits) : TraceRule(kName, limits) {}

 private:
  std::optional<TraceClaim> Judge(const DeviceTrace& trace) override {
    if (trace.exposed_s <= 0 || trace.exposed_s < share() * trace.span_s) return std::nullopt;
    TraceClaim claim;
    claim.cause = "exposed";
    claim.what = fmt::format(
        "collectives run {} while the device computes nothing; {:.0f} % of their time is hidden "
        "behind kernels",
        OfStep(trace.exposed_s, trace), 100 * (1 - trace.exposed_s / trace.collective_s));
    claim.why =
        "gradients or parameters are exchanged when nothing is left to compute meanwhile, or another rank is "
        "late";
    claim.remedy =
        "look whether a rank is late first (Straggler); then larger buckets (bucket_cap_mb), a reduction in "
        "bfloat16, gradient accumulation, or fewer and faster links between the ranks";
    claim.causes = {"a slow network between nodes", "small buckets", "another rank that comes late"};
    claim.evidence = {
        {"exposed_s", trace.exposed_s}, {"collective_s", trace.collective_s}, {"span_s", trace.span_s}};
    claim.threshold = fmt::format("{:g} % of the traced time (Luff)", 100 * share());
    claim.saving_s = trace.exposed_s / 2;
    claim.low_s = 0;
    claim.high_s = trace.exposed_s;
    claim.method = "half of the time in which collectives run alone";
    return claim;
  }
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<CommunicationBound>(kName, kParams);
  spec.version = 2;  // 2: counts steps at which a device was idle, tells traces apart by their files
  spec.summary = "the device waits for collectives while it computes nothing";
  return spec;
}

}  // namespace luff::rules::communication_bound

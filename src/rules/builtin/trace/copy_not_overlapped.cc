#include <string>

#include "base/format.h"
#include "luff/profile/input.h"
#include "luff/profile/machine.h"
#include "rules/facts/trace_rule.h"

/// CopyNotOverlapped: docs/rules/copy_not_overlapped.md.
namespace luff::rules::copy_not_overlapped {
namespace {

using profile::DeviceTrace;
constexpr const char* kName = "CopyNotOverlapped";
constexpr Param<TraceLimits> kParams[] = {
    TraceShareParam("0.05", "of the time in which the device only copies (Luff)"), TraceFirstParam()};

/// Copies to the device during which it computes nothing.
class CopyNotOverlapped final : public TraceRule {
 public:
  explicit CopyNotOverlapped(const TraceLimits& limits) : TraceRule(kName, limits) {}

 private:
  std::optional<TraceClaim> Judge(const DeviceTrace& trace) override {
    const DeviceTrace::Copies& copies = trace.pinned;
    if (trace.busy_s < trace.span_s / 2) return std::nullopt;  // the host decides how long a step takes
    if (copies.alone_s < share() * trace.span_s) return std::nullopt;
    TraceClaim claim;
    claim.cause = "same_stream";
    claim.what =
        fmt::format("the device copies {} while it computes nothing: {} from pinned memory in the trace",
                    OfStep(copies.alone_s, trace), profile::BytesText(static_cast<double>(copies.bytes)));
    claim.why = "copies on the stream that computes are done one after the other with its kernels";
    claim.remedy =
        "copy the next batch on a stream of its own while this one is computed (torch.cuda.Stream, "
        "wait_stream, record_stream), or let a prefetcher do it";
    claim.causes = {"batches are copied where they are used", "copies on the default stream"};
    claim.evidence = {{"alone_s", copies.alone_s}, {"span_s", trace.span_s}, {"bytes", copies.bytes}};
    claim.threshold = fmt::format("{:g} % of the traced time (Luff)", 100 * share());
    claim.saving_s = claim.high_s = copies.alone_s;
    claim.low_s = copies.alone_s / 2;
    claim.method = "time of copies during which no kernel ran";
    return claim;
  }
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<CopyNotOverlapped>(kName, kParams);
  spec.version = 2;  // 2: counts steps at which a device was idle, tells traces apart by their files
  spec.summary = "batches are copied to the device while it computes nothing";
  return spec;
}

}  // namespace luff::rules::copy_not_overlapped

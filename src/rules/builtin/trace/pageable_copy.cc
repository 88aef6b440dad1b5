#include <string>

#include "base/format.h"
#include "luff/profile/input.h"
#include "luff/profile/machine.h"
#include "rules/facts/trace_rule.h"

/// PageableCopy: docs/rules/pageable_copy.md.
namespace luff::rules::pageable_copy {
namespace {

using profile::DeviceTrace;
constexpr const char* kName = "PageableCopy";
constexpr Param<TraceLimits> kParams[] = {TraceShareParam("0.05", "of the time that such copies take (Luff)"),
                                          TraceFirstParam()};

/// Batches are copied to the device from memory that is not pinned.
class PageableCopy final : public TraceRule {
 public:
  explicit PageableCopy(const TraceLimits& limits) : TraceRule(kName, limits) {}

 private:
  static constexpr double kPinned = 25e9;  // bytes a second: what PCIe 4 x16 gives pinned memory

  std::optional<TraceClaim> Judge(const DeviceTrace& trace) override {
    const DeviceTrace::Copies& copies = trace.pageable;
    if (copies.seconds < share() * trace.span_s || copies.bytes == 0) return std::nullopt;
    const double saved = copies.seconds - static_cast<double>(copies.bytes) / kPinned;
    if (saved <= 0) return std::nullopt;
    TraceClaim claim;
    claim.cause = "pageable";
    claim.what =
        fmt::format("{} are copied to the device from pageable memory in {}: {} a second",
                    profile::BytesText(static_cast<double>(copies.bytes)), OfStep(copies.seconds, trace),
                    profile::BytesText(static_cast<double>(copies.bytes) / copies.seconds));
    claim.why =
        "the driver first copies pageable memory into a buffer of its own, and the host waits for that";
    claim.remedy = "pass pin_memory=True to the DataLoader, and copy with .to(device, non_blocking=True)";
    claim.causes = {"a DataLoader without pin_memory", "tensors that are made on the host in each step"};
    claim.evidence = {{"copies_s", copies.seconds},
                      {"span_s", trace.span_s},
                      {"bytes", copies.bytes},
                      {"calls", copies.calls}};
    claim.threshold = fmt::format("{:g} % of the traced time (Luff)", 100 * share());
    claim.saving_s = saved;
    claim.low_s = saved / 2;
    claim.high_s = copies.seconds;
    claim.method = "the copies, without what pinned memory takes at 25 GB a second";
    return claim;
  }
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<PageableCopy>(kName, kParams);
  spec.version = 2;  // 2: counts steps at which a device was idle, tells traces apart by their files
  spec.summary = "batches are copied to the device from memory that is not pinned";
  return spec;
}

}  // namespace luff::rules::pageable_copy

#include <algorithm>
#include <initializer_list>
#include <string>

#include "base/format.h"
#include "luff/profile/input.h"
#include "luff/profile/machine.h"
#include "rules/facts/trace_rule.h"

/// HostSync: docs/rules/host_sync.md.
namespace luff::rules::host_sync {
namespace {

using profile::DeviceTrace;
constexpr const char* kName = "HostSync";
constexpr Param<TraceLimits> kParams[] = {
    TraceShareParam("0.1", "of the time in which the device is idle after such waits (Luff)"),
    TraceFirstParam()};

/// The device has nothing to do after the host has waited for it.
class HostSync final : public TraceRule {
 public:
  explicit HostSync(const TraceLimits& limits) : TraceRule(kName, limits) {}

 private:
  std::optional<TraceClaim> Judge(const DeviceTrace& trace) override {
    // Without the wait the host works while the device does, so at most the shorter of the two is saved:
    // where the host spends the idle time on its own work (a loader), it stays the slower one.
    const double saved = std::min(trace.idle_sync_s, trace.busy_s);
    if (saved < share() * trace.span_s || trace.syncs.empty()) return std::nullopt;
    const DeviceTrace::Sync& most = trace.syncs.front();
    TraceClaim claim;
    claim.cause = CauseOf(most.inside);
    claim.what = fmt::format(
        "the device is idle {}, since the host waited for it and had nothing ready afterwards; most of it "
        "after {}",
        OfStep(trace.idle_sync_s, trace), most.inside.empty() ? most.call : most.inside);
    if (!most.where.empty()) claim.what += " in " + most.where;
    claim.what += fmt::format(" ({} calls in the trace)", most.calls);
    claim.why =
        "a value that the script reads makes the host wait until all before it is computed; only then it "
        "launches what follows";
    claim.remedy =
        claim.cause == "item"
            ? "keep the value on the device and read it every N steps, or a step later: no .item(), float(), "
              "print() or if on a tensor in each step"
        : claim.cause == "copy" ? "copy with non_blocking=True into pinned memory, and read it a step later"
        : claim.cause == "shape"
            ? "avoid results whose shape depends on values (nonzero, boolean masks, unique): torch.where "
              "keeps the shape"
            : "leave out torch.cuda.synchronize() in the loop";
    if (most.where.empty()) claim.remedy += "; luff trace RUN --stacks names the line";
    claim.causes = {"loss.item() for a progress bar or a log in each step",
                    "metrics that are computed on the host"};
    claim.evidence = {{"idle_s", trace.idle_sync_s},
                      {"span_s", trace.span_s},
                      {"waits_s", most.wait_s},
                      {"calls", most.calls}};
    claim.threshold =
        fmt::format("idle for {:g} % of the traced time after waits of the host (Luff)", 100 * share());
    claim.saving_s = claim.high_s = saved;
    claim.low_s = std::min(most.idle_s / 2, saved);
    claim.method =
        "idle time of the device between the end of a wait of the host and the next task, at most the time "
        "in "
        "which it is busy";
    return claim;
  }

  [[nodiscard]] static std::string CauseOf(const std::string& inside) {
    const auto is = [&](std::initializer_list<const char*> words) {
      return std::ranges::any_of(words,
                                 [&](const char* word) { return inside.find(word) != std::string::npos; });
    };
    if (is({"item", "_local_scalar_dense", "is_nonzero", "equal"})) return "item";
    if (is({"nonzero", "masked_select", "unique", "index"})) return "shape";
    if (is({"copy_", "_to_copy", "aten::to"})) return "copy";
    return "synchronize";
  }
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<HostSync>(kName, kParams);
  spec.version = 2;  // 2: counts steps at which a device was idle, tells traces apart by their files
  spec.summary = "the host waits for the device in each step, which then has nothing to do";
  return spec;
}

}  // namespace luff::rules::host_sync

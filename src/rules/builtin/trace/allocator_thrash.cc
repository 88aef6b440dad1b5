#include <string>

#include "base/format.h"
#include "luff/profile/input.h"
#include "luff/profile/machine.h"
#include "rules/facts/trace_rule.h"

/// AllocatorThrash: docs/rules/allocator_thrash.md.
namespace luff::rules::allocator_thrash {
namespace {

using profile::DeviceTrace;
constexpr const char* kName = "AllocatorThrash";
constexpr Param<TraceLimits> kParams[] = {
    TraceShareParam("0.03", "of the time that the host is in cudaMalloc and cudaFree (Luff)"),
    TraceFirstParam()};

/// Memory goes back to the driver and is asked for again in each step.
class AllocatorThrash final : public TraceRule {
 public:
  explicit AllocatorThrash(const TraceLimits& limits) : TraceRule(kName, limits) {}

 private:
  std::optional<TraceClaim> Judge(const DeviceTrace& trace) override {
    // A new shape allocates once, and gives nothing back.
    if (trace.frees < static_cast<std::uint64_t>(steps()) || trace.allocation_s < share() * trace.span_s)
      return std::nullopt;
    TraceClaim claim;
    claim.cause = "empty_cache";
    claim.what = fmt::format("the host spends {} in cudaMalloc and cudaFree ({} calls in the trace)",
                             OfStep(trace.allocation_s, trace), trace.allocations);
    claim.why =
        "the allocator keeps what it has been given; that it asks the driver in the middle of a training "
        "means "
        "that its cache was emptied, or is too small for blocks of changing size. cudaFree waits for the "
        "device";
    claim.remedy =
        "take torch.cuda.empty_cache() out of the loop; if memory is nearly full, smaller batches or "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
    claim.causes = {"torch.cuda.empty_cache() in each step",
                    "memory that is nearly full: the allocator frees and tries "
                    "again",
                    "batches of ever new shapes"};
    claim.evidence = {
        {"seconds", trace.allocation_s}, {"span_s", trace.span_s}, {"calls", trace.allocations}};
    claim.threshold = fmt::format("{:g} % of the traced time (Luff)", 100 * share());
    claim.saving_s = claim.high_s = trace.allocation_s;
    claim.low_s = trace.allocation_s / 2;
    claim.method = "time in these calls";
    return claim;
  }
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<AllocatorThrash>(kName, kParams);
  spec.version = 2;  // 2: traces are told apart by their files
  spec.summary = "memory goes back to the driver and is asked for again in each step";
  return spec;
}

}  // namespace luff::rules::allocator_thrash

#include <algorithm>
#include <string>

#include "base/format.h"
#include "rules/facts/machine_rule.h"

/// Swapping: docs/rules/swapping.md.
namespace luff::rules::swapping {
namespace {

constexpr const char* kName = "Swapping";

struct Limits : MachineLimits {
  double stalled;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::stalled, "stalled", "0.05", "of the time in which all processes wait for memory (Luff)",
     Between(0, 1)},
    LUFF_MACHINE_PARAMS(Limits),
};

class Swapping final : public MachineRule {
 public:
  explicit Swapping(const Limits& limits) : MachineRule(kName, limits), limits_(limits) {}

 private:
  std::optional<MachineClaim> Judge(const MachineWindow& window) override {
    const profile::MachineUse* use = window.own();
    if (use == nullptr || !use->memory_full || *use->memory_full < limits_.stalled) return std::nullopt;
    MachineClaim claim;
    claim.cause = "memory";
    claim.what = fmt::format("all processes wait for memory {:.0f} % of the time", 100 * *use->memory_full);
    if (use->swap_in_rate && *use->swap_in_rate > 0)
      claim.what +=
          fmt::format("; {} a second come back from the swap", profile::BytesText(*use->swap_in_rate));
    if (use->memory_limit)
      claim.what += fmt::format("; the container has {}", profile::BytesText(*use->memory_limit));
    else if (use->memory_total)
      claim.what += fmt::format("; the machine has {}", profile::BytesText(*use->memory_total));
    claim.why = "memory that is needed was given up, and is read from storage again";
    claim.remedy =
        "use less memory: fewer loader workers (each has its own copy of what it touches), a smaller "
        "prefetch_factor, a "
        "dataset that is mapped instead of loaded; or a larger machine or limit";
    claim.causes = {"the processes need more memory than there is"};
    claim.evidence = {{"stalled", *use->memory_full}, {"swapped_in", use->swap_in_rate.value_or(0)}};
    claim.threshold =
        fmt::format("{:g} % of the time (pressure on memory, full; Luff)", 100 * limits_.stalled);
    claim.saving_s = claim.high_s = *use->memory_full * window.wall_s;
    claim.low_s = claim.saving_s / 2;
    claim.method = "the share of the time in which nothing could run for lack of memory, of the steps' time";
    return claim;
  }
  const Limits limits_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<Swapping>(kName, kParams);
  spec.summary = "memory is short: processes wait for what was given up or swapped out";
  return spec;
}

}  // namespace luff::rules::swapping

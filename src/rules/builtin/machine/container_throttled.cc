#include <algorithm>
#include <string>

#include "base/format.h"
#include "rules/facts/machine_rule.h"

/// ContainerThrottled: docs/rules/container_throttled.md.
namespace luff::rules::container_throttled {
namespace {

constexpr const char* kName = "ContainerThrottled";

struct Limits : MachineLimits {
  double periods, share, stolen;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::periods, "periods", "0.1", "of the container's periods in which it was throttled (Luff)",
     Between(0, 1)},
    {&Limits::share, "share", "0.03", "of a step for which the training thread has no core (Luff)",
     Between(0, 1)},
    {&Limits::stolen, "stolen", "0.05", "of all cores that the host gives to others (Luff)", Between(0, 1)},
    LUFF_MACHINE_PARAMS(Limits),
};

class ContainerThrottled final : public MachineRule {
 public:
  explicit ContainerThrottled(const Limits& limits) : MachineRule(kName, limits), limits_(limits) {}

 private:
  std::optional<MachineClaim> Judge(const MachineWindow& window) override {
    const profile::MachineUse* use = window.own();
    if (use == nullptr) return std::nullopt;
    if (use->throttled && *use->throttled >= limits_.periods && use->limit_cores &&
        window.queue_s >= limits_.share * window.wall_s)
      return Throttled(window, *use);
    const double all = use->all_cores.value_or(0);
    if (use->steal && all > 0 && *use->steal >= limits_.stolen * all) return Stolen(window, *use, all);
    return std::nullopt;
  }

  [[nodiscard]] MachineClaim Throttled(const MachineWindow& window, const profile::MachineUse& use) const {
    MachineClaim claim;
    claim.cause = "throttled";
    claim.what = fmt::format(
        "the container may use {:g} cores and was held back in {:.0f} % of its periods; {:.0f} % of each "
        "step waits for "
        "a core",
        *use.limit_cores, 100 * *use.throttled, 100 * window.share(window.queue_s));
    claim.why =
        "when its processes have used up what they may in a tenth of a second, all of them stand still";
    claim.remedy = fmt::format(
        "raise the limit (docker run --cpus, resources.limits.cpu in Kubernetes), or use no more threads and "
        "loader "
        "workers than {:.0f}",
        std::max(1.0, *use.limit_cores));
    claim.causes = {"more threads than the limit allows", "a limit that is too low"};
    claim.evidence = {{"throttled", *use.throttled},
                      {"limit_cores", *use.limit_cores},
                      {"queue_share", window.share(window.queue_s)}};
    claim.threshold = fmt::format("{:g} % of the periods, {:g} % of the steps without a core (Luff)",
                                  100 * limits_.periods, 100 * limits_.share);
    claim.saving_s = claim.high_s = window.queue_s;
    claim.low_s = window.queue_s / 4;
    claim.method = "the time for which the training thread could have run and had no core";
    return claim;
  }

  [[nodiscard]] MachineClaim Stolen(const MachineWindow& window, const profile::MachineUse& use,
                                    double all) const {
    MachineClaim claim;
    const double share = *use.steal / all;
    claim.cause = "stolen";
    claim.what =
        fmt::format("the host of this virtual machine gave {:.1f} of its {:g} cores to others ({:.0f} %)",
                    *use.steal, all, 100 * share);
    claim.why = "a thread that seems to run stands still meanwhile";
    claim.remedy = "move to another machine, or to a kind of it whose cores are not shared";
    claim.causes = {"other virtual machines on the same host"};
    claim.evidence = {{"stolen_cores", *use.steal}, {"cores", all}, {"share", share}};
    claim.threshold = fmt::format("{:g} % of all cores (Luff)", 100 * limits_.stolen);
    claim.saving_s = share * window.wall_s;
    claim.low_s = claim.saving_s / 2;
    claim.high_s = std::min(1.0, 2 * share) * window.wall_s;
    claim.method = "the share of all cores that was taken, of the steps' time";
    return claim;
  }
  const Limits limits_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<ContainerThrottled>(kName, kParams);
  spec.summary = "the container's limit, or the host of a virtual machine, takes cores from the training";
  return spec;
}

}  // namespace luff::rules::container_throttled

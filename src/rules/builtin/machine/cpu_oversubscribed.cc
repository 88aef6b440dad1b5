#include <algorithm>
#include <cmath>
#include <string>

#include "base/format.h"
#include "rules/facts/machine_rule.h"

/// CpuOversubscribed: docs/rules/cpu_oversubscribed.md.
namespace luff::rules::cpu_oversubscribed {
namespace {

constexpr const char* kName = "CpuOversubscribed";

struct Limits : MachineLimits {
  double share, demand;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::share, "share", "0.1", "of a step for which the training thread has no core (Luff)",
     Between(0, 1)},
    {&Limits::demand, "demand", "1.25", "threads of the training that want to run, per core (Luff)",
     AtLeast(1)},
    LUFF_MACHINE_PARAMS(Limits),
};

class CpuOversubscribed final : public MachineRule {
 public:
  explicit CpuOversubscribed(const Limits& limits) : MachineRule(kName, limits), limits_(limits) {}

 private:
  std::optional<MachineClaim> Judge(const MachineWindow& window) override {
    const profile::MachineUse* use = window.own();
    if (use == nullptr || use->cores <= 0 || window.queue_s < limits_.share * window.wall_s)
      return std::nullopt;
    // What the container or the host takes away is no fault of the threads.
    if (use->throttled.value_or(0) >= 0.1) return std::nullopt;
    if (use->steal && *use->steal >= 0.05 * use->all_cores.value_or(use->cores)) return std::nullopt;
    double running = 0, waiting = 0, threads = 0;
    for (const profile::RankUse& rank : use->ranks) {
      if (!rank.cores || !rank.run_queue) return std::nullopt;
      running += *rank.cores;
      waiting += *rank.run_queue;
      threads += rank.threads.value_or(0);
    }
    // Its own threads, without processes of loaders: they alone must be more than the cores take. And the
    // training has most of what runs, or others are to blame.
    if (running + waiting < limits_.demand * use->cores) return std::nullopt;
    if (running < 0.6 * std::max(use->busy.value_or(0), 0.6 * use->cores)) return std::nullopt;
    const auto ranks = static_cast<double>(use->ranks.size());
    const auto fitting = static_cast<int>(std::max(1.0, std::floor(use->cores / ranks)));
    MachineClaim claim;
    claim.cause = "threads";
    claim.what = fmt::format(
        "{:.0f} % of each step waits for a core: {} of the training {} {:.1f} threads that want to run on "
        "{:g} cores",
        100 * window.share(window.queue_s), ranks == 1 ? "the process" : fmt::format("{} processes", ranks),
        ranks == 1 ? "has" : "have", running + waiting, use->cores);
    claim.why =
        "threads that wait for each other's cores are switched in and out, and the slowest ends the step";
    claim.remedy =
        fmt::format("torch.set_num_threads({0}), or OMP_NUM_THREADS={0} in the environment, {1}", fitting,
                    ranks == 1 ? "so that there are no more threads than cores" : "in each process");
    claim.causes = {"more threads than cores", "several processes that each take all cores"};
    claim.evidence = {{"queue_share", window.share(window.queue_s)},
                      {"wanted", running + waiting},
                      {"cores", use->cores},
                      {"threads", threads}};
    claim.threshold = fmt::format("{:g} % of the steps without a core, {:g} threads to run per core (Luff)",
                                  100 * limits_.share, limits_.demand);
    claim.saving_s = window.queue_s;
    claim.low_s = window.queue_s / 4;
    claim.high_s = window.queue_s;
    claim.method = "the time for which the training thread could have run and had no core";
    return claim;
  }
  const Limits limits_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<CpuOversubscribed>(kName, kParams);
  spec.summary = "the training has more threads to run than cores, and its steps wait for one";
  return spec;
}

}  // namespace luff::rules::cpu_oversubscribed

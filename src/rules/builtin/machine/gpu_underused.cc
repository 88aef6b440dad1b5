#include <algorithm>
#include <string>

#include "base/format.h"
#include "rules/facts/machine_rule.h"

/// GpuUnderused: docs/rules/gpu_underused.md.
namespace luff::rules::gpu_underused {
namespace {

constexpr const char* kName = "GpuUnderused";
constexpr double kContext = 200e6;  // bytes: what a process that uses a GPU takes at least of its memory

struct Limits : MachineLimits {
  double utilisation, waits;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::utilisation, "utilisation", "0.5", "of the time in which a kernel should run (Luff)",
     Between(0, 1)},
    {&Limits::waits, "waits", "0.1", "of a step that it waits for data: then that is the cause (Luff)",
     Between(0, 1)},
    LUFF_MACHINE_PARAMS(Limits),
};

class GpuUnderused final : public MachineRule {
 public:
  explicit GpuUnderused(const Limits& limits) : MachineRule(kName, limits), limits_(limits) {}

 private:
  std::optional<MachineClaim> Judge(const MachineWindow& window) override {
    for (const profile::MachineUse& use : window.machines) {
      if (!window.OwnsGpus(use)) continue;
      if (auto claim = Shared(use)) return claim;
      if (auto claim = Idle(use)) return claim;
      if (auto claim = Under(window, use)) return claim;
    }
    return std::nullopt;
  }

  /// More processes compute on it than this job has.
  [[nodiscard]] static std::optional<MachineClaim> Shared(const profile::MachineUse& use) {
    double ours = 0;
    for (const profile::RankUse& rank : use.ranks) ours += 1 + rank.children;
    for (const profile::GpuUse& gpu : use.gpus) {
      if (gpu.mig || !gpu.processes || ours < 1 || *gpu.processes < ours + 0.5 || !Works(gpu)) continue;
      MachineClaim claim;
      claim.cause = "shared";
      claim.what = fmt::format("{:.0f} processes compute on GPU {} of {}, and this job has {:.0f} there",
                               *gpu.processes, gpu.index, use.name, ours);
      claim.why = "they take turns: each of them waits for the others, and their memory is taken";
      claim.remedy =
          "choose a GPU that is free (CUDA_VISIBLE_DEVICES), or end what is left of an earlier job "
          "(nvidia-smi)";
      claim.causes = {"another user's job", "a process that an earlier job left behind"};
      claim.evidence = {{"gpu", gpu.index}, {"processes", *gpu.processes}, {"ours", ours}};
      claim.threshold = "processes on the GPU beyond those of the job (Luff)";
      return claim;
    }
    return std::nullopt;
  }

  /// A process holds memory on it and never computes there, while another GPU works.
  [[nodiscard]] static std::optional<MachineClaim> Idle(const profile::MachineUse& use) {
    const auto working = static_cast<std::size_t>(std::ranges::count_if(use.gpus, Works));
    // Where as many work as there are ranks, what is held is another job's.
    if (working == 0 || working >= use.ranks.size()) return std::nullopt;
    for (const profile::GpuUse& gpu : use.gpus) {
      if (gpu.mig || !gpu.most_utilisation || *gpu.most_utilisation > 0.01 || !gpu.memory_used ||
          *gpu.memory_used < kContext || use.ranks.size() < 2)
        continue;
      MachineClaim claim;
      claim.cause = "idle";
      claim.what = fmt::format("GPU {} of {} holds {} and computes nothing, while others work", gpu.index,
                               use.name, profile::BytesText(*gpu.memory_used));
      claim.why = "a process was given this GPU and does not use it";
      claim.remedy =
          "look which device each rank uses (LOCAL_RANK, torch.cuda.set_device), or ask for fewer GPUs";
      claim.causes = {"all ranks use the same device", "fewer ranks than GPUs"};
      claim.evidence = {{"gpu", gpu.index}, {"memory", *gpu.memory_used}};
      claim.threshold = "no use at all in the window (Luff)";
      return claim;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<MachineClaim> Under(const MachineWindow& window,
                                                  const profile::MachineUse& use) const {
    if (window.share(window.wait_s) >= limits_.waits || &use != window.own()) return std::nullopt;
    if (window.queue_s >= limits_.waits * window.wall_s) return std::nullopt;  // the host is short of cores
    for (const profile::GpuUse& gpu : use.gpus) {
      if (gpu.mig || !gpu.utilisation || !Works(gpu) || *gpu.utilisation >= limits_.utilisation) continue;
      MachineClaim claim;
      claim.cause = "underused";
      claim.what = fmt::format(
          "a kernel runs on GPU {} only {:.0f} % of the time, and the step does not wait for data", gpu.index,
          100 * *gpu.utilisation);
      if (gpu.sm_active)
        claim.what += fmt::format("; its multiprocessors work {:.0f} %", 100 * *gpu.sm_active);
      if (gpu.most_memory_used && gpu.memory_total && *gpu.memory_total > 0)
        claim.what +=
            fmt::format("; {:.0f} % of its memory is used", 100 * *gpu.most_memory_used / *gpu.memory_total);
      claim.why =
          "the host gives it work too slowly: many small kernels, or results that are asked for at each step";
      claim.remedy =
          "larger batches as long as memory lasts, torch.compile or CUDA graphs, and no .item() or print of "
          "a tensor in "
          "each step";
      claim.causes = {"small kernels", "a result is waited for in each step",
                      "work on the host between steps"};
      claim.evidence = {
          {"gpu", gpu.index}, {"utilisation", *gpu.utilisation}, {"sm_active", gpu.sm_active.value_or(-1)}};
      claim.threshold = fmt::format("a kernel runs {:g} % of the time (Luff)", 100 * limits_.utilisation);
      return claim;
    }
    return std::nullopt;
  }
  const Limits limits_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<GpuUnderused>(kName, kParams);
  spec.summary = "a GPU that works little, not at all, or for others too";
  return spec;
}

}  // namespace luff::rules::gpu_underused

#include <algorithm>
#include <string>

#include "base/format.h"
#include "rules/facts/machine_rule.h"

/// StorageBound: docs/rules/storage_bound.md.
namespace luff::rules::storage_bound {
namespace {

constexpr const char* kName = "StorageBound";
// Least share of a window: three of its samples. One or two may be any lock of the kernel, or a file that is
// written.
constexpr double kSeen = 0.15;

struct Limits : MachineLimits {
  double share, waiting;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::share, "share", "0.1", "of a step that it waits for data (Luff)", Between(0, 1)},
    {&Limits::waiting, "waiting", "0.3", "of the loader's time that it waits for storage (Luff)",
     Between(0, 1)},
    LUFF_MACHINE_PARAMS(Limits),
};

class StorageBound final : public MachineRule {
 public:
  explicit StorageBound(const Limits& limits) : MachineRule(kName, limits), limits_(limits) {}

 private:
  std::optional<MachineClaim> Judge(const MachineWindow& window) override {
    const profile::MachineUse* use = window.own();
    if (use == nullptr || window.wait_s < limits_.share * window.wall_s) return std::nullopt;
    const auto rank = std::ranges::find(use->ranks, window.worker, &profile::RankUse::worker);
    if (rank == use->ranks.end()) return std::nullopt;
    // With workers these read; without, the training thread does, while it waits for its data.
    const bool workers = rank->children >= 0.5;
    double waiting = 0;
    if (workers) {
      if (!rank->children_disk_wait) return std::nullopt;
      waiting = *rank->children_disk_wait;
    } else {
      if (!rank->disk_wait || *rank->disk_wait < kSeen) return std::nullopt;
      waiting = std::min(1.0, *rank->disk_wait / window.share(window.wait_s));
    }
    if (waiting < limits_.waiting) return std::nullopt;
    double read = rank->read_rate.value_or(0);
    for (const profile::FlowUse& disk : use->disks) read = std::max(read, disk.in_rate);
    MachineClaim claim;
    claim.cause = "reads";
    claim.what = fmt::format(
        "the step waits {:.0f} % of the time for data, and {} {:.0f} % of {} for storage",
        100 * window.share(window.wait_s), workers ? "the loader's workers wait" : "the loader waits",
        100 * waiting, workers ? "their time" : "that");
    if (read > 1e5) claim.what += fmt::format(" ({} a second are read)", profile::BytesText(read));
    claim.why =
        "samples are made no faster than they are read; more workers help only as far as the storage does";
    claim.remedy =
        "copy the data to a local disk, or into memory; store many samples in few large files (tar shards, "
        "Parquet, LMDB) "
        "and read them in order";
    claim.causes = {"a network file system", "many small files read in random order", "a slow or busy disk"};
    claim.evidence = {{"wait_share", window.share(window.wait_s)}, {"waiting", waiting}, {"read", read}};
    claim.threshold = fmt::format("a wait of {:g} % of a step, {:g} % of the loader's time (Luff)",
                                  100 * limits_.share, 100 * limits_.waiting);
    claim.saving_s = waiting * window.wait_s;
    claim.low_s = claim.saving_s / 2;
    claim.high_s = window.wait_s;
    claim.method = "the wait for data, as far as the loader waits for storage meanwhile";
    return claim;
  }
  const Limits limits_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<StorageBound>(kName, kParams);
  spec.summary = "the training waits for data because its loader waits for storage";
  return spec;
}

}  // namespace luff::rules::storage_bound

#pragma once
#include <string>
#include <vector>

#include "profile/sampler/source.h"
#include "profile/system/machine_text.h"

namespace luff::profile {

/// The whole machine: cores, memory, pressure, disks, network. Files lie below `root` ("" outside tests).
class MachineSource final : public Source {
 public:
  explicit MachineSource(const std::string& root);
  void Sample(std::uint64_t tick, Board* board) override;
  void Report(std::vector<SourceReport>* reports) const override;
  /// How many processes and threads the machine had started at the last Sample().
  [[nodiscard]] Counted started() const noexcept { return started_; }

 private:
  struct Disk {
    std::string name;
    KernelFile stat;  // of this one only
  };
  void Cores(Board* board);
  [[nodiscard]] std::vector<DiskCounts> OneByOne();
  [[nodiscard]] std::vector<DiskCounts> Disks(std::uint64_t tick);
  const std::string root_;
  KernelFile stat_, meminfo_, vmstat_, diskstats_, net_, snmp_;
  const std::int64_t tick_ns_, page_bytes_;
  std::vector<std::uint32_t> busy_;  // series of each core
  std::vector<Disk> disks_;          // those that are read one by one, until the next look at all
  Counted started_;
};

/// Frequency, temperature, energy of processor packages, traffic of RDMA ports.
class SlowSource final : public Source {
 public:
  explicit SlowSource(const std::string& root);
  void Sample(std::uint64_t tick, Board* board) override;
  void Report(std::vector<SourceReport>* reports) const override;

 private:
  struct Energy {
    std::string name;
    KernelFile file;
    std::int64_t range_uj = 0;  // it begins again after that
    std::int64_t last_uj = -1, sum_uj = 0;
  };
  struct Port {
    std::string name;
    KernelFile received, sent;  // in units of 4 bytes
  };
  std::vector<KernelFile> frequencies_, temperatures_;
  std::vector<Energy> energies_;
  std::vector<Port> ports_;
};

}  // namespace luff::profile

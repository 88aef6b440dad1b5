#include "profile/sampler/machine_source.h"

#include <unistd.h>

#include <algorithm>

#include "profile/system/text.h"

namespace luff::profile {
namespace {

constexpr std::size_t kMostFiles = 32;  // of frequencies, zones, packages and ports each
// The file of all disks also counts loop and other devices, which takes as long as five files of one disk.
constexpr std::size_t kFewDisks = 4;

/// True if no count of `a` is above that of `b`.
bool IsWithin(const DiskCounts& a, const DiskCounts& b) noexcept {
  return a.name == b.name && a.reads <= b.reads && a.read_bytes <= b.read_bytes && a.writes <= b.writes &&
         a.write_bytes <= b.write_bytes && a.busy_ns <= b.busy_ns;
}

}  // namespace

MachineSource::MachineSource(const std::string& root)
    : root_(root),
      stat_(root + "/proc/stat"),
      meminfo_(root + "/proc/meminfo"),
      vmstat_(root + "/proc/vmstat"),
      diskstats_(root + "/proc/diskstats"),
      net_(root + "/proc/net/dev"),
      snmp_(root + "/proc/net/snmp"),
      tick_ns_(ClockTickNs()),
      page_bytes_(std::max<long>(sysconf(_SC_PAGESIZE), 1)) {}

void MachineSource::Cores(Board* board) {
  const MachineTimes times = ParseStatUntrusted(stat_.Read(), tick_ns_);
  constexpr auto kNs = SeriesUnit::kNanoseconds;
  for (const CoreTime& core : times.cores) {
    if (core.core < 0) {
      board->Set("cpu.busy", kNs, SeriesKind::kCounter, core.busy);
      board->Set("cpu.iowait", kNs, SeriesKind::kCounter, core.iowait);
      board->Set("cpu.steal", kNs, SeriesKind::kCounter, core.steal);
      continue;
    }
    const auto at = static_cast<std::size_t>(core.core);
    if (at >= kMaxCores) continue;
    while (busy_.size() <= at) busy_.push_back(Board::kNone);
    if (busy_[at] == Board::kNone)
      busy_[at] = board->Series("cpu." + std::to_string(at) + ".busy", kNs, SeriesKind::kCounter);
    board->Set(busy_[at], core.busy);
  }
  started_ = times.started;
  board->Set("cpu.context_switches", SeriesUnit::kNumber, SeriesKind::kCounter, times.context_switches);
}

/// Of the disks in disks_; empty if one of them does not tell.
std::vector<DiskCounts> MachineSource::OneByOne() {
  std::vector<DiskCounts> found;
  for (Disk& disk : disks_) {
    auto counts = ParseDiskUntrusted(disk.name, disk.stat.Read());
    if (!counts) return {};
    found.push_back(std::move(*counts));
  }
  return found;
}

/// Once in kSlow ticks the file of all disks says which there are. Their counts come from the files of single
/// ones where these say the same. Elsewhere, as in a container that sees only its own counts in the file of
/// all, one series must not have both.
std::vector<DiskCounts> MachineSource::Disks(std::uint64_t tick) {
  if (tick % kSlow != 0 && !disks_.empty()) {
    if (auto found = OneByOne(); !found.empty()) return found;
    disks_.clear();
  }
  auto before = ParseDiskstatsUntrusted(diskstats_.Read());
  if (tick % kSlow != 0) return before;
  if (before.size() > kFewDisks) {
    disks_.clear();
    return before;
  }
  if (!std::ranges::equal(disks_, before, {}, &Disk::name, &DiskCounts::name)) {
    disks_.clear();
    for (const DiskCounts& disk : before)
      disks_.push_back({disk.name, KernelFile(root_ + "/sys/class/block/" + disk.name + "/stat")});
  }
  auto found = OneByOne();
  const bool same = std::ranges::equal(before, found, IsWithin) &&
                    (std::ranges::equal(found, before, IsWithin) ||
                     std::ranges::equal(found, ParseDiskstatsUntrusted(diskstats_.Read()), IsWithin));
  if (same) return found;
  disks_.clear();
  return before;
}

void MachineSource::Sample(std::uint64_t tick, Board* board) {
  constexpr auto kBytes = SeriesUnit::kBytes;
  constexpr auto kNumber = SeriesUnit::kNumber;
  constexpr auto kCounter = SeriesKind::kCounter;
  constexpr auto kGauge = SeriesKind::kGauge;
  Cores(board);
  if (tick % kCounters != 0) return;
  const MemoryInfo memory = ParseMeminfoUntrusted(meminfo_.Read());
  board->Set("memory.total", kBytes, kGauge, memory.total);
  board->Set("memory.available", kBytes, kGauge, memory.available);
  board->Set("memory.cached", kBytes, kGauge, memory.cached);
  if (memory.swap_total && memory.swap_free && *memory.swap_total > 0)
    board->Set("memory.swap_used", kBytes, kGauge, *memory.swap_total - *memory.swap_free);
  for (const DiskCounts& disk : Disks(tick)) {
    const std::string name = "disk." + disk.name;
    board->Set(name + ".read", kBytes, kCounter, disk.read_bytes);
    board->Set(name + ".written", kBytes, kCounter, disk.write_bytes);
    board->Set(name + ".reads", kNumber, kCounter, disk.reads);
    board->Set(name + ".writes", kNumber, kCounter, disk.writes);
    board->Set(name + ".busy", SeriesUnit::kNanoseconds, kCounter, disk.busy_ns);
  }
  for (const NetCounts& net : ParseNetDevUntrusted(net_.Read())) {
    board->Set("net." + net.name + ".received", kBytes, kCounter, net.received);
    board->Set("net." + net.name + ".sent", kBytes, kCounter, net.sent);
  }
  if (tick % kSlow != 0) return;
  const PageCounts pages = ParseVmstatUntrusted(vmstat_.Read());
  board->Set("vm.swapped_in", kBytes, kCounter, Scaled(pages.swapped_in, page_bytes_));
  board->Set("vm.swapped_out", kBytes, kCounter, Scaled(pages.swapped_out, page_bytes_));
  board->Set("vm.major_faults", kNumber, kCounter, pages.major_faults);
  board->Set("vm.oom_kills", kNumber, kCounter, pages.oom_kills);
  board->Set("net.retransmits", kNumber, kCounter, ParseRetransmitsUntrusted(snmp_.Read()));
}

void MachineSource::Report(std::vector<SourceReport>* reports) const {
  reports->push_back(ReportOf("cores", stat_));
  reports->push_back(ReportOf("memory", meminfo_));
  reports->push_back(ReportOf("paging", vmstat_));
  reports->push_back(ReportOf("disks", diskstats_));
  reports->push_back(ReportOf("network", net_));
}

SlowSource::SlowSource(const std::string& root) {
  const std::string cores = root + "/sys/devices/system/cpu";
  for (const std::string& name : NamesIn(cores, 4096)) {
    if (!name.starts_with("cpu") || !NumberOf(name.substr(3)) || frequencies_.size() >= kMostFiles) continue;
    frequencies_.emplace_back(cores + "/" + name + "/cpufreq/scaling_cur_freq");
  }
  const std::string zones = root + "/sys/class/thermal";
  for (const std::string& name : NamesIn(zones, 256)) {
    if (name.starts_with("thermal_zone") && temperatures_.size() < kMostFiles)
      temperatures_.emplace_back(zones + "/" + name + "/temp");
  }
  const std::string packages = root + "/sys/class/powercap";
  for (const std::string& name : NamesIn(packages, 256)) {
    // "intel-rapl:0" is a package, "intel-rapl:0:1" a part of it; AMD's are named so too.
    const std::size_t colon = name.find(':');
    if (colon == std::string::npos || name.find(':', colon + 1) != std::string::npos ||
        name.starts_with("intel-rapl-mmio") || energies_.size() >= kMostFiles)
      continue;
    KernelFile range(packages + "/" + name + "/max_energy_range_uj");
    const Counted most = ParseOneNumberUntrusted(range.Read());
    energies_.push_back({"energy.package" + name.substr(colon + 1),
                         KernelFile(packages + "/" + name + "/energy_uj"), most.value_or(0), -1, 0});
  }
  const std::string devices = root + "/sys/class/infiniband";
  for (const std::string& device : NamesIn(devices, 64)) {
    for (const std::string& port : NamesIn(devices + "/" + device + "/ports", 8)) {
      if (ports_.size() >= kMostFiles) break;
      const std::string folder = devices + "/" + device + "/ports/" + port + "/counters/";
      ports_.push_back({"rdma." + device + "_" + port, KernelFile(folder + "port_rcv_data"),
                        KernelFile(folder + "port_xmit_data")});
    }
  }
}

void SlowSource::Sample(std::uint64_t tick, Board* board) {
  for (Energy& energy : energies_) {
    const Counted now = ParseOneNumberUntrusted(energy.file.Read());
    if (!now) continue;
    if (energy.last_uj >= 0) {
      std::int64_t more = *now - energy.last_uj;
      if (more < 0) more += energy.range_uj;
      energy.sum_uj += std::max<std::int64_t>(more, 0);
    }
    energy.last_uj = *now;
    board->Set(energy.name, SeriesUnit::kEnergy, SeriesKind::kCounter, energy.sum_uj);
  }
  if (tick % kSlow != 0) return;
  std::int64_t sum = 0, count = 0;
  for (KernelFile& file : frequencies_) {
    if (const Counted khz = ParseOneNumberUntrusted(file.Read()); khz && *khz < std::int64_t{1} << 40U)
      sum += *khz, ++count;
  }
  if (count > 0) board->Set("cpu.frequency", SeriesUnit::kFrequency, SeriesKind::kGauge, sum / count);
  Counted hottest;
  for (KernelFile& file : temperatures_) {
    const Counted degrees = ParseOneNumberUntrusted(file.Read());
    if (degrees && *degrees < 200'000) hottest = std::max(hottest.value_or(0), *degrees);
  }
  board->Set("temperature", SeriesUnit::kTemperature, SeriesKind::kGauge, hottest);
  for (Port& port : ports_) {
    board->Set(port.name + ".received", SeriesUnit::kBytes, SeriesKind::kCounter,
               Scaled(ParseOneNumberUntrusted(port.received.Read()), 4));
    board->Set(port.name + ".sent", SeriesUnit::kBytes, SeriesKind::kCounter,
               Scaled(ParseOneNumberUntrusted(port.sent.Read()), 4));
  }
}

void SlowSource::Report(std::vector<SourceReport>* reports) const {
  const auto first = [&](const char* name, const KernelFile* file, const char* none) {
    if (file != nullptr)
      reports->push_back(ReportOf(name, *file));
    else
      reports->push_back({name, SourceState::kAbsent, none, 0, ""});
  };
  first("frequency", frequencies_.empty() ? nullptr : frequencies_.data(), "/sys/devices/system/cpu");
  first("temperature", temperatures_.empty() ? nullptr : temperatures_.data(), "/sys/class/thermal");
  first("energy", energies_.empty() ? nullptr : &energies_.front().file, "/sys/class/powercap");
}

}  // namespace luff::profile

#include "profile/sampler/cgroup_source.h"

#include <algorithm>

#include "profile/system/cgroup_text.h"
#include "profile/system/text.h"

namespace luff::profile {
namespace {

constexpr int kMostLevels = 64;

/// The folder above; "" when it would leave the mount, below which a group lies.
std::string Above(const std::string& folder) {
  const std::size_t slash = folder.rfind('/');
  return slash == std::string::npos || slash == 0 ? std::string() : folder.substr(0, slash);
}

std::string TextOf(const std::string& path) {
  KernelFile file(path);
  return std::string(file.Read());
}

/// Limit of cores at one level, in millionths.
Counted CoresAt(const std::string& folder, bool v2) {
  if (v2) return ParseCpuMaxUntrusted(TextOf(folder + "/cpu.max"));
  return CoresOfQuotaUntrusted(TextOf(folder + "/cpu.cfs_quota_us"), TextOf(folder + "/cpu.cfs_period_us"));
}

}  // namespace

CgroupSource::CgroupSource(const std::string& root, const std::string& process) : root_(root) {
  const std::string groups = TextOf(root + "/proc/" + process + "/cgroup");
  const std::string mounts = TextOf(root + "/proc/" + process + "/mountinfo");
  CgroupFolders found = FindCgroupsUntrusted(groups, mounts);
  for (std::string* folder : {&found.cpu, &found.cpuacct, &found.memory, &found.io, &found.unified}) {
    if (!folder->empty()) *folder = root + *folder;
  }
  v2_cpu_ = found.v2_cpu;
  v2_memory_ = found.v2_memory;
  v2_io_ = found.v2_io;
  if (!found.cpu.empty()) {
    // A limit counts for all groups below it, and throttling is counted where the limit is.
    std::string at = found.cpu;
    std::string limited = found.cpu;
    for (int level = 0; level < kMostLevels && !at.empty(); ++level, at = Above(at)) {
      const Counted cores = CoresAt(at, v2_cpu_);
      if (cores && (!cores_ || *cores < *cores_)) {
        cores_ = cores;
        limited = at;
      }
    }
    cpu_stat_ = KernelFile(limited + "/cpu.stat");
  }
  if (!v2_cpu_ && !found.cpuacct.empty()) cpu_used_ = KernelFile(found.cpuacct + "/cpuacct.usage");
  if (!found.memory.empty()) {
    std::string at = found.memory;
    std::string limited = found.memory;
    const char* limit = v2_memory_ ? "/memory.max" : "/memory.limit_in_bytes";
    for (int level = 0; level < kMostLevels && !at.empty(); ++level, at = Above(at)) {
      const Counted bytes = ParseOneNumberUntrusted(TextOf(at + limit));
      if (bytes && (!memory_bytes_ || *bytes < *memory_bytes_)) {
        memory_bytes_ = bytes;
        limited = at;
      }
    }
    memory_used_ = KernelFile(limited + (v2_memory_ ? "/memory.current" : "/memory.usage_in_bytes"));
    memory_limit_ = KernelFile(limited + limit);
    memory_events_ = KernelFile(limited + (v2_memory_ ? "/memory.events" : "/memory.oom_control"));
  }
  if (v2_io_) io_ = KernelFile(found.io + "/io.stat");
  // The root of version 2 has none.
  const std::string own = found.unified + "/cpu.pressure";
  pressure_of_group_ = !found.unified.empty() && !TextOf(own).empty();
  const std::string from = pressure_of_group_ ? found.unified + "/" : root + "/proc/pressure/";
  const std::string ending = pressure_of_group_ ? ".pressure" : "";
  pressure_cpu_ = KernelFile(from + "cpu" + ending);
  pressure_memory_ = KernelFile(from + "memory" + ending);
  pressure_io_ = KernelFile(from + "io" + ending);
}

void CgroupSource::Sample(std::uint64_t tick, Board* board) {
  constexpr auto kNs = SeriesUnit::kNanoseconds;
  constexpr auto kBytes = SeriesUnit::kBytes;
  constexpr auto kNumber = SeriesUnit::kNumber;
  constexpr auto kCounter = SeriesKind::kCounter;
  constexpr auto kGauge = SeriesKind::kGauge;
  if (tick % kCounters != 0) return;
  const CpuUse cpu = ParseCpuStatUntrusted(cpu_stat_.Read());
  const Counted used = cpu.usage_ns ? cpu.usage_ns : ParseOneNumberUntrusted(cpu_used_.Read());
  board->Set("cgroup.cpu.used", kNs, kCounter, used);
  if (cores_) {  // without a limit nothing is throttled, and its zeros say nothing
    board->Set("cgroup.cpu.periods", kNumber, kCounter, cpu.periods);
    board->Set("cgroup.cpu.throttled_periods", kNumber, kCounter, cpu.throttled_periods);
    board->Set("cgroup.cpu.throttled", kNs, kCounter, cpu.throttled_ns);
  }
  board->Set("cgroup.memory.used", kBytes, kGauge, ParseOneNumberUntrusted(memory_used_.Read()));
  const IoUse io = ParseIoStatUntrusted(io_.Read());
  board->Set("cgroup.io.read", kBytes, kCounter, io.read);
  board->Set("cgroup.io.written", kBytes, kCounter, io.written);
  const Pressure on_cpu = ParsePressureUntrusted(pressure_cpu_.Read());
  board->Set("pressure.cpu.some", kNs, kCounter, on_cpu.some);
  const Pressure on_memory = ParsePressureUntrusted(pressure_memory_.Read());
  board->Set("pressure.memory.some", kNs, kCounter, on_memory.some);
  board->Set("pressure.memory.full", kNs, kCounter, on_memory.full);
  const Pressure on_io = ParsePressureUntrusted(pressure_io_.Read());
  board->Set("pressure.io.some", kNs, kCounter, on_io.some);
  board->Set("pressure.io.full", kNs, kCounter, on_io.full);
  if (tick % kSlow != 0) return;
  board->Set("cgroup.cpu.limit", SeriesUnit::kShare, kGauge, cores_);
  board->Set("cgroup.memory.limit", kBytes, kGauge, ParseOneNumberUntrusted(memory_limit_.Read()));
  board->Set("cgroup.memory.oom_kills", kNumber, kCounter, ParseOomKillsUntrusted(memory_events_.Read()));
}

void CgroupSource::Report(std::vector<SourceReport>* reports) const {
  reports->push_back(ReportOf("cgroup.cpu", cpu_stat_));
  reports->push_back(ReportOf("cgroup.memory", memory_used_));
  reports->push_back(ReportOf("pressure.cpu", pressure_cpu_));
  reports->push_back(ReportOf("pressure.memory", pressure_memory_));
  reports->push_back(ReportOf("pressure.io", pressure_io_));
}

}  // namespace luff::profile

#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profile/system/machine_text.h"

/// Where a process's control groups are, and what their files say: version 1, version 2, and both at once.
namespace luff::profile {

/// Folders of the groups of a process, "" where a controller is not there. With version 2 alone they are one.
struct CgroupFolders {
  bool v2_cpu = false, v2_memory = false, v2_io = false;  // which names the files there have
  std::string cpu, cpuacct, memory, io;
  std::string unified;  // of version 2, which has the pressure files
};
/// `groups`: /proc/PID/cgroup; `mounts`: /proc/PID/mountinfo. A group that lies outside of what is mounted
/// (the process is in a container whose groups have a namespace of their own) is looked for at the mount
/// itself.
[[nodiscard]] CgroupFolders FindCgroupsUntrusted(std::string_view groups, std::string_view mounts);

struct CpuUse {
  Counted usage_ns, periods, throttled_periods, throttled_ns;
};
/// cpu.stat of either version. Version 1 has no usage there.
[[nodiscard]] CpuUse ParseCpuStatUntrusted(std::string_view text);
/// Cores that a group may use, in millionths: version 2's cpu.max; nothing without a limit.
[[nodiscard]] Counted ParseCpuMaxUntrusted(std::string_view text);
/// The same from version 1's quota and period, in microseconds; the quota is -1 without a limit.
[[nodiscard]] Counted CoresOfQuotaUntrusted(std::string_view quota, std::string_view period);
/// memory.events: how often a process of the group was killed for lack of memory.
[[nodiscard]] Counted ParseOomKillsUntrusted(std::string_view text);
/// io.stat of version 2, in bytes, all devices together.
struct IoUse {
  Counted read, written;
};
[[nodiscard]] IoUse ParseIoStatUntrusted(std::string_view text);

}  // namespace luff::profile

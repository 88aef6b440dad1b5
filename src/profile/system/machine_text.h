#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What files of /proc say of a whole machine. Functions of their text only; a line that is damaged is left
/// out, and what a kernel does not say is absent.
namespace luff::profile {

using Counted = std::optional<std::int64_t>;

/// Time of one core, or of all, since boot, in ns.
struct CoreTime {
  int core = -1;  // -1: all
  std::int64_t busy = 0, iowait = 0, steal = 0;
};
struct MachineTimes {
  std::vector<CoreTime> cores;  // with that of all, if there is one, first
  Counted context_switches;
  Counted started;  // processes and threads since boot
};
/// /proc/stat. `tick_ns`: of one clock tick (sysconf(_SC_CLK_TCK)).
[[nodiscard]] MachineTimes ParseStatUntrusted(std::string_view text, std::int64_t tick_ns);

/// /proc/meminfo, in bytes.
struct MemoryInfo {
  Counted total, available, cached, swap_total, swap_free;
};
[[nodiscard]] MemoryInfo ParseMeminfoUntrusted(std::string_view text);

/// /proc/vmstat; pages.
struct PageCounts {
  Counted swapped_in, swapped_out, major_faults, oom_kills;
};
[[nodiscard]] PageCounts ParseVmstatUntrusted(std::string_view text);

/// A pressure file: time in which some, or all, tasks waited for the resource, in ns since boot.
struct Pressure {
  Counted some, full;
};
[[nodiscard]] Pressure ParsePressureUntrusted(std::string_view text);

/// A whole disk of /proc/diskstats; partitions, loop and other virtual devices are left out.
struct DiskCounts {
  std::string name;
  std::int64_t reads = 0, read_bytes = 0, writes = 0, write_bytes = 0, busy_ns = 0;
};
[[nodiscard]] std::vector<DiskCounts> ParseDiskstatsUntrusted(std::string_view text);
/// The same numbers of one disk, as /sys/class/block/NAME/stat has them.
[[nodiscard]] std::optional<DiskCounts> ParseDiskUntrusted(std::string_view name, std::string_view text);

/// A network interface of /proc/net/dev, in bytes; the loopback is left out.
struct NetCounts {
  std::string name;
  std::int64_t received = 0, sent = 0;
};
[[nodiscard]] std::vector<NetCounts> ParseNetDevUntrusted(std::string_view text);
/// Segments of TCP that were sent again: /proc/net/snmp.
[[nodiscard]] Counted ParseRetransmitsUntrusted(std::string_view text);

/// The number of a file that holds one ("max": none).
[[nodiscard]] Counted ParseOneNumberUntrusted(std::string_view text);

/// Disks and interfaces beyond these are left out.
inline constexpr std::size_t kMaxCores = 1024, kMaxDisks = 64, kMaxInterfaces = 64;

}  // namespace luff::profile

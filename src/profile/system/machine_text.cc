#include "profile/system/machine_text.h"

#include <algorithm>
#include <array>
#include <utility>

#include "profile/system/text.h"

namespace luff::profile {
namespace {

constexpr std::int64_t kSector = 512, kMs = 1'000'000, kUs = 1'000;

/// A name that can stand in that of a series: letters, digits, '-', '_' and ':'; at most 64 of them.
bool IsPlainName(std::string_view name) noexcept {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == ':';
  });
}

bool EndsInDigit(std::string_view name) noexcept {
  return !name.empty() && name.back() >= '0' && name.back() <= '9';
}

/// True for a disk that is not made of others: its bytes count once.
bool IsWholeDisk(std::string_view name) noexcept {
  for (const char* other : {"loop", "ram", "dm-", "md", "zram", "sr", "fd", "nbd"}) {
    if (name.starts_with(other)) return false;
  }
  // nvme0n1p2, mmcblk0p1: partitions have a p; of sda1, vdb2 the name of the disk has no digit.
  if (name.starts_with("nvme") || name.starts_with("mmcblk"))
    return name.find('p', 4) == std::string_view::npos;
  return !EndsInDigit(name);
}

}  // namespace

MachineTimes ParseStatUntrusted(std::string_view text, std::int64_t tick_ns) {
  MachineTimes times;
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    const std::string_view key = TakeWord(&line);
    if (key == "ctxt") times.context_switches = TakeNumber(&line);
    // A kernel that says 0 does not count: whoever reads this was started.
    if (key == "processes") times.started = TakeNumber(&line);
    if (times.started == 0) times.started.reset();
    if (!key.starts_with("cpu") || times.cores.size() > kMaxCores) continue;
    CoreTime core;
    if (key.size() > 3) {
      const Counted number = NumberOf(key.substr(3));
      if (!number || *number >= std::int64_t{kMaxCores} * 64) continue;
      core.core = static_cast<int>(*number);
    }
    std::array<Counted, 8> ticks;  // user nice system idle iowait irq softirq steal
    for (Counted& one : ticks) one = Scaled(TakeNumber(&line), tick_ns);
    if (!ticks[0] || !ticks[1] || !ticks[2] || !ticks[3]) continue;
    core.busy = std::min(*ticks[0], std::int64_t{1} << 58U) + std::min(*ticks[2], std::int64_t{1} << 58U) +
                std::min(*ticks[1], std::int64_t{1} << 58U);
    for (const std::size_t i : {5U, 6U}) core.busy += std::min(ticks[i].value_or(0), std::int64_t{1} << 56U);
    core.iowait = ticks[4].value_or(0);
    core.steal = ticks[7].value_or(0);
    times.cores.push_back(core);
  }
  return times;
}

MemoryInfo ParseMeminfoUntrusted(std::string_view text) {
  MemoryInfo info;
  const std::pair<std::string_view, Counted*> wanted[] = {{"MemTotal:", &info.total},
                                                          {"MemAvailable:", &info.available},
                                                          {"Cached:", &info.cached},
                                                          {"SwapTotal:", &info.swap_total},
                                                          {"SwapFree:", &info.swap_free}};
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    const std::string_view key = TakeWord(&line);
    for (const auto& [name, to] : wanted) {
      if (key == name) *to = Scaled(TakeNumber(&line), 1024);
    }
  }
  return info;
}

PageCounts ParseVmstatUntrusted(std::string_view text) {
  PageCounts counts;
  const std::pair<std::string_view, Counted*> wanted[] = {{"pswpin", &counts.swapped_in},
                                                          {"pswpout", &counts.swapped_out},
                                                          {"pgmajfault", &counts.major_faults},
                                                          {"oom_kill", &counts.oom_kills}};
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    const std::string_view key = TakeWord(&line);
    for (const auto& [name, to] : wanted) {
      if (key == name) *to = TakeNumber(&line);
    }
  }
  return counts;
}

Pressure ParsePressureUntrusted(std::string_view text) {
  Pressure pressure;
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    const std::string_view kind = TakeWord(&line);
    for (std::string_view word = TakeWord(&line); !word.empty(); word = TakeWord(&line)) {
      if (!word.starts_with("total=")) continue;
      const Counted ns = Scaled(NumberOf(word.substr(6)), kUs);
      if (kind == "some") pressure.some = ns;
      if (kind == "full") pressure.full = ns;
    }
  }
  return pressure;
}

std::vector<DiskCounts> ParseDiskstatsUntrusted(std::string_view text) {
  std::vector<DiskCounts> disks;
  while (!text.empty() && disks.size() < kMaxDisks) {
    std::string_view line = TakeLine(&text);
    (void)TakeWord(&line);  // major
    (void)TakeWord(&line);  // minor
    const std::string_view name = TakeWord(&line);
    if (!IsPlainName(name) || !IsWholeDisk(name)) continue;
    if (auto disk = ParseDiskUntrusted(name, line)) disks.push_back(std::move(*disk));
  }
  return disks;
}

std::optional<DiskCounts> ParseDiskUntrusted(std::string_view name, std::string_view text) {
  std::string_view line = TakeLine(&text);
  std::array<Counted, 10> n;  // reads merged sectors ms writes merged sectors ms inflight busy_ms
  for (Counted& one : n) one = TakeNumber(&line);
  const Counted read = Scaled(n[2], kSector), written = Scaled(n[6], kSector), busy = Scaled(n[9], kMs);
  if (!n[0] || !read || !n[4] || !written || !busy) return std::nullopt;
  return DiskCounts{std::string(name), *n[0], *read, *n[4], *written, *busy};
}

std::vector<NetCounts> ParseNetDevUntrusted(std::string_view text) {
  std::vector<NetCounts> interfaces;
  while (!text.empty() && interfaces.size() < kMaxInterfaces) {
    std::string_view line = TakeLine(&text);
    // The name may touch the first number: "eth0:123".
    const std::size_t colon = line.rfind(':');
    if (colon == std::string_view::npos) continue;
    std::string_view label = line.substr(0, colon);
    const std::string_view name = TakeWord(&label);
    std::string_view numbers = line.substr(colon + 1);
    if (!IsPlainName(name) || name == "lo") continue;
    std::array<Counted, 9> n;  // bytes packets errs drop fifo frame compressed multicast | bytes
    for (Counted& one : n) one = TakeNumber(&numbers);
    if (n[0] && n[8]) interfaces.push_back({std::string(name), *n[0], *n[8]});
  }
  return interfaces;
}

Counted ParseRetransmitsUntrusted(std::string_view text) {
  std::string_view names;
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    if (!line.starts_with("Tcp: ")) continue;
    if (names.empty()) {
      names = line;
      continue;
    }
    for (std::string_view name = TakeWord(&names); !name.empty(); name = TakeWord(&names)) {
      const std::string_view value = TakeWord(&line);
      if (name == "RetransSegs") return NumberOf(value);
    }
    return std::nullopt;
  }
  return std::nullopt;
}

Counted ParseOneNumberUntrusted(std::string_view text) {
  std::string_view line = TakeLine(&text);
  return TakeNumber(&line);
}

}  // namespace luff::profile

#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profile/system/machine_text.h"

/// What /proc says of one process. Functions of the text only.
namespace luff::profile {

/// /proc/PID/stat.
struct ProcessStat {
  char state = '?';
  std::int64_t parent = 0;
  std::int64_t major_faults = 0;
  std::int64_t cpu_ns = 0;
  std::int64_t threads = 0;
  std::int64_t start_ticks = 0;  // since boot; with the pid it names a process
  std::int64_t rss_pages = 0;
};
[[nodiscard]] std::optional<ProcessStat> ParseProcessStatUntrusted(std::string_view text,
                                                                   std::int64_t tick_ns);
/// Second number of a schedstat file: time for which it could have run and had no core, in ns.
[[nodiscard]] Counted ParseRunQueueUntrusted(std::string_view text);
/// /proc/PID/statm: resident pages without those of files and shared memory.
[[nodiscard]] Counted ParseAnonymousPagesUntrusted(std::string_view text);
/// /proc/PID/io: bytes from and to storage.
struct ProcessIo {
  Counted read, written;
};
[[nodiscard]] ProcessIo ParseProcessIoUntrusted(std::string_view text);
/// /proc/PID/task/TID/children: process ids, at most `limit`.
[[nodiscard]] std::vector<int> ParseChildrenUntrusted(std::string_view text, std::size_t limit);

}  // namespace luff::profile

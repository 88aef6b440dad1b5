#include "profile/system/process_text.h"

#include <algorithm>
#include <array>
#include <limits>

#include "profile/system/text.h"

namespace luff::profile {

std::optional<ProcessStat> ParseProcessStatUntrusted(std::string_view text, std::int64_t tick_ns) {
  // The name may contain any character; the fields follow its last bracket.
  const std::size_t bracket = text.rfind(')');
  if (bracket == std::string_view::npos) return std::nullopt;
  std::string_view rest = TakeLine(&(text = text.substr(bracket + 1)));
  const std::string_view state = TakeWord(&rest);
  if (state.size() != 1) return std::nullopt;
  std::array<Counted, 21> n;  // field 4, the parent, is n[0]
  for (std::size_t i = 0; i < n.size(); ++i) {
    const std::string_view word = TakeWord(&rest);
    if (word.empty()) return std::nullopt;
    n[i] = NumberOf(word);  // some are negative; none of those that count
  }
  ProcessStat stat;
  stat.state = state.front();
  const Counted in_user = Scaled(n[10], tick_ns), in_kernel = Scaled(n[11], tick_ns);
  if (!n[0] || !n[8] || !in_user || !in_kernel || !n[16] || !n[18] || !n[20]) return std::nullopt;
  stat.parent = *n[0];
  stat.major_faults = *n[8];
  stat.cpu_ns = std::min(*in_user, std::int64_t{1} << 59U) + std::min(*in_kernel, std::int64_t{1} << 59U);
  stat.threads = *n[16];
  stat.start_ticks = *n[18];
  stat.rss_pages = std::min(*n[20], std::int64_t{1} << 44U);
  return stat;
}

Counted ParseRunQueueUntrusted(std::string_view text) {
  std::string_view line = TakeLine(&text);
  (void)TakeWord(&line);
  return TakeNumber(&line);
}

Counted ParseAnonymousPagesUntrusted(std::string_view text) {
  std::string_view line = TakeLine(&text);
  (void)TakeWord(&line);
  const Counted resident = TakeNumber(&line), shared = TakeNumber(&line);
  if (!resident || !shared) return std::nullopt;
  return std::max<std::int64_t>(*resident - *shared, 0);
}

ProcessIo ParseProcessIoUntrusted(std::string_view text) {
  ProcessIo io;
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    const std::string_view key = TakeWord(&line);
    if (key == "read_bytes:") io.read = TakeNumber(&line);
    if (key == "write_bytes:") io.written = TakeNumber(&line);
  }
  return io;
}

std::vector<int> ParseChildrenUntrusted(std::string_view text, std::size_t limit) {
  std::vector<int> pids;
  std::string_view line = TakeLine(&text);
  while (pids.size() < limit) {
    const std::string_view word = TakeWord(&line);
    if (word.empty()) break;
    const Counted pid = NumberOf(word);
    if (pid && *pid > 0 && *pid <= std::numeric_limits<int>::max()) pids.push_back(static_cast<int>(*pid));
  }
  return pids;
}

}  // namespace luff::profile

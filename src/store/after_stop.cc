#include "luff/store/after_stop.h"

#include <charconv>

#include "base/bounded_read.h"
#include "store/paths.h"

namespace luff::store {

std::uint64_t UpdatesAfterStop(const std::string& run, std::uint32_t worker) {
  constexpr std::uint64_t kMostBytes = 32;
  constexpr std::size_t kInWorker = 2;  // names below the run
  const auto text = ReadRegular(WorkerDirectory(run, worker) + "/after_stop", kMostBytes, kInWorker);
  return text.ok() ? ParseUpdatesUntrusted(*text) : 0;
}

std::uint64_t ParseUpdatesUntrusted(std::string_view text) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 53U;  // what JSON holds exactly
  std::uint64_t updates = 0;
  if (text.empty() || text.back() != '\n') return 0;
  text.remove_suffix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), updates);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && updates <= kMost ? updates : 0;
}

}  // namespace luff::store

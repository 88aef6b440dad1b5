#include <cstdlib>
#include <cstring>
#include <vector>

#include "server/heat_map.h"
#include "server/overview_file.h"

// Whatever a cache file holds, what is taken from it lies inside it, and can be drawn, folded and added to.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace luff::server;
  std::vector<std::uint64_t> aligned(size / 8 + 1);
  if (size != 0) std::memcpy(aligned.data(), data, size);
  const auto bytes = std::as_bytes(std::span(aligned)).first(size);
  const auto parsed = ParseOverviewUntrusted(bytes, false);
  if (!parsed.ok()) return 0;
  if (parsed->columns.size() != parsed->state.columns) std::abort();
  for (const Overview::Kept& column : parsed->columns) {
    const auto* at = reinterpret_cast<const std::byte*>(column.words);
    if (at != nullptr && (at < bytes.data() || at + Overview::WordsOf(parsed->state.stride) * sizeof(float) >
                                                   bytes.data() + bytes.size()))
      std::abort();
  }
  Overview overview(parsed->mode);
  overview.Adopt(parsed->state, parsed->columns, nullptr);
  for (const NamedStatistic& statistic : kStatistics) {
    if (!statistic.heat()) continue;
    HeatMap map(&overview, statistic);
    const auto levels = map.Levels();
    for (std::size_t level = 0; level < levels.size(); ++level) (void)map.Tile(level, 0, 0);
    if (!levels.empty()) (void)map.RowOf(0, 0);
  }
  return 0;
}

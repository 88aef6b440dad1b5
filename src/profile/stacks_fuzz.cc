// Documents about stacks come from a run that others may have written: any bytes give a stall or none.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "luff/profile/stacks.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace luff::profile;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto stall = ParseStallUntrusted(text)) {
    if (StandOf(*stall).size() > 1U << 16) std::abort();
    static_cast<void>(WaitsForRanks(*stall));
  }
  for (const LineTime& line : ParseLinesUntrusted(text)) {
    if (!(line.share >= 0 && line.share <= 1)) std::abort();
  }
  return 0;
}

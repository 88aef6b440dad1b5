// Tables of lines are read from memory that may change meanwhile: any bytes must give a line or none.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "capture/stacks/code_lines.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const std::span<const std::byte> table = std::as_bytes(std::span(data, size)).subspan(2);
  for (const int version : {0x030A, 0x030B, 0x030D}) {
    for (std::int64_t at = -1; at < 64; ++at) {
      if (luff::capture::LineOfUntrusted(table, version, data[0], at * data[1]) < -1) std::abort();
    }
  }
  return 0;
}

// Fuzzes lines from the process of a user's own rule: any bytes give a line within bounds, or an error.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "rules/own/own_lines.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace luff::rules;
  const auto line = ParseOwnLineUntrusted({reinterpret_cast<const char*>(data), size});
  if (!line.ok()) return 0;
  if (line->message.size() > 1000 || (line->raised && line->raised->size() > 2000)) std::abort();
  if (line->say == OwnLine::Say::kFinding && !ParseFindingUntrusted(ToJson(line->finding, "new")).ok())
    std::abort();
  return 0;
}

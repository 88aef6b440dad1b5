// Fuzzes lines of findings.jsonl: any bytes give a finding or an error, and an accepted finding is the same
// line again after writing and reading it.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "luff/rules/finding.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace luff::rules;
  const auto parsed = ParseFindingUntrusted({reinterpret_cast<const char*>(data), size});
  if (!parsed.ok()) return 0;
  const std::string line = ToJson(parsed->first, parsed->second);
  if (line.find('\n') != std::string::npos) std::abort();
  const auto again = ParseFindingUntrusted(line);
  if (!again.ok() || ToJson(again->first, again->second) != line) std::abort();
  return 0;
}

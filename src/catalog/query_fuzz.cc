// Fuzzes the questions to the catalog: any text must give a condition or an error.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "catalog/query.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto condition = luff::catalog::ParseCondition(text);
  if (!condition.ok() && condition.status().message().empty()) std::abort();
  return 0;
}

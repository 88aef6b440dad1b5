// Fuzzes the parser of audit lines, which a supervisor reads when it resumes a run that someone else wrote.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "luff/actions/audit.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)luff::actions::ParseAuditLineUntrusted({reinterpret_cast<const char*>(data), size}).ok();
  return 0;
}

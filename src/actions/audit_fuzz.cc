// Lines of the audit of actions, as a supervisor reads them that goes on with a run of somebody else's.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "luff/actions/audit.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)luff::actions::ParseAuditLineUntrusted({reinterpret_cast<const char*>(data), size}).ok();
  return 0;
}

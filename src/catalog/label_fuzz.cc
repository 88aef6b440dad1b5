#include <cstddef>
#include <cstdint>
#include <string_view>

#include "catalog/labels.h"

// Bodies of labels: from files in a run, and from visitors of the server.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)luff::catalog::ParseLabelUntrusted({reinterpret_cast<const char*>(data), size}).ok();
  return 0;
}

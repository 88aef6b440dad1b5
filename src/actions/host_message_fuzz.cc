// Fuzzes the parser of what the hosts of a job tell each other, which a bucket holds.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "luff/actions/host_log.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace actions = luff::actions;
  const auto message = actions::ParseHostMessageUntrusted({reinterpret_cast<const char*>(data), size});
  if (!message.ok()) return 0;
  const std::string text = actions::HostMessageText(*message);
  const auto again = actions::ParseHostMessageUntrusted(text);
  // What has no UTF-8 is replaced by what is longer.
  if (again.ok() && again->id() != message->id()) std::abort();
  return 0;
}

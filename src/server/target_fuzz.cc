#include <cstdlib>
#include <string_view>

#include "server/message.h"

// Whatever a client sends as an address, the path that routes see has the form that they expect.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  luff::server::Request request;
  if (!luff::server::ParseTarget({reinterpret_cast<const char*>(data), size}, &request).ok()) return 0;
  const auto has = [&](std::string_view part) { return request.path.find(part) != std::string::npos; };
  if (!request.path.starts_with('/') || has("/../") || has("//") || has("\\") || has("%") || has("\n"))
    std::abort();
  for (const auto& [name, value] : request.query) {
    if (name.find('\n') != std::string::npos || value.find('\r') != std::string::npos) std::abort();
  }
  return 0;
}

#include <cstdlib>
#include <string_view>

#include "server/tokens.h"

// Whatever is in the file of tokens: an error, or tokens that are written and read again as they are.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const auto tokens = luff::server::ParseTokensUntrusted({reinterpret_cast<const char*>(data), size});
  if (!tokens.ok()) return 0;
  const auto again = luff::server::ParseTokensUntrusted(luff::server::TokensText(*tokens));
  if (!again.ok() || again->size() != tokens->size()) std::abort();
  return 0;
}

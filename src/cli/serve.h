#pragma once
#include <cstdint>
#include <string>
#include <utility>

namespace luff::cli {

/// "127.0.0.1:6006", "[::1]:6006", "6006" -> address and port. `option`: what named it.
[[nodiscard]] std::pair<std::string, std::uint16_t> AddressOrExit(const std::string& text,
                                                                  const char* option);

}  // namespace luff::cli
